"""The classifier as scikit-learn's tools want it: arrays in, arrays out, settings by keyword."""

# ruff: noqa: N803 (samples are X in scikit-learn)

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from types import MappingProxyType
from typing import Any

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

from daedl.classifier import Classifier
from daedl.density import DensityEffect, DensityWarning
from daedl.methods import Method
from daedl.networks import MLP, Network
from daedl.prediction import Prediction
from daedl.spectral import SpectralNorm
from daedl.training import History, fit
from daedl.training.randomness import preserved_random_state

# Samples are taken in either.
FLOATS = (np.float64, np.float32)
# Fewer held-out samples than this can't tell one epoch from another (chosen).
FEW = 10
# Standardised values are cut off here, so that nothing overflows: it is far enough from
# all training data to be unknown, and as far as the density reaches (chosen).
FARTHEST = 1e8
# Largest norm of the gradient: one sample far out has e^z times the evidence of the others, and
# without a limit its gradient alone can end the training of all (chosen).
GRADIENT_CLIP = 1.0
# Settings of methods whose defaults, the papers' for images, suit tables badly. With a coefficient of 1
# the network can't bend enough for few features, and with few samples the density knows its own too
# well. Chosen on iris, digits, two moons and made-up data; the coefficient is DDU's.
FOR_TABLES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {"daedl": {"spectral": SpectralNorm(coefficient=3.0), "leave_one_out": True}}
)


def _has_density(estimator: "DAEDLClassifier") -> bool:
    """Whether `score_samples` is offered; before fitting it is, so that it can say what is missing."""
    if "density" in getattr(estimator, "uncertainties_", ["density"]):
        return True
    raise AttributeError(
        f"method {estimator.model_.method.name!r} has no density; expected one that has, such as "
        "'daedl' or 'ddu': pass method='daedl', or use predict_uncertainty"
    )


