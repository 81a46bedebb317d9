"""Networks with what a method adds to them: a head behind one, or several side by side."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from daedl.networks.base import Network, Scope
from daedl.outputs import Outputs


class Headed(Network):
    """A network and a method's own head behind it, trained together.

    The head maps what the network gives to what the method needs: Outputs to Outputs. Spectral
    normalisation reaches the network alone.
    """

    def __init__(self, inner: Network, head: nn.Module, num_features: int) -> None:
        nn.Module.__init__(self)
        self.inner, self.head = inner, head
        self.input_shape, self.num_classes = inner.input_shape, inner.num_classes
        self.num_features, self.arguments = num_features, inner.arguments

    @property
    def plain(self) -> Network:
        """The network before the head."""
        return self.inner.plain

    def forward(self, images: Tensor) -> Outputs:
        """Images (B, *input_shape) to what the head makes of their features and logits."""
        return self.head(self.inner(images))  # type: ignore[no-any-return]

    def reinitialized(self) -> Network:
        """Refused: only the method can build its head again."""
        raise TypeError("a network with a head can't be built again; expected the plain network")

    def named_modules_in(self, scope: Scope) -> Iterator[tuple[str, nn.Module]]:
        """Every module of the network before the head."""
        for name, module in self.inner.named_modules_in(scope):
            yield f"inner.{name}" if name else "inner", module


class Members(Network):
    """M networks side by side: features (B, M, H) and logits (B, M, C)."""

    def __init__(self, members: Sequence[Network]) -> None:
        nn.Module.__init__(self)
        first = members[0]
        self.members = nn.ModuleList(members)
        self.input_shape, self.num_classes = first.input_shape, first.num_classes
        self.num_features, self.arguments = first.num_features, first.arguments

    @property
    def plain(self) -> Network:
        """The first network, which the others are like."""
        return self.members[0].plain  # type: ignore[return-value]

    def forward(self, images: Tensor) -> Outputs:
        """Images (B, *input_shape) through every member."""
        return stack_outputs([member(images) for member in self.members])

    def named_modules_in(self, scope: Scope) -> Iterator[tuple[str, nn.Module]]:
        """Every module of every member."""
        for number, member in enumerate(self.members):
            for name, module in member.named_modules_in(scope):  # type: ignore[operator]
                yield f"members.{number}.{name}".rstrip("."), module


def stack_outputs(outputs: Sequence[Outputs]) -> Outputs:
    """Outputs of M networks for the same images, with a second axis M."""
    return Outputs(
        torch.stack([each.features for each in outputs], 1),
        torch.stack([each.logits for each in outputs], 1),
    )


def replace_last_layer(network: Network, width: int) -> None:
    """Let the last layer of `network` give `width` numbers in place of the logits, in place."""
    last = [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == network.num_classes
    ]
    if not last:
        raise ValueError(
            f"the network has no Linear layer with {network.num_classes} outputs, one a class; "
            "expected one as its last layer, which is replaced by one that gives the latent: wrap a "
            "module that ends so"
        )
    parent, _, child = last[-1].rpartition(".")
    old = network.get_submodule(last[-1])
    new = nn.Linear(old.in_features, width)  # type: ignore[arg-type]
    setattr(network.get_submodule(parent), child, new.to(old.weight))  # type: ignore[arg-type]
