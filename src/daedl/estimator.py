"""The classifier as a scikit-learn estimator for tabular data."""

# ruff: noqa: N803 (samples are X in scikit-learn)

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor
from torch.optim import Adam

from daedl.classifier import Classifier
from daedl.density import DensityEffect, DensityWarning
from daedl.methods import Method
from daedl.networks import MLP, Network
from daedl.prediction import Prediction
from daedl.training import History, fit
from daedl.training.randomness import preserved_random_state
from daedl.training.tables import drop_unweighted, select_held_out, table_batch_size, table_epochs

# Accepted sample types.
FLOATS = (np.float64, np.float32)
# Standardised values are clipped here to prevent overflow; far outside of any training data (chosen).
MAX_STANDARDIZED = 1e8
# Largest gradient norm. The evidence e^z of an outlier can exceed that of all other samples, and its
# gradient would then dominate training (chosen).
GRADIENT_CLIP = 1.0


def _has_density(estimator: "DAEDLClassifier") -> bool:
    """Returns whether `score_samples` is available; true before fitting, where it raises NotFittedError."""
    if "density" in getattr(estimator, "uncertainties_", ["density"]):
        return True
    raise AttributeError(
        f"method {estimator.model_.method.name!r} has no density; expected a method with a density: pass "
        "method='daedl', or use predict_uncertainty"
    )