class DAEDLClassifier(ClassifierMixin, BaseEstimator):
    """A neural network for tables that knows when it doesn't know, as a scikit-learn estimator.

    Features are standardised, a multilayer perceptron is trained, and the method's density is fitted
    to its features. Early stopping holds out some of the training data, the same share of every
    class; where that would be fewer than 10 samples, none are held out, all epochs are run, and a method
    that is fitted to held-out data, as temperature scaling, is fitted to the training data.

    A pipeline passes on all that other classifiers have too, but not `predict_uncertainty`: call it as
    `pipeline[-1].predict_uncertainty(pipeline[:-1].transform(X))`.

    Arguments:
        method: a name in `daedl.methods.METHODS`, or a method with settings of its own.
        method_settings: settings of a method given by name, as in {"covariance": "tied"}. Where they say
            nothing, `FOR_TABLES` and then the method's own defaults hold.
        hidden: widths of the hidden layers.
        network: builds another network from the numbers of features and classes; it may take inputs
            of another shape with as many values, for instance images. To pickle the estimator it must
            be a function of a module, not a lambda.
        max_epochs: epochs at most.
        batch_size: samples of a training step.
        learning_rate: of Adam at the start; it is multiplied by 0.95 after each epoch.
        validation_fraction: share of each class that is held out for early stopping; 0 for none.
        patience: epochs without a lower validation loss after which training stops.
        class_weight: factor of each class's loss: a mapping from label to number, or "balanced".
        standardize: scale every feature to mean 0 and deviation 1 in training.
        random_state: a number makes the result repeatable.
        accelerator: where to train, as in `daedl.fit`: "cpu", "cuda", "auto", ...

    Attributes after `fit`:
        classes_: the labels (C,), sorted.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
        model_: the trained `daedl.Classifier`, which takes standardised features as tensors,
            in float64 where the accelerator has it: rounding in float32 would depend on which samples
            come together.
        scaler_: scikit-learn's StandardScaler that standardises them, or None.
        uncertainties_: names of the scores that `predict_uncertainty` gives.
        history_: every epoch's losses.
        n_iter_: epochs that were run.
        density_effect_: what the density did on held-out samples, or None without any. `daedl.fit`
            warns where that is bad; in a search over settings this would be noise, so here
            `density_effect_.advice()` is there to be asked.
    """

    def __init__(
        self,
        method: str | Method = "daedl",
        *,
        method_settings: Mapping[str, Any] | None = None,
        hidden: Sequence[int] = (64, 64),
        network: Callable[[int, int], Network] | None = None,
        max_epochs: int = 100,
        batch_size: int = 32,
        learning_rate: float = 3e-3,
        validation_fraction: float = 0.1,
        patience: int = 10,
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
        """Trains on samples (N, F) with labels (N,) of any type, of at least two classes.

        `sample_weight` (N,) are factors of the samples' losses; samples of weight 0 are left out.
        """
        self._require_sense()
        samples, labels = validate_data(self, X, y, dtype=FLOATS)
        check_classification_targets(labels)
        self.classes_, targets = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y holds 1 class, {self.classes_[0]!r}; expected at least two: add samples of another"
            )
        weights = compute_sample_weight(self.class_weight, labels)
        if sample_weight is not None:
            weights = weights * _check_sample_weight(
                sample_weight, samples, ensure_non_negative=True
            )
        samples, labels, targets, weights = _weighted(samples, labels, targets, weights)
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31 - 1))
        self.scaler_ = StandardScaler().fit(samples) if self.standardize else None
        self.model_ = self._build(seed)
        inputs = self._inputs(samples)
        held_out = _held_out(targets, self.validation_fraction, random)
        train, val = (
            (inputs[part], torch.tensor(targets[part]), torch.tensor(weights[part]))
            for part in (~held_out, held_out)
        )
        self.history_ = self._train(train, val[:2] if held_out.any() else None, seed)
        self.uncertainties_ = list(self.model_.predict(inputs[:1]).scores())
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels (N,) of samples (N, F)."""
        indices = self._predict(X).labels.cpu().numpy()
        labels: NDArray[Any] = self.classes_[indices]
        return labels

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Expected probabilities (N, C) of the classes, in the order of `classes_`."""
        return _probabilities(self._predict(X))

    def predict_uncertainty(self, X: ArrayLike) -> dict[str, NDArray[np.float64]]:
        """Every uncertainty that the method offers, by name, each (N,); larger = more uncertain.

        "aleatoric": the classes compete. "epistemic": there is little evidence. "density": minus the
        log density of the features. `uncertainties_` tells which of them there are.
        """
        scores = self._predict(X).scores()
        return {name: score.double().cpu().numpy() for name, score in scores.items()}

    @available_if(_has_density)
    def score_samples(self, X: ArrayLike) -> NDArray[np.float64]:
        """Log density (N,) of the samples' features; larger = more like the training data."""
        return -self.predict_uncertainty(X)["density"]

    @property
    def n_iter_(self) -> int:
        """Epochs that were run."""
        return len(self.history_.epochs)

    @property
    def density_effect_(self) -> DensityEffect | None:
        """What the density did on held-out samples."""
        return self.history_.density_effect

    def _require_sense(self) -> None:
        """Raise for settings that nothing else would refuse in clear words."""
        if isinstance(self.hidden, int):
            raise TypeError(
                f"hidden is {self.hidden}; expected a sequence of widths: pass ({self.hidden},) for one "
                "hidden layer"
            )
        share: Any = self.validation_fraction
        if not isinstance(share, Real) or not 0 <= float(share) < 1:
            raise ValueError(
                f"validation_fraction is {share!r}; expected a share from 0 to below 1: "
                "pass 0.1, or 0 to hold out nothing"
            )

    def _build(self, seed: int) -> Classifier:
        """A classifier with initial weights drawn from `seed`."""
        settings: dict[str, Any] = dict(self.method_settings or {})
        if isinstance(self.method, str):
            settings = {**FOR_TABLES.get(self.method, {}), **settings}
        names = [str(label) for label in self.classes_]
        with preserved_random_state():
            torch.manual_seed(seed)
            network = self._network().to(self._dtype)
            # Samples are standardised here, by `scaler_`.
            return Classifier(network, self.method, names, preprocess=None, **settings)

    @property
    def _dtype(self) -> torch.dtype:
        """Of weights and samples; Apple's MPS has no float64."""
        without = self.accelerator in ("mps", "auto") and torch.backends.mps.is_available()
        return torch.float32 if without else torch.float64

    def _network(self) -> Network:
        features, classes = self.n_features_in_, len(self.classes_)
        if self.network is None:
            return MLP(features, classes, self.hidden)
        network = self.network(features, classes)
        # The classifier says what to do with one that isn't a network of the library.
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
            # What is fitted to them is too sure of itself, but there is nothing better.
            val = train
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DensityWarning)
            return fit(
                self.model_,
                train,
                val,
                max_epochs=self.max_epochs,
                batch_size=self.batch_size,
                learning_rate=self.learning_rate,
                patience=self.patience,
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
        """What the network takes (N, ...) for samples (N, F)."""
        if self.scaler_ is not None:
            samples = np.clip(self.scaler_.transform(samples), -FARTHEST, FARTHEST)
        inputs = torch.tensor(samples, dtype=self._dtype)
        return inputs.view(-1, *self.model_.network.input_shape)


def _weighted(
    samples: NDArray[Any],
    labels: NDArray[Any],
    targets: NDArray[np.int64],
    weights: NDArray[np.float64],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64], NDArray[np.float64]]:
    """Leaves out samples of weight 0 and scales the others' weights to a mean of 1."""
    used = weights > 0
    if missing := sorted(set(targets.tolist()) - set(targets[used].tolist())):
        names = ", ".join(str(labels[targets == number][0]) for number in missing)
        raise ValueError(
            f"all samples of {names} have weight 0; expected some of every class: leave the class out"
        )
    return samples[used], labels[used], targets[used], weights[used] / weights[used].mean()


def _held_out(
    targets: NDArray[np.int64], share: float, random: np.random.RandomState
) -> NDArray[np.bool_]:
    """Which samples (N,) are held out: a share of every class, rounded down, or none if they are few.

    Rounding down leaves every class at least one training sample, however rare it is.
    """
    held_out = np.zeros(len(targets), dtype=bool)
    for c in np.unique(targets):
        members = random.permutation(np.flatnonzero(targets == c))
        held_out[members[: int(share * len(members))]] = True
    return held_out if held_out.sum() >= FEW else np.zeros_like(held_out)


def _probabilities(prediction: Prediction) -> NDArray[np.float64]:
    """Probabilities (N, C) whose largest is the predicted class's.

    Where there is no evidence, all classes tie, and the class is taken from the logits: there it is put
    ahead by the smallest number that there is.
    """
    probs: NDArray[np.float64] = prediction.probs.double().cpu().numpy()
    labels = prediction.labels.cpu().numpy()
    tied = np.flatnonzero(probs.argmax(1) != labels)
    probs[tied, labels[tied]] = np.nextafter(probs[tied].max(1), 1.0)
    return probs
