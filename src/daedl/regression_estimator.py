"""The regressor as a scikit-learn estimator for tabular data."""

# ruff: noqa: N803 (samples are X in scikit-learn)

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, validate_data

from daedl.checks import Number
from daedl.methods.regression import RegressionMethod
from daedl.networks import Network
from daedl.regression_prediction import RegressionPrediction
from daedl.regressor import DEFAULT_TARGET, Regressor
from daedl.table_estimator import FLOATS, TableEstimator


class DAEDLRegressor(RegressorMixin, TableEstimator):
    """A neural network for tabular data that predicts numbers with uncertainties, for scikit-learn.

    Standardises features and targets, trains a multilayer perceptron, and fits the method's density to its
    features. A share of the samples is held out to select the epoch and the size of the evidence; if that is
    fewer than 10 samples, none are.

    Arguments:
        method: a name in `daedl.methods.regression.METHODS`, or a configured method.
        method_settings: settings of a method given by name, such as {"prior_nu": 2.0}.
        network: builds another network from the numbers of features and targets.
        conformal_fraction: share of the samples for conformal intervals, which are not used for training; 0
            for the intervals of the predicted distribution.

    The other arguments are those of `DAEDLClassifier`.

    Attributes after `fit`:
        n_features_in_, feature_names_in_: as in all scikit-learn estimators.
        n_outputs_: number of targets.
        model_: the trained `daedl.Regressor`, which takes standardised features as tensors.
        scaler_, uncertainties_, history_, n_iter_: as in `DAEDLClassifier`.
    """

    def __init__(
        self,
        method: str | RegressionMethod = "daer",
        *,
        method_settings: Mapping[str, Any] | None = None,
        hidden: Sequence[int] = (64, 64),
        network: Callable[[int, int], Network] | None = None,
        max_epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 5e-3,
        validation_fraction: float = 0.1,
        conformal_fraction: float = 0.0,
        patience: int | None = None,
        standardize: bool = True,
        random_state: int | np.random.RandomState | None = None,
        accelerator: str = "cpu",
    ) -> None:
        self.method = method
        self.method_settings = method_settings
        self.hidden = hidden
        self.network = network
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.conformal_fraction = conformal_fraction
        self.patience = patience
        self.standardize = standardize
        self.random_state = random_state
        self.accelerator = accelerator

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "DAEDLRegressor":
        """Trains on samples (N, F) and targets (N,) or (N, D).

        `sample_weight` (N,) multiplies the loss per sample; samples of weight 0 are ignored.
        """
        self._validate_settings()
        samples, targets = validate_data(
            self, X, y, dtype=FLOATS, multi_output=True, y_numeric=True
        )
        targets = np.asarray(targets, dtype=np.float64)
        self.n_outputs_ = 1 if targets.ndim == 1 else targets.shape[1]
        weights = _check_sample_weight(sample_weight, samples, ensure_non_negative=True)
        used = weights > 0
        samples, targets, weights = samples[used], targets[used], weights[used]
        if len(samples) < 2:
            raise ValueError(
                f"n_samples={len(samples)} with a weight above 0; expected at least 2 samples"
            )
        parts = check_random_state(self.random_state)
        number = int(self.conformal_fraction * len(samples))
        # The default thresholds limit two scores.
        least = math.ceil(2 / DEFAULT_TARGET.rate) - 1
        if self.conformal_fraction > 0 and number < least:
            raise ValueError(
                f"conformal_fraction={self.conformal_fraction} of {len(samples)} samples is {number}; "
                f"expected at least {least} samples: add samples, or increase it"
            )
        held = np.zeros(len(samples), dtype=bool)
        held[parts.permutation(len(samples))[:number]] = True
        kept = ~held
        strata = np.zeros(int(kept.sum()), dtype=np.int64)
        self._fit(
            samples[kept],
            targets[kept],
            weights[kept] / weights[kept].mean(),
            strata,
            self.standardize,
        )
        if held.any():
            self.model_.calibrate((self._inputs(samples[held]), torch.tensor(targets[held])))
        return self

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns the means (N,) or (N, D), with `return_std` also the standard deviations."""
        prediction = self.predict_distribution(X)
        mean = prediction.mean.double().cpu().numpy()
        return (mean, prediction.std.double().cpu().numpy()) if return_std else mean

    def predict_interval(
        self, X: ArrayLike, level: float = 0.9
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns bounds that contain the target with probability `level`; see `p.interval`."""
        low, high = self.predict_distribution(X).interval(level)
        return low.double().cpu().numpy(), high.double().cpu().numpy()

    def predict_distribution(self, X: ArrayLike) -> RegressionPrediction:
        """Returns the predictions with densities and quantiles, `p.nig`, and all scores."""
        prediction: RegressionPrediction = self._predict(X)
        return prediction

    def _validate_settings(self) -> None:
        super()._validate_settings()
        Number(0, limit=1).require("conformal_fraction", self.conformal_fraction, "0.2, or 0")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _outputs(self) -> int:
        return self.n_outputs_

    def _model(self, network: Network, **settings: Any) -> Regressor:
        return Regressor(network, self.method, preprocess=None, standardize=False, **settings)
