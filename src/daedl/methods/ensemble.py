"""Deep ensembles of any method."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl.checks import Number
from daedl.distributed import is_distributed
from daedl.methods.base import Method, Phase
from daedl.methods.softmax import Softmax
from daedl.names import strip_prefix
from daedl.networks import Members, Network
from daedl.networks.headed import stack_outputs
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl.spectral import normalization, spectral_normalize


@dataclass(frozen=True, kw_only=True)
class Ensemble(Method):
    """p̄ = (1/M) Σ_m p_m over M networks of the same architecture with different initial weights.

    The epistemic score is the mean of the members' epistemic scores, if the member method has one; else
    the mutual information H(p̄) − (1/M) Σ_m H(p_m). Members are trained jointly on the same batches, each
    with its own loss; `daedl.ensemble` joins classifiers that were trained separately. In the paper the
    order of batches also differs between members.

    Attributes:
        member: method of all members; softmax as published.
        size: M.
    """

    name = "ensemble"
    title = "Deep ensemble"
    paper = (
        "Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using Deep "
        "Ensembles, NeurIPS 2017"
    )
    published_training = "that of the members, 5 times"
    extra_cost = "M trainings"
    caveats = "Training, model file and prediction cost M times as much as for one member."

    member: Method = Softmax()  # noqa: RUF009 (frozen)
    size: Annotated[int, Number(2, whole=True)] = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.member, Method) or isinstance(self.member, Ensemble):
            raise TypeError(
                f"member is {self.member!r}; expected a method such as daedl.methods.EDL(), not an ensemble"
            )
        if self.spectral is not None:
            raise ValueError(
                f"spectral is {self.spectral} on the ensemble; expected it on the member: pass "
                "Ensemble(member=EDLPlus(spectral=...))"
            )
        # The training loss is the sum of the members' reduced losses.
        for name in ("reduction", "extra_data", "fit_split"):
            object.__setattr__(self, name, getattr(self.member, name))

    def arguments(self) -> dict[str, Any]:
        """Name and arguments of the member, and the size."""
        member = {"name": self.member.name, "arguments": self.member.arguments()}
        return {"member": member, "size": self.size}

    @property
    def passes(self) -> int:
        return self.size * self.member.passes

    @property
    def needs_fit(self) -> bool:
        return self.member.needs_fit

    @property
    def needs_held_out(self) -> bool:
        return self.member.needs_held_out

    @property
    def needs_class_counts(self) -> bool:
        return self.member.needs_class_counts

    def resolved(self, network: Network) -> "Ensemble":
        return replace(self, member=self.member.resolved(network))

    def prepare(self, network: Network) -> Network:
        """Combine the network with M − 1 newly initialised copies."""
        if isinstance(network, Members):
            if len(network.members) != self.size:
                raise ValueError(
                    f"{len(network.members)} networks for an ensemble of {self.size}; expected "
                    f"{self.size}: pass one network per member, or set size={len(network.members)}"
                )
            networks: list[Any] = list(network.members)
        else:
            networks = [network, *(_another(network) for _ in range(self.size - 1))]
        return Members([self.member.prepare(each) for each in networks])

    def set_class_counts(self, network: Network, counts: Tensor) -> None:
        for each in _members(network):
            self.member.set_class_counts(each, counts)

    def phases(self) -> tuple[Phase, ...]:
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
        """Sum of the members' losses, so that each member has the gradient of its own loss."""
        if type(self.member).training_loss is Method.training_loss:
            return super().training_loss(network, images, targets, epoch, weights)
        if is_distributed():
            raise ValueError(
                f"an ensemble of {self.member.name!r} can't be trained by several processes, because "
                "gradients would not be synchronised; expected one process: pass devices=1, or train "
                "members separately and join them with daedl.ensemble"
            )
        arguments = images, targets, epoch, weights
        each = [self.member.training_loss(one, *arguments) for one in _members(network)]
        return torch.stack(each).sum()

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """Sum of the members' losses, (B,)."""
        each = [self.member.loss(one, targets, epoch) for one in _split(outputs)]
        return torch.stack(each).sum(0)

    def predict_labels(self, outputs: Outputs) -> Tensor:
        """Labels of the mean probabilities, or a majority vote if these need a fit or several passes."""
        if not self.member.needs_fit and self.member.passes == 1:
            return self.predict(outputs, None).labels
        votes = [self.member.predict_labels(one) for one in _split(outputs)]
        return _majority(votes, outputs.logits.shape[-1])

    def fit(self, outputs: Outputs, targets: Tensor) -> "FittedMembers | None":
        """Fit every member to its own outputs; None if the member method has no state."""
        if not self.member.needs_fit:
            return None
        return FittedMembers([self.member.fit(one, targets) for one in _split(outputs)])

    def fit_held_out(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> nn.Module:
        parts = zip(fitted.parts, _split(outputs), strict=True)  # type: ignore[arg-type]
        return FittedMembers([self.member.fit_held_out(part, one, targets) for part, one in parts])

    def forward(self, network: nn.Module, images: Tensor) -> Outputs:
        """Stacked outputs of all members: features (B, M, H) and logits (B, M, ..., C)."""
        return stack_outputs([self.member.forward(one, images) for one in _members(network)])

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        parts = fitted.parts if isinstance(fitted, FittedMembers) else [None] * self.size
        predictions = [
            self.member.predict(one, part) for one, part in zip(_split(outputs), parts, strict=True)
        ]
        joined = Prediction.from_several(torch.stack([each.probs for each in predictions], 1))
        # Without evidence all classes tie; the label is then a majority vote.
        top = joined.probs.topk(2).values
        voted = _majority([each.labels for each in predictions], joined.probs.shape[1])
        joined = replace(joined, labels=torch.where(top[:, 0] == top[:, 1], voted, joined.labels))
        own = [each.epistemic for each in predictions if each.epistemic is not None]
        return replace(joined, epistemic=torch.stack(own).mean(0)) if own else joined

    def restore(
        self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
    ) -> "FittedMembers":
        """Rebuild the fitted state of every member from a model file."""
        return FittedMembers(
            [
                self.member.restore(strip_prefix(tensors, f"parts.{number}."), each)
                for number, each in enumerate(settings["parts"])
            ]
        )

    def training_method(self) -> "Ensemble":
        return replace(self, member=self.member.training_method())


class FittedMembers(nn.Module):
    """Fitted states of the members, in order."""

    def __init__(self, parts: Sequence[nn.Module | None]) -> None:
        super().__init__()
        self.parts = nn.ModuleList([part for part in parts if part is not None])

    def settings(self) -> dict[str, Any]:
        """JSON-serialisable settings of every member's state."""
        return {"parts": [part.settings() for part in self.parts]}  # type: ignore[operator]


def _another(network: Network) -> Network:
    """Copy of `network` with new initial weights, and the same dtype, device and normalisation."""
    new = network.reinitialized().to(next(network.parameters()))
    present = normalization(network)
    if present is not None and normalization(new) is None:
        spectral_normalize(new, present)
    return new


def _members(network: nn.Module) -> list[Any]:
    return list(network.members)  # type: ignore[arg-type]


def _majority(votes: Sequence[Tensor], num_classes: int) -> Tensor:
    """Majority label (B,) of several labels (B,); the smallest index if there is a tie."""
    return F.one_hot(torch.stack(list(votes)), num_classes).sum(0).argmax(-1)


def _split(outputs: Outputs) -> list[Outputs]:
    """Outputs of each member."""
    each = zip(outputs.features.unbind(1), outputs.logits.unbind(1), strict=True)
    return [Outputs(features, logits, outputs.parts) for features, logits in each]
