"""`BaseMethod`: the interface from network outputs to a loss and a prediction; `Method`: of classes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor, nn

from daedl import losses
from daedl.checks import NotFittedError, require_settings
from daedl.data import InputKind
from daedl.networks import Network
from daedl.outputs import Outputs
from daedl.predicted import Predicted
from daedl.prediction import Prediction
from daedl.spectral import DEFAULT, SpectralNorm, normalization, spectral_normalize


@dataclass(frozen=True)
class Phase:
    """A training phase of a method, with its own optimiser and schedule.

    Attributes:
        method: provides the training and validation loss.
        name: name of the phase in the history.
        max_epochs: maximum number of epochs; None for the `max_epochs` of `fit`.
        trains: parameters whose names contain this string are trained, the others are frozen.
    """

    method: "BaseMethod"
    name: str = "training"
    max_epochs: int | None = None
    trains: str = ""


@dataclass(frozen=True, kw_only=True)
class BaseMethod(ABC):
    """Maps features and logits to a prediction; holds settings and no state.

    `Method` predicts classes, `daedl.methods.regression.RegressionMethod` numbers. A subclass defines
    `name`, `paper`, `loss` and `predict`. The other hooks have defaults that suit
    most methods. In the order in which they are called:

        prepare           once, before training     spectral normalisation; extra heads or flows
        phases            once, before training     several training phases
        training_loss     every training step       sees images: extra batches, several passes
        loss              every training step and validation batch
        fit               once, after training      a density, a temperature, neighbours, ...
        fit_held_out      then, if there are any    what training data can't determine
        refit             when samples are added    merges them into the fitted state
        forward           every prediction          several passes, dropout at prediction
        predict           every prediction

    Class attributes, from which docs/methods.md is rendered:
        name: key in the table of methods.
        title: display name in tables and figures; `name.upper()` if a class doesn't set it.
        paper: reference.
        published: published settings per dataset where they differ from the defaults, which are the
            MNIST settings; see `daedl.methods.build_for`.
        published_training: training protocol of the paper or its code.
        passes: forward passes per prediction.
        extra_cost: training cost in addition to a softmax network.
        extra_data: data required in addition to the training set.
        caveats: known limitations.
        fit_split: data passed to `fit`, "training" or "validation".
        state: class of the state that `fit` returns, with `settings` and `restore`; see `fitted.Fitted`.
        since: settings of this class that were added after model files and figures were written, with
            the values that reproduce these; see `arguments`. Those of base classes are added.
        removed: settings that this class had when model files and figures were written, with the values that
            `arguments` still has for them. Model files may have other values, which are ignored.

    Attributes:
        spectral: spectral normalisation of the network; None to disable it, "auto" for `resolved`'s choice.
        reduction: "mean" or "sum" of the loss over a training batch.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    published_training: ClassVar[str] = ""
    extra_cost: ClassVar[str] = "none"
    extra_data: ClassVar[str] = "none"
    caveats: ClassVar[str] = ""
    fit_split: ClassVar[Literal["training", "validation"]] = "training"
    state: ClassVar[Any]
    since: ClassVar[Mapping[str, Any]] = {}
    removed: ClassVar[Mapping[str, Any]] = {}

    spectral: SpectralNorm | Literal["auto"] | None = None
    reduction: Literal["mean", "sum"] = "mean"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in vars(cls) and "title" not in vars(cls):
            cls.title = cls.name.upper()
        # Each class lists its own settings; a method and its mixins may all have added some.
        declared = [vars(each).get("since", {}) for each in reversed(cls.__mro__)]
        cls.since = {name: value for each in declared for name, value in each.items()}

    def resolved(self, network: Network) -> "BaseMethod":
        """Replace settings that are "auto" by their values for `network`."""
        if self.spectral != "auto":
            return self
        present = normalization(network)
        return replace(self, spectral=None if network.is_pretrained else present or DEFAULT)

    def prepare(self, network: Network) -> Network:
        """Prepare `network` for training with this method, in place, and return it.

        If the network is already spectrally normalised, its settings must equal `self.spectral`.
        """
        if network.plain is not network and not self.has_head(network):
            raise ValueError(
                f"the network was prepared for a method or settings other than {self}; expected a "
                "network without a head: build a new network"
            )
        self.require_normalization(network)
        spectral = self.resolved(network).spectral
        if isinstance(spectral, SpectralNorm) and normalization(network) is None:
            spectral_normalize(network, spectral)
        return network

    def has_head(self, network: Network) -> bool:
        """Whether `network` already has the head that `prepare` adds."""
        return False

    def require_normalization(self, network: Network) -> None:
        """Raise if `network` is spectrally normalised with settings other than `self.spectral`."""
        present, required = normalization(network), self.resolved(network).spectral
        if present is not None and required not in (None, present):
            raise ValueError(
                f"the network is spectrally normalised with {present}, but the method requires "
                f"{required}; expected equal settings: build a new network, or pass the "
                "network's settings as spectral=..."
            )

    def phases(self) -> "tuple[Phase, ...]":
        """Training phases in order; most methods have one."""
        return (Phase(self),)

    def training_loss(
        self,
        network: nn.Module,
        images: Tensor,
        targets: Tensor,
        epoch: int,
        weights: Tensor | None = None,
        preprocess: InputKind | None = None,
    ) -> Tensor:
        """Scalar loss of a training batch: images (B, ...), targets (B,), epoch from 0, weights (B,).

        `images` are prepared; methods that draw inputs of their own pass them through `preprocess`.
        """
        return losses.reduce(self.loss(network(images), targets, epoch), self.reduction, weights)

    @abstractmethod
    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """Loss per sample (B,).

        Validation passes an infinite epoch: annealed weights are at their final value, so validation
        losses of different epochs are comparable.
        """

    def fit(self, outputs: Outputs, targets: Tensor) -> nn.Module | None:
        """Fit the method's state to the outputs of all `fit_split` data; None if it has no state.

        In distributed training every process calls it with its own samples.
        """
        return None

    def fit_held_out(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> nn.Module:
        """Fit the rest of the state to outputs of held-out data, after `fit`, and return the new state."""
        del outputs, targets
        return fitted

    def refit(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> nn.Module:
        """Merge outputs of additional samples into the fitted state, and return the new state."""
        raise NotImplementedError(
            f"{self.name} keeps no statistics that can be merged; expected a method with Gaussians such "
            "as 'daedl', 'retrofit' or 'ddu': call fit_post_hoc with all samples instead"
        )

    def forward(self, network: nn.Module, images: Tensor) -> Outputs:
        """Outputs used for prediction, of images (B, ...); the network is in eval mode."""
        return network(images)  # type: ignore[no-any-return]

    @abstractmethod
    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Predicted:
        """Prediction for the outputs of B images; `fitted` is the return value of `fit`."""

    def restore(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> nn.Module:
        """Rebuild the fitted state from its `state_dict()` and `settings()`."""
        restored: nn.Module = self.state.restore(tensors, settings)
        return restored

    def require_fitted(self, fitted: nn.Module | None) -> nn.Module:
        """Return `fitted`; raise if it is None."""
        if fitted is None:
            loader = "train_loader" if self.fit_split == "training" else "val_loader"
            raise NotFittedError(
                f"{self.name} is not fitted to {self.fit_split} data; expected a fit before "
                f"prediction: call daedl.fit(model, ...) to train, or model.fit_post_hoc({loader}) if "
                "the network is already trained"
            )
        return fitted

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Default values of all settings by name."""
        return {field.name: field.default for field in fields(cls)}

    def arguments(self) -> dict[str, Any]:
        """JSON-serialisable arguments with which `rebuild(name, arguments)` rebuilds this method.

        They identify measured figures, so a setting in `since` is omitted if it has the value there, and
        those in `removed` are included.
        """
        arguments = {**self.removed, **asdict(self)}
        unchanged = [name for name, value in self.since.items() if arguments[name] == value]
        return {name: value for name, value in arguments.items() if name not in unchanged}

    def __post_init__(self) -> None:
        require_settings(self)
        spectral: Any = self.spectral
        if isinstance(spectral, Mapping):  # from a model file
            object.__setattr__(self, "spectral", SpectralNorm(**spectral))
        elif not (spectral is None or spectral == "auto" or isinstance(spectral, SpectralNorm)):
            raise TypeError(
                f"spectral is {spectral!r}; expected daedl.SpectralNorm(...), 'auto', or None to disable it"
            )

    def training_method(self) -> "BaseMethod":
        """The method that defines the training; another one if this method only changes prediction.

        Methods with equal `training_method()` can share a trained network.
        """
        return self

    @property
    def passes(self) -> int:
        """Forward passes per prediction."""
        return 1

    @property
    def needs_held_out(self) -> bool:
        """Whether `fit_held_out` completes the state."""
        return type(self).fit_held_out is not BaseMethod.fit_held_out

    @property
    def needs_fit(self) -> bool:
        """Whether the method has state that is fitted after training."""
        return type(self).fit is not BaseMethod.fit


class Method(BaseMethod):
    """A method for classification: `logits` (B, C) or (B, K, C), one class index per sample as target.

    set_class_counts  once, before training     receives the number of samples per class
    predict_labels    every validation batch    if the class is not the largest logit
    """

    if TYPE_CHECKING:

        def training_method(self) -> "Method": ...

    def set_class_counts(self, network: Network, counts: Tensor) -> None:
        """Receive the number of training samples per class (C,) before the first step."""

    def predict_labels(self, outputs: Outputs) -> Tensor:
        """Predicted classes (B,) without fitted state; logits (B, K, C) are averaged as probabilities."""
        if outputs.logits.ndim == 2:
            return outputs.logits.argmax(-1)
        return outputs.logits.softmax(-1).flatten(1, -2).mean(1).argmax(-1)

    @abstractmethod
    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Class probabilities for the outputs of B images; `fitted` is the return value of `fit`."""

    @property
    def needs_class_counts(self) -> bool:
        """Whether the method uses the number of samples per class."""
        return type(self).set_class_counts is not Method.set_class_counts