class DAEDLClassifier(ClassifierMixin, BaseEstimator):
    """A neural network for tabular data with uncertainty estimates, as a scikit-learn estimator.

    Standardises the features, trains a multilayer perceptron, and fits the method's density to its
    features. Early stopping holds out a stratified share of the training data. If that is fewer than 10
    samples, none are held out: all epochs run, and a method that is fitted to held-out data, such as
    temperature scaling, is fitted to the training data.

    A Pipeline does not forward `predict_uncertainty`; call
    `pipeline[-1].predict_uncertainty(pipeline[:-1].transform(X))`.

    Arguments:
        method: a name in `daedl.methods.METHODS`, or a configured method.
        method_settings: settings of a method given by name, such as {"covariance": "tied"}; they override
            its defaults.
        hidden: widths of the hidden layers.
        network: builds another network from the numbers of features and classes. It may reshape its inputs,
            for instance to images. To pickle the estimator, pass a module-level function, not a lambda.
        max_epochs: number of epochs, unless training stops early; "auto" for 50 with up to 10,000 samples,
            fewer with more, at least 20.
        batch_size: samples per training step; "auto" for 32 to 512, growing with the number of samples.
        learning_rate: largest learning rate of Adam, which follows a one-cycle schedule over `max_epochs`.
        validation_fraction: share of each class that is held out to select the epoch; 0 for none.
        patience: epochs without a lower validation loss after which training stops; by default never.
        class_weight: loss weight per class: a mapping from label to number, or "balanced".
        standardize: whether to scale every feature to mean 0 and standard deviation 1.
        random_state: seed; an integer makes the result reproducible.
        accelerator: device to train on, as in `daedl.fit`: "cpu", "cuda", "auto", ...

    Attributes after `fit`:
        classes_: the labels (C,), sorted.
        n_features_in_, feature_names_in_: as in all scikit-learn estimators.
        model_: the trained `daedl.Classifier`, which takes standardised features as tensors. It uses float64
            if the accelerator supports it, because float32 rounding depends on the batch.
        scaler_: the StandardScaler of the features, or None.
        uncertainties_: names of the scores that `predict_uncertainty` returns.
        history_: losses per epoch.
        n_iter_: number of epochs that were run.
        density_effect_: effect of the density on held-out samples, or None. Unlike `daedl.fit`, the
            estimator does not warn, which would be noise in a grid search; see `density_effect_.advice()`.
    """

    def __init__(
        self,
        method: str | Method = "daedl",
        *,
        method_settings: Mapping[str, Any] | None = None,
        hidden: Sequence[int] = (64, 64),
        network: Callable[[int, int], Network] | None = None,
        max_epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 5e-3,
        validation_fraction: float = 0.1,
        patience: int | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
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
        self.patience = patience
        self.class_weight = class_weight
        self.standardize = standardize
        self.random_state = random_state
        self.accelerator = accelerator

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "DAEDLClassifier":
        """Trains on samples (N, F) and labels (N,) of any type, with at least two classes.

        `sample_weight` (N,) multiplies the loss per sample; samples of weight 0 are ignored.
        """
        self._validate_settings()
        samples, labels = validate_data(self, X, y, dtype=FLOATS)
        check_classification_targets(labels)
        self.classes_, targets = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y has 1 class, {self.classes_[0]!r}; expected at least 2: add samples of another class"
            )
        weights = compute_sample_weight(self.class_weight, labels)
        if sample_weight is not None:
            weights = weights * _check_sample_weight(
                sample_weight, samples, ensure_non_negative=True
            )
        samples, labels, targets, weights = drop_unweighted(samples, labels, targets, weights)
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        self.scaler_ = StandardScaler().fit(samples) if self.standardize else None
        self.model_ = self._build(seed)
        inputs = self._inputs(samples)
        held_out = select_held_out(targets, self.validation_fraction, random)
        train, val = (
            (inputs[part], torch.tensor(targets[part]), torch.tensor(weights[part]))
            for part in (~held_out, held_out)
        )
        self.history_ = self._train(train, val[:2] if held_out.any() else None, seed)
        # Trained in float32, which takes two thirds of the time.
        self.model_.to(self._dtype)
        self.uncertainties_ = list(self.model_.predict(inputs[:1]).scores())
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Returns the predicted labels (N,) of samples (N, F)."""
        indices = self._predict(X).labels.cpu().numpy()
        labels: NDArray[Any] = self.classes_[indices]
        return labels

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Returns the class probabilities (N, C), in the order of `classes_`."""
        return _probabilities(self._predict(X))

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

    @property
    def density_effect_(self) -> DensityEffect | None:
        """Effect of the density on held-out samples."""
        return self.history_.density_effect

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

    def _build(self, seed: int) -> Classifier:
        """Builds a classifier with initial weights drawn from `seed`."""
        settings = dict(self.method_settings or {})
        names = [str(label) for label in self.classes_]
        with preserved_random_state():
            torch.manual_seed(seed)
            network = self._build_network()
            # No preprocessing: `scaler_` standardises the samples.
            return Classifier(network, self.method, names, preprocess=None, **settings)

    @property
    def _dtype(self) -> torch.dtype:
        """Type of weights and samples: float64, except on Apple's MPS, which does not support it."""
        uses_mps = self.accelerator in ("mps", "auto") and torch.backends.mps.is_available()
        return torch.float32 if uses_mps else torch.float64

    def _build_network(self) -> Network:
        features, classes = self.n_features_in_, len(self.classes_)
        if self.network is None:
            return MLP(features, classes, self.hidden)
        network = self.network(features, classes)
        # Classifier() rejects other types.
        if isinstance(network, Network):
            values = math.prod(network.input_shape)
            if (values, network.num_classes) != (features, classes):
                raise ValueError(
                    f"network({features}, {classes}) takes {values} values for {network.num_classes} "
                    f"classes; expected {features} values for {classes}: build it from both arguments"
                )
        return network

    def _train(
        self, train: tuple[Tensor, ...], val: tuple[Tensor, ...] | None, seed: int
    ) -> History:
        """Trains `model_` on samples (N, ...), class indices (N,) and weights (N,)."""
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

    def _predict(self, X: ArrayLike) -> Prediction:
        check_is_fitted(self, "uncertainties_")
        samples = validate_data(self, X, dtype=FLOATS, reset=False)
        return self.model_.predict(self._inputs(samples))

    def _inputs(self, samples: NDArray[Any]) -> Tensor:
        """Converts samples (N, F) to network inputs (N, *input_shape)."""
        if self.scaler_ is not None:
            samples = np.clip(self.scaler_.transform(samples), -MAX_STANDARDIZED, MAX_STANDARDIZED)
        inputs = torch.tensor(samples, dtype=self._dtype)
        return inputs.view(-1, *self.model_.network.input_shape)


def _probabilities(prediction: Prediction) -> NDArray[np.float64]:
    """Returns probabilities (N, C) whose argmax is the predicted class.

    Without evidence all classes tie and the label comes from the logits; the probability of that class
    is then increased to the next float.
    """
    probs: NDArray[np.float64] = prediction.probs.double().cpu().numpy()
    labels = prediction.labels.cpu().numpy()
    tied = np.flatnonzero(probs.argmax(1) != labels)
    probs[tied, labels[tied]] = np.nextafter(probs[tied].max(1), 1.0)
    return probs
