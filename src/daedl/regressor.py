"""The regressor: a network, a method, and the state that the method fits after training."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from daedl.checks import NotFittedError, require_batch, require_finite
from daedl.data import Batch, Preprocess
from daedl.data.loaders import Data
from daedl.data.scaling import Columns, Scaling, in_float64
from daedl.data.table import read_table
from daedl.inputs import as_input, count_rows
from daedl.methods import regression
from daedl.methods.regression import RegressionMethod
from daedl.model import Model
from daedl.model_file import Parts, require_network
from daedl.networks import Network
from daedl.nig import NIG
from daedl.regression_prediction import LEVEL, RegressionPrediction
from daedl.selective import Conformal, MaxRejectionRate, MaxWidth, Target, Thresholds

DEFAULT_TARGET = MaxRejectionRate()


class Regressor(Model[RegressionPrediction]):
    """Predicts one or several numbers with uncertainties in one forward pass.

    `daedl.fit` standardises targets, and the columns of inputs that are vectors; predictions are in the
    original units.

    Arguments:
        network: returns features and D outputs, one per target; see `daedl.networks`. The method replaces the
            last layer.
        method: a name in `daedl.methods.regression.METHODS`, or a configured method.
        target_names, feature_names: unique names of the columns, stored in the model file.
        preprocess: converts images to network inputs, as in `daedl.Classifier`.
        standardize: whether to standardise inputs that are vectors.
        method_arguments: settings of the method, if `method` is a name.
    """

    method: RegressionMethod
    kind = RegressionMethod

    def __init__(
        self,
        network: Network,
        method: str | RegressionMethod = "daer",
        target_names: Sequence[str] = (),
        feature_names: Sequence[str] = (),
        preprocess: Preprocess | Literal["default"] | None = "default",
        standardize: bool = True,
        **method_arguments: Any,
    ) -> None:
        super().__init__()
        require_network(network)
        built = regression.build(method, **method_arguments).resolved(network)
        if preprocess == "default":
            preprocess = Preprocess.for_shape(network.input_shape)
        vectors = len(network.input_shape) == 1 and preprocess is None
        # Units are those of the data until the first training.
        self.set_parts(
            Parts(
                built.prepare(network),
                built,
                None,
                preprocess,
                scaling=Scaling(
                    Columns.units(network.num_classes, target_names),
                    Columns.units(network.input_shape[0], feature_names)
                    if vectors and standardize
                    else None,
                ),
            )
        )

    @property
    def num_targets(self) -> int:
        """D, the number of targets."""
        return self.network.num_classes

    def prepare(self, inputs: Any, where: str = "") -> Tensor:
        """Converts raw inputs to network inputs (B, *input_shape); standardises vectors."""
        if self._scaling.features is not None:
            # Before the conversion to the dtype of the network, which would round large offsets.
            inputs = self.network.conform(inputs, where)
            require_finite(inputs, "inputs", where)
            inputs = self.scaled(inputs)
        prepared: Tensor = super().prepare(inputs, where)
        return prepared

    def scaled(self, inputs: Tensor) -> Tensor:
        """Standardises inputs that are vectors (B, F)."""
        features = self._scaling.features
        return inputs if features is None else features.standardized(inputs)

    def targets(self, targets: Tensor, number: int, where: str = "") -> Tensor:
        """Returns standardised targets (B, D) with the dtype of the network."""
        rows = self._rows(targets, number, where)
        mean, std = self._scaling.targets.tensors(rows)
        return ((rows - mean) / std).to(next(self.network.parameters()).dtype)

    def start(self, data: Iterable[Batch]) -> None:
        """Computes the units of inputs and targets from the training data."""
        before, features, targets = self._scaling, [], []
        for position, batch in enumerate(data):
            where = f" of batch {position} of the training data"
            inputs, labels, _ = require_batch(batch, where)
            targets.append(self._rows(labels, count_rows(inputs), where))
            if before.features is not None:
                rows = torch.as_tensor(as_input(inputs, self.network.input_shape, where)).double()
                require_finite(rows, "inputs", where)
                features.append(rows)
        self.scaling = Scaling(
            Columns.of(targets, before.targets.names, least=2),
            before.features and Columns.of(features, before.features.names),
        )

    def predict(self, data: Any, batch_size: int = 256) -> RegressionPrediction:
        """Predicts one or more inputs; see `Model.predict`. The path of a CSV file is read as a table."""
        if isinstance(data, str | Path):
            data = read_table(Path(data), self._feature_names(data))[0]
        return super().predict(data, batch_size)

    def read_targets(self, path: Path) -> Tensor:
        """Returns the targets (N, D) in a CSV file."""
        return self._read(path)[1]

    def finished(self, prediction: RegressionPrediction) -> RegressionPrediction:
        """Converts to the units of the targets, in float64; with one target, tensors become (B,)."""
        p, targets = prediction, self._scaling.targets
        # In float32 a large offset would round means, and a very large or small unit lose variances.
        nig = NIG(*(in_float64(each) for each in vars(p.nig).values()))
        nig = nig.rescaled(*targets.tensors(nig.gamma))
        if self.num_targets == 1:
            nig = NIG(*(each[:, 0] for each in vars(nig).values()))
        converted = RegressionPrediction.of(
            nig, p.epistemic is not None, p.density_score, p.log_density
        )
        return replace(converted, targets=targets)

    def calibrate(self, data: Data, target: Target = DEFAULT_TARGET, seed: int = 0) -> Thresholds:
        """Computes conformal intervals and thresholds for accepting predictions, on held-out `data`.

        Afterwards `p.interval(level)` contains new targets with at least this probability, predictions have
        `accept` and `reason`, and `save` stores both. Predictions count as wrong whose interval of level 0.9,
        or of `MaxWidth.level`, does not contain the target.

        Arguments:
            data: labelled data that were used neither for training nor for early stopping.
            target: `daedl.MaxWidth(width)`, `daedl.MaxRejectionRate(rate)` or
                `daedl.MaxErrorRate(rate, delta)`.
            seed: of a random split; see `Classifier.calibrate`.
        """
        outputs, targets = self.collect(data, "calibration data")
        self.thresholds = None
        prediction = self.predict_outputs(outputs)
        exact = in_float64(targets).cpu()
        mean, std = self._scaling.targets.tensors(exact)
        truth = mean + std * exact
        shape = (len(truth), self.num_targets)
        residuals = (truth - prediction.mean.cpu().double().view(shape)).abs()
        conformal = Conformal.of(residuals / prediction.std.cpu().double().view(shape))
        level = target.level if isinstance(target, MaxWidth) else LEVEL
        trial = Thresholds({"aleatoric": torch.inf}, target, len(truth), 1.0, 0.0, conformal)
        prediction = prediction.limited(trial)
        bounds = [each.cpu().double().view(shape) for each in prediction.interval(level)]
        wrong = ((truth < bounds[0]) | (truth > bounds[1])).any(1)
        scores = {name: score.cpu() for name, score in prediction.scores().items()}
        chosen = target.choose(scores, wrong, None, seed)
        self.thresholds = replace(chosen, conformal=conformal)
        return self.thresholds

    @property
    def _scaling(self) -> Scaling:
        if self.scaling is None:
            raise NotFittedError(
                "the regressor has no units of its targets; expected those of a model file or a constructor: "
                "build it with daedl.Regressor(...)"
            )
        return self.scaling

    def _rows(self, targets: Tensor, number: int, where: str) -> Tensor:
        """Targets (B, D), float64, after validation."""
        if targets.dtype == torch.bool or targets.is_complex():
            raise TypeError(
                f"targets{where} are {targets.dtype}; expected real numbers: train a daedl.Classifier for "
                "categories"
            )
        columns = self.num_targets
        if tuple(targets.shape) not in ((number, columns), (number,) if columns == 1 else ()):
            raise ValueError(
                f"targets{where} have shape {tuple(targets.shape)}; expected ({number}, {columns})"
                f"{f' or ({number},)' if columns == 1 else ''}: pass one row per input, or build the network "
                "with another number of outputs"
            )
        rows = targets.view(number, columns).double()
        require_finite(rows, "targets", where)
        return rows

    def _feature_names(self, path: Any) -> tuple[str, ...]:
        features = self._scaling.features
        if features is None or not features.names:
            raise ValueError(
                f"the data are the path {path}, but the regressor has no names of features; expected arrays, "
                "or a regressor built with feature_names=..."
            )
        return features.names

    def _read(self, path: Path) -> tuple[Tensor, Tensor]:
        names, targets = self._feature_names(path), self._scaling.targets.names
        return read_table(path, names, targets)
