"""The contract that every method keeps: from a network's outputs to a prediction, with its loss."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from daedl import losses
from daedl.networks import Network
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl.spectral import SpectralNorm, normalization, spectral_normalize


@dataclass(frozen=True)
class Phase:
    """One of the trainings of a method, with an optimiser and a schedule of its own.

    Attributes:
        method: whose loss is trained and validated.
        name: what the history calls it.
        max_epochs: epochs at most; None for those that `fit` is told.
        trains: parameters whose name holds this are trained, all others are left as they are.
    """

    method: "Method"
    name: str = "training"
    max_epochs: int | None = None
    trains: str = ""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A paper's way from features and logits to a prediction; a record of settings, with no state.

    A subclass gives `name`, `paper`, `loss` and `predict`. The other steps have defaults that most
    methods leave alone, in the order in which they happen:

        prepare        once, before training       spectral normalisation; extra heads or flows
        start          once, before training       what needs the number of samples of each class
        phases         once, before training       several trainings in a row
        training_loss  each training step          what sees images: extra batches, several passes
        loss           each training step, and validation
        classes        each validation             where the class is not the largest logit
        fit            once, after training        a density, a temperature, neighbours, ...
        refit          when more samples come      merging them into what was fitted
        forward        each prediction             several passes, dropout kept on
        predict        each prediction

    What every class says of itself, for the table in docs/methods.md:
        name, paper: what it is called here, and where it comes from.
        published: settings by data set, where those of the paper differ from the defaults, which
            are those for MNIST; see `daedl.methods.build_for`.
        published_training: how the paper or its code trains.
        passes: forward passes for one prediction.
        extra_cost: what training costs beyond a softmax network.
        extra_data: images that it needs beside those that the network is trained on.
        caveats: what to know before taking it.
        fit_split: the data that `fit` is given, "training" or "validation".

    Attributes:
        spectral: spectral normalisation of the network, or None for none.
        reduction: whether a training step's loss is the mean or the sum over the batch.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    published_training: ClassVar[str] = ""
    extra_cost: ClassVar[str] = "none"
    extra_data: ClassVar[str] = "none"
    caveats: ClassVar[str] = ""
    fit_split: ClassVar[Literal["training", "validation"]] = "training"

    spectral: SpectralNorm | None = None
    reduction: Literal["mean", "sum"] = "mean"

    def prepare(self, network: Network) -> Network:
        """Make `network` ready for training with this method, in place, and return it.

        A network that is spectrally normalised already must be so in the way that the method asks.
        """
        if network.plain is not network and not self.has_head(network):
            raise ValueError(
                f"the network was prepared for another method than {self}, or with other settings; "
                "expected a plain one: build the network anew"
            )
        self.require_normalization(network)
        if self.spectral is not None and normalization(network) is None:
            spectral_normalize(network, self.spectral)
        return network

    def has_head(self, network: Network) -> bool:
        """Whether `network` has the head that this method puts behind one."""
        del network
        return False

    def require_normalization(self, network: Network) -> None:
        """Raise if `network` is spectrally normalised in another way than the method asks."""
        present = normalization(network)
        if present is not None and self.spectral not in (None, present):
            raise ValueError(
                f"the network is spectrally normalised with {present}, but the method asks for "
                f"{self.spectral}; expected the same: build the network anew, or pass "
                "spectral=... as it is"
            )

    def set_class_counts(self, network: Network, counts: Tensor) -> None:
        """Take in the number of training samples of each class (C,), before the first step."""
        del network, counts

    def phases(self) -> "tuple[Phase, ...]":
        """The trainings that follow each other; most methods have one."""
        return (Phase(self),)

    def training_loss(
        self,
        network: nn.Module,
        images: Tensor,
        targets: Tensor,
        epoch: int,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Scalar loss of a training batch: images (B, ...), targets (B,), zero-based epoch, weights (B,)."""
        return losses.reduce(self.loss(network(images), targets, epoch), self.reduction, weights)

    @abstractmethod
    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """Loss of each sample (B,).

        Validation passes an infinite epoch, so that an annealed weight stands at its final value and
        the losses of different epochs can be compared.
        """

    def predict_labels(self, outputs: Outputs) -> Tensor:
        """Predicted classes (B,) from outputs alone; several rows of logits (B, K, C) are averaged."""
        if outputs.logits.ndim == 2:
            return outputs.logits.argmax(-1)
        return outputs.logits.softmax(-1).flatten(1, -2).mean(1).argmax(-1)

    def fit(self, outputs: Outputs, targets: Tensor) -> nn.Module | None:
        """Fit what the method needs to the outputs of all `fit_split` data; None if it needs nothing.

        With several processes each calls it with its own share of the samples.
        """
        del outputs, targets
        return None

    def refit(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> nn.Module:
        """What `fit` would have returned if these outputs had been among those it was given."""
        raise NotImplementedError(
            f"{self.name} keeps no statistics that more samples could be merged into; expected a method "
            "with Gaussians, such as 'daedl', 'retrofit' or 'ddu': call fit_post_hoc with all samples"
        )

    def forward(self, network: nn.Module, images: Tensor) -> Outputs:
        """Outputs for prediction of images (B, ...); the network is in eval mode."""
        return network(images)  # type: ignore[no-any-return]

    @abstractmethod
    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """The prediction for outputs of B images; `fitted` is what `fit` returned."""

    def restore(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> nn.Module:
        """What `fit` returned, from its `state_dict()` and its `settings()`."""
        raise NotImplementedError(f"{self.name} fits nothing, so there is nothing to restore")

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """All settings by name, with their defaults."""
        return {field.name: field.default for field in fields(cls)}

    def arguments(self) -> dict[str, Any]:
        """What `build(name, **arguments)` needs to make this method again; JSON-able."""
        return asdict(self)

    def __post_init__(self) -> None:
        if self.reduction not in ("mean", "sum"):
            raise ValueError(f"reduction is {self.reduction!r}; expected 'mean' or 'sum'")
        spectral: Any = self.spectral
        if isinstance(spectral, Mapping):  # as a model file holds it
            object.__setattr__(self, "spectral", SpectralNorm(**spectral))
        elif spectral is not None and not isinstance(spectral, SpectralNorm):
            raise TypeError(
                f"spectral is {spectral!r}; expected daedl.SpectralNorm(...), or None for none"
            )

    def training_method(self) -> "Method":
        """The method whose training this one shares: itself, unless it differs only afterwards.

        What is equal here can use the same trained network.
        """
        return self

    @property
    def passes(self) -> int:
        """Forward passes for one prediction."""
        return 1

    @property
    def needs_class_counts(self) -> bool:
        """Whether the method asks for the number of samples of each class."""
        return type(self).set_class_counts is not Method.set_class_counts

    @property
    def needs_fit(self) -> bool:
        """Whether the method fits anything after training."""
        return type(self).fit is not Method.fit
