"""Deep ensembles of any method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl.checks import require_whole
from daedl.distributed import several
from daedl.methods.base import Method, Phase
from daedl.methods.softmax import Softmax
from daedl.names import below
from daedl.networks import Members, Network
from daedl.networks.headed import side_by_side
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl.spectral import normalization, spectral_normalize


@dataclass(frozen=True, kw_only=True)
class Ensemble(Method):
    """p̄ = (1/M) Σ_m p_m over M networks of one kind, from initial weights of their own.

    The epistemic score is the mean of the members' where they have one, so that what all members know
    nothing of stays unknown; else the mutual information H(p̄) − (1/M) Σ_m H(p_m). Members are trained
    side by side on the same batches, each with a loss of its own; those that were trained one by one are
    joined by `daedl.ensemble`. Published members also differ in the order of their batches.

    Attributes:
        member: the method of every member; by default softmax, as published.
        size: M.
    """

    name = "ensemble"
    paper = (
        "Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using Deep "
        "Ensembles, NeurIPS 2017"
    )
    published_training = "that of its members, 5 times"
    extra_cost = "M trainings"
    caveats = "Training, file and prediction cost M times as much as one member."

    member: Method = Softmax()  # noqa: RUF009 (frozen)
    size: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.member, Method) or isinstance(self.member, Ensemble):
            raise TypeError(
                f"member is {self.member!r}; expected a method such as daedl.methods.EDL(), not an ensemble"
            )
        require_whole("size", self.size, 2, "5")
        if self.spectral is not None:
            raise ValueError(
                f"spectral is {self.spectral} on the ensemble; expected it on its member: "
                "Ensemble(member=EDLPlus(spectral=...))"
            )
        # A step's loss is the sum of the members' losses, each reduced as it is.
        object.__setattr__(self, "reduction", self.member.reduction)

    def arguments(self) -> dict[str, Any]:
        """The member's name and arguments, and the size."""
        member = {"name": self.member.name, "arguments": self.member.arguments()}
        return {"member": member, "size": self.size}

    @property
    def passes(self) -> int:
        """M times those of a member."""
        return self.size * self.member.passes

    @property
    def extra_data(self) -> str:  # type: ignore[override]
        """What members need."""
        return self.member.extra_data

    @property
    def needs_fit(self) -> bool:
        """Whether members fit anything after training."""
        return self.member.needs_fit

    @property
    def needs_class_counts(self) -> bool:
        """Whether members ask for the number of samples of each class."""
        return self.member.needs_class_counts

    @property
    def fit_split(self) -> Literal["training", "validation"]:  # type: ignore[override]
        """The data that members are fitted to."""
        return self.member.fit_split

    def prepare(self, network: Network) -> Network:
        """M networks side by side: the given one, and others like it with new initial weights."""
        if isinstance(network, Members):
            if len(network.members) != self.size:
                raise ValueError(
                    f"{len(network.members)} networks for an ensemble of {self.size}; expected one each"
                )
            networks: list[Any] = list(network.members)
        else:
            networks = [network, *(_another(network) for _ in range(self.size - 1))]
        return Members([self.member.prepare(each) for each in networks])

    def set_class_counts(self, network: Network, counts: Tensor) -> None:
        """Tell every member the number of samples of each class (C,)."""
        for each in _members(network):
            self.member.set_class_counts(each, counts)

    def phases(self) -> tuple[Phase, ...]:
        """Those of a member, for all at once."""
        return tuple(
            replace(phase, method=replace(self, member=phase.method))
            for phase in self.member.phases()
        )

    def training_loss(
        self,
        network: nn.Module,
        images: Tensor,
        targets: Tensor,
        epoch: int,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The sum of the members' losses, so that each has the gradient that it would have alone."""
        if type(self.member).training_loss is Method.training_loss:
            return super().training_loss(network, images, targets, epoch, weights)
        if several():
            raise ValueError(
                f"an ensemble of {self.member.name!r} is trained by several processes, whose gradients "
                "would not be shared; expected one process: pass devices=1, or train members one by one "
                "and join them with daedl.ensemble"
            )
        arguments = images, targets, epoch, weights
        each = [self.member.training_loss(one, *arguments) for one in _members(network)]
        return torch.stack(each).sum()

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """The sum of the members' losses, (B,)."""
        each = [self.member.loss(one, targets, epoch) for one in _split(outputs)]
        return torch.stack(each).sum(0)

    def predict_labels(self, outputs: Outputs) -> Tensor:
        """Those of the mean probabilities; where these need a fit or more passes, those of most members."""
        if not self.member.needs_fit and self.member.passes == 1:
            return self.predict(outputs, None).labels
        found = [self.member.predict_labels(one) for one in _split(outputs)]
        return _most(found, outputs.logits.shape[-1])

    def fit(self, outputs: Outputs, targets: Tensor) -> "Fits | None":
        """What every member fits to its own outputs; None if that is nothing."""
        if not self.member.needs_fit:
            return None
        return Fits([self.member.fit(one, targets) for one in _split(outputs)])

    def forward(self, network: nn.Module, images: Tensor) -> Outputs:
        """Every member's way of predicting: features (B, M, H) and logits (B, M, ..., C)."""
        return side_by_side([self.member.forward(one, images) for one in _members(network)])

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """The mean of the members' probabilities and of their epistemic scores."""
        parts = fitted.parts if isinstance(fitted, Fits) else [None] * self.size
        found = [
            self.member.predict(one, part) for one, part in zip(_split(outputs), parts, strict=True)
        ]
        joined = Prediction.from_several(torch.stack([each.probs for each in found], 1))
        # Where no member has evidence all classes tie: then the class is that of most members.
        top = joined.probs.topk(2).values
        most = _most([each.labels for each in found], joined.probs.shape[1])
        joined = replace(joined, labels=torch.where(top[:, 0] == top[:, 1], most, joined.labels))
        own = [each.epistemic for each in found if each.epistemic is not None]
        return replace(joined, epistemic=torch.stack(own).mean(0)) if own else joined

    def restore(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> "Fits":
        """What every member fitted, from a model file."""
        return Fits(
            [
                self.member.restore(below(tensors, f"parts.{number}."), each)
                for number, each in enumerate(settings["parts"])
            ]
        )

    def training_method(self) -> "Ensemble":
        """The ensemble whose members are trained so."""
        return replace(self, member=self.member.training_method())


class Fits(nn.Module):
    """What the members of an ensemble fitted, in their order."""

    def __init__(self, parts: Sequence[nn.Module | None]) -> None:
        super().__init__()
        self.parts = nn.ModuleList([part for part in parts if part is not None])

    def settings(self) -> dict[str, Any]:
        """What, beside the tensors, rebuilds every part; JSON-able."""
        return {"parts": [part.settings() for part in self.parts]}  # type: ignore[operator]


def _another(network: Network) -> Network:
    """Like `network`, with new initial weights; of its type, on its device, normalised as it is."""
    fresh = network.fresh().to(next(network.parameters()))
    present = normalization(network)
    if present is not None and normalization(fresh) is None:
        spectral_normalize(fresh, present)
    return fresh


def _members(network: nn.Module) -> list[Any]:
    return list(network.members)  # type: ignore[arg-type]


def _most(found: Sequence[Tensor], num_classes: int) -> Tensor:
    """The class (B,) that most of `found` (B,) have; of several the first."""
    return F.one_hot(torch.stack(list(found)), num_classes).sum(0).argmax(-1)


def _split(outputs: Outputs) -> list[Outputs]:
    """The outputs of each member."""
    return [
        Outputs(features, logits)
        for features, logits in zip(
            outputs.features.unbind(1), outputs.logits.unbind(1), strict=True
        )
    ]
