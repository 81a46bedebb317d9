"""`Ensembled`: the base class of ensembles of classifiers and of regressors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from daedl.checks import Number
from daedl.data import InputKind
from daedl.distributed import is_distributed
from daedl.methods.base import BaseMethod, Phase
from daedl.names import strip_prefix
from daedl.networks import Members, Network
from daedl.networks.headed import stack_outputs
from daedl.outputs import Outputs
from daedl.spectral import normalization, spectral_normalize


@dataclass(frozen=True, kw_only=True)
class Ensembled(BaseMethod):
    """M networks of the same architecture with different initial weights, trained jointly.

    Attributes:
        member: method of all members.
        size: M.
    """

    members_are: ClassVar[type[BaseMethod]]

    member: BaseMethod
    size: Annotated[int, Number(2, whole=True)] = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.member, self.members_are) or isinstance(self.member, Ensembled):
            raise TypeError(
                f"member is {self.member!r}; expected a {self.members_are.__name__}, not an ensemble"
            )
        if self.spectral is not None:
            raise ValueError(
                f"spectral is {self.spectral} on the ensemble; expected it on the member: pass "
                "it to the method of the members"
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

    def resolved(self, network: Network) -> Self:
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
        preprocess: InputKind | None = None,
    ) -> Tensor:
        """Sum of the members' losses, so that each member has the gradient of its own loss."""
        if type(self.member).training_loss is BaseMethod.training_loss:
            return super().training_loss(network, images, targets, epoch, weights, preprocess)
        if is_distributed():
            raise ValueError(
                f"an ensemble of {self.member.name!r} can't be trained by several processes, because "
                "gradients would not be synchronised; expected one process: pass devices=1, or train "
                "members separately and join them with daedl.ensemble"
            )
        arguments = images, targets, epoch, weights, preprocess
        each = [self.member.training_loss(one, *arguments) for one in members_of(network)]
        return torch.stack(each).sum()

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """Sum of the members' losses, (B,)."""
        each = [self.member.loss(one, targets, epoch) for one in split(outputs)]
        return torch.stack(each).sum(0)

    def fit(self, outputs: Outputs, targets: Tensor) -> "FittedMembers | None":
        """Fit every member to its own outputs; None if the member method has no state."""
        if not self.member.needs_fit:
            return None
        return FittedMembers([self.member.fit(one, targets) for one in split(outputs)])

    def fit_held_out(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> nn.Module:
        parts = zip(fitted.parts, split(outputs), strict=True)  # type: ignore[arg-type]
        return FittedMembers([self.member.fit_held_out(part, one, targets) for part, one in parts])

    def forward(self, network: nn.Module, images: Tensor) -> Outputs:
        """Stacked outputs of all members: features (B, M, H) and logits (B, M, ..., C)."""
        return stack_outputs([self.member.forward(one, images) for one in members_of(network)])

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

    def training_method(self) -> Self:
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


def members_of(network: nn.Module) -> list[Any]:
    return list(network.members)  # type: ignore[arg-type]


def split(outputs: Outputs) -> list[Outputs]:
    """Outputs of each member."""
    each = zip(outputs.features.unbind(1), outputs.logits.unbind(1), strict=True)
    return [Outputs(features, logits, outputs.parts) for features, logits in each]
