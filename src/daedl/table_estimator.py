"""`TableEstimator`: the base class of the scikit-learn estimators."""

# ruff: noqa: N803 (samples are X in scikit-learn)

import math
import warnings
from abc import abstractmethod
from functools import partial
from numbers import Real
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from torch.optim import Adam

from daedl.density import DensityScorer, DensityWarning
from daedl.model import Model
from daedl.networks import MLP, Network
from daedl.training import History, fit
from daedl.training.randomness import preserved_random_state
from daedl.training.tables import GRADIENT_CLIP, select_held_out, table_batch_size, table_epochs

# Accepted sample types.
FLOATS = (np.float64, np.float32)
# Standardised values are clipped here to prevent overflow; far outside of any training data (chosen).
MAX_STANDARDIZED = 1e8


def _has_density(estimator: "TableEstimator") -> bool:
    """Returns whether `score_samples` is available; true before fitting, where it raises NotFittedError."""
    if "density" in getattr(estimator, "uncertainties_", ["density"]):
        return True
    raise AttributeError(
        f"method {estimator.model_.method.name!r} has no density; expected a method with a density, such "
        "as the default, or use predict_uncertainty"
    )


class TableEstimator(BaseEstimator):
    """Trains a network on a table: standardises the features, holds out samples, predicts in float64."""

    model_: Any

    @abstractmethod
    def _model(self, network: Network, **settings: Any) -> Model[Any]:
        """Builds a model without preprocessing, because `scaler_` standardises the samples."""

    def _build(self, seed: int) -> Model[Any]:
        """Builds a model with initial weights drawn from `seed`."""
        with preserved_random_state():
            torch.manual_seed(seed)
            return self._model(self._build_network(), **dict(self.method_settings or {}))

    def _fit(
        self,
        samples: NDArray[Any],
        targets: NDArray[Any],
        weights: NDArray[np.float64],
        strata: NDArray[np.int64],
        scaled: bool,
    ) -> Self:
        """Trains on samples (N, F), targets (N, ...) and weights (N,).

        Held-out samples are stratified by `strata` (N,); `scaled`: whether to standardise the samples.
        """
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        self.scaler_ = StandardScaler().fit(samples) if scaled else None
        self.model_ = self._build(seed)
        inputs = self._inputs(samples)
        held_out = select_held_out(strata, self.validation_fraction, random)
        train, val = (
            (inputs[part], torch.tensor(targets[part]), torch.tensor(weights[part]))
            for part in (~held_out, held_out)
        )
        self.history_ = self._train(train, val[:2] if held_out.any() else None, seed)
        # Trained in float32, which takes two thirds of the time.
        self.model_.to(self._dtype)
        for module in self.model_.modules():
            if isinstance(module, DensityScorer):  # else it scores in float32
                module.density = module.density.cast(self._dtype)
        self.uncertainties_ = list(self.model_.predict(inputs[:1]).scores())
        return self

    @abstractmethod
    def _outputs(self) -> int:
        """Number of classes or targets."""

    def _validate_settings(self) -> None:
        """Raises for invalid settings that `daedl.fit` does not check."""
        if isinstance(self.hidden, int):
            raise TypeError(
                f"hidden is {self.hidden}; expected a sequence of widths: pass ({self.hidden},) for one "
                "hidden layer"
            )
        fraction: Any = self.validation_fraction
        if not isinstance(fraction, Real) or not 0 <= float(fraction) < 1:
            raise ValueError(
                f"validation_fraction is {fraction!r}; expected a number in [0, 1): pass 0.1, or 0 to "
                "disable validation"
            )

    def _default_network(self) -> Network:
        return MLP(self.n_features_in_, self._outputs(), self.hidden)

    def _build_network(self) -> Network:
        if self.network is None:
            return self._default_network()
        features, classes = self.n_features_in_, self._outputs()
        network: Network = self.network(features, classes)
        # The model rejects other types.
        if isinstance(network, Network):
            values = math.prod(network.input_shape)
            if (values, network.num_classes) != (features, classes):
                raise ValueError(
                    f"network({features}, {classes}) takes {values} values for {network.num_classes} "
                    f"classes or targets; expected {features} values for {classes}: build it from "
                    "both arguments"
                )
        return network

    @property
    def _dtype(self) -> torch.dtype:
        """Type of weights and samples: float64, except on Apple's MPS, which does not support it."""
        uses_mps = self.accelerator in ("mps", "auto") and torch.backends.mps.is_available()
        return torch.float32 if uses_mps else torch.float64

    def predict_uncertainty(self, X: ArrayLike) -> dict[str, NDArray[np.float64]]:
        """Returns the method's uncertainty scores by name, each (N,); larger = more uncertain.

        "aleatoric": uncertainty between classes. "epistemic": lack of evidence. "density": negative log
        density of the features. `uncertainties_` lists the available scores.
        """
        scores = self._predict(X).scores()
        return {name: score.double().cpu().numpy() for name, score in scores.items()}

    @available_if(_has_density)
    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Returns the log density (N,) of the samples' features; larger = closer to the training data."""
        return -self.predict_uncertainty(X)["density"]

    @property
    def n_iter_(self) -> int:
        """Number of epochs that were run."""
        return len(self.history_.epochs)

    def _train(
        self, train: tuple[Tensor, ...], val: tuple[Tensor, ...] | None, seed: int
    ) -> History:
        """Trains `model_` on samples (N, ...), targets (N, ...) and weights (N,)."""
        if val is None and self.model_.method.fit_split == "validation":
            # Overconfident, but no held-out data are available.
            val = train
        number = len(train[0])
        # Other strings are rejected by `daedl.fit`.
        epochs: Any = table_epochs(number) if self.max_epochs == "auto" else self.max_epochs
        batch_size: Any = table_batch_size(number) if self.batch_size == "auto" else self.batch_size
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DensityWarning)
            return fit(
                self.model_,
                train,
                val,
                max_epochs=epochs,
                batch_size=batch_size,
                learning_rate=self.learning_rate,
                schedule="one-cycle",
                # One operation for all weights, which are many small tensors.
                optimizer=partial(Adam, lr=self.learning_rate, fused=True),
                patience=epochs if self.patience is None else self.patience,
                gradient_clip=GRADIENT_CLIP,
                seed=seed,
                accelerator=self.accelerator,
                progress=False,
            )

    def _predict(self, X: ArrayLike) -> Any:
        check_is_fitted(self, "uncertainties_")
        samples = validate_data(self, X, dtype=FLOATS, reset=False)
        return self.model_.predict(self._inputs(samples))

    def _inputs(self, samples: NDArray[Any]) -> Tensor:
        """Converts samples (N, F) to network inputs (N, *input_shape)."""
        if self.scaler_ is not None:
            samples = np.clip(self.scaler_.transform(samples), -MAX_STANDARDIZED, MAX_STANDARDIZED)
        inputs = torch.tensor(samples, dtype=self._dtype)
        return inputs.view(-1, *self.model_.network.input_shape)
