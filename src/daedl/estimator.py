"""The classifier as a scikit-learn estimator for tabular data."""

# ruff: noqa: N803 (samples are X in scikit-learn)

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, validate_data

from daedl.classifier import Classifier
from daedl.density import DensityEffect
from daedl.methods import Method
from daedl.networks import MLP, FeatureHead, Network
from daedl.prediction import Prediction
from daedl.table_estimator import FLOATS, TableEstimator
from daedl.training.tables import drop_unweighted

HIDDEN = (64, 64)  # widths of the hidden layers for tables (chosen)
# Largest deviation of the L2 norms of embeddings from 1, and fewest features (chosen: half precision has
# 1e-3, and points on a circle are no embeddings).
UNIT, FEWEST = 2e-3, 16


class DAEDLClassifier(ClassifierMixin, TableEstimator):
    """A neural network for tabular data with uncertainty estimates, as a scikit-learn estimator.

    Standardises the features, trains a multilayer perceptron, and fits the method's density to its
    features. Early stopping holds out a stratified share of the training data. If that is fewer than 10
    samples, none are held out: all epochs run, and a method that is fitted to held-out data, such as
    temperature scaling, is fitted to the training data.

    A Pipeline does not forward `predict_uncertainty`; call
    `pipeline[-1].predict_uncertainty(pipeline[:-1].transform(X))`.

    Embeddings, such as outputs of a sentence encoder, are normalised to one length instead; the network is
    then a head for them, with one hidden layer of 512 for which the density is tied.

    Arguments:
        method: a name in `daedl.methods.METHODS`, or a configured method.
        method_settings: settings of a method given by name, such as {"covariance": "tied"}; they override
            its defaults.
        hidden: widths of the hidden layers; by default (64, 64), for embeddings (512,). () is a linear head.
        network: builds another network from the numbers of features and classes. It may reshape its inputs,
            for instance to images. To pickle the estimator, pass a module-level function, not a lambda.
        max_epochs: number of epochs, unless training stops early; "auto" for 50 with up to 10,000 samples,
            fewer with more, at least 20.
        batch_size: samples per training step; "auto" for 32 to 512, growing with the number of samples.
        learning_rate: largest learning rate of Adam, which follows a one-cycle schedule over `max_epochs`.
        validation_fraction: share of each class that is held out to select the epoch; 0 for none.
        patience: epochs without a lower validation loss after which training stops; by default never.
        class_weight: loss weight per class: a mapping from label to number, or "balanced".
        standardize: whether to scale every feature to mean 0 and standard deviation 1; not for embeddings.
        embeddings: whether samples are embeddings; "auto" if all of them have an L2 norm of 1.
        random_state: seed; an integer makes the result reproducible.
        accelerator: device to train on, as in `daedl.fit`: "cpu", "cuda", "auto", ...

    Attributes after `fit`:
        classes_: the labels (C,), sorted.
        n_features_in_, feature_names_in_: as in all scikit-learn estimators.
        model_: the trained `daedl.Classifier`, which takes standardised features as tensors. It uses float64
            if the accelerator supports it, because float32 rounding depends on the batch.
        scaler_: the StandardScaler of the features, or None.
        embeddings_: whether the samples are embeddings.
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
        hidden: Sequence[int] | None = None,
        network: Callable[[int, int], Network] | None = None,
        max_epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 5e-3,
        validation_fraction: float = 0.1,
        patience: int | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        standardize: bool = True,
        embeddings: bool | Literal["auto"] = "auto",
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
        self.embeddings = embeddings
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
        self.embeddings_ = _has_unit_rows(samples) if self.embeddings == "auto" else self.embeddings
        return self._fit(
            samples, targets, weights, targets, self.standardize and not self.embeddings_
        )

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Returns the predicted labels (N,) of samples (N, F)."""
        indices = self._predict(X).labels.cpu().numpy()
        labels: NDArray[Any] = self.classes_[indices]
        return labels

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Returns the class probabilities (N, C), in the order of `classes_`."""
        return _probabilities(self._predict(X))

    @property
    def density_effect_(self) -> DensityEffect | None:
        """Effect of the density on held-out samples."""
        return self.history_.density_effect

    def _validate_settings(self) -> None:
        """Raises for invalid settings that `daedl.fit` does not check."""
        super()._validate_settings()
        if self.embeddings not in (True, False, "auto"):
            raise ValueError(
                f"embeddings is {self.embeddings!r}; expected True, False or 'auto': leave it out"
            )

    def _model(self, network: Network, **settings: Any) -> Classifier:
        names = [str(label) for label in self.classes_]
        return Classifier(network, self.method, names, preprocess=None, **settings)

    def _outputs(self) -> int:
        return len(self.classes_)

    def _default_network(self) -> Network:
        features, classes = self.n_features_in_, len(self.classes_)
        if self.embeddings_:
            return FeatureHead.for_embeddings(features, classes, self.hidden)
        return MLP(features, classes, HIDDEN if self.hidden is None else self.hidden)


def _has_unit_rows(samples: NDArray[Any]) -> bool:
    """Whether all samples have the same length, as normalised embeddings have."""
    norms = np.linalg.norm(samples, axis=1)
    return samples.shape[1] >= FEWEST and bool((np.abs(norms - 1) <= UNIT).all())


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
