"""Networks that methods build from other networks: with a head, or several as members."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from daedl.networks.base import Network, Scope
from daedl.outputs import Outputs


class Headed(Network):
    """A network followed by a method's head, trained jointly.

    The head maps the Outputs of the network to the Outputs of the method. Spectral normalisation applies
    to the network only.
    """

    def __init__(self, inner: Network, head: nn.Module, num_features: int) -> None:
        nn.Module.__init__(self)
        self.inner, self.head = inner, head
        self.input_shape, self.num_classes = inner.input_shape, inner.num_classes
        self.num_features, self.arguments = num_features, inner.arguments
        self.parts = (num_features,)

    @property
    def plain(self) -> Network:
        """The network without the head."""
        return self.inner.plain

    def forward(self, images: Tensor) -> Outputs:
        """Map images (B, *input_shape) to the outputs of the head."""
        return self.head(self.inner(images))  # type: ignore[no-any-return]

    def initialize_from(self, inputs: Tensor) -> None:
        """Set weights of the network without the head."""
        self.inner.initialize_from(inputs)

    def reinitialized(self) -> Network:
        """Raise: only the method can build a new head."""
        raise TypeError(
            "a network with a head can't be reinitialised; expected a network without a head: call "
            "reinitialized() on network.plain"
        )

    def named_modules_in(self, scope: Scope) -> Iterator[tuple[str, nn.Module]]:
        """Named modules of the network without the head."""
        for name, module in self.inner.named_modules_in(scope):
            yield f"inner.{name}" if name else "inner", module


class Members(Network):
    """M networks with stacked outputs: features (B, M, H) and logits (B, M, C)."""

    def __init__(self, members: Sequence[Network]) -> None:
        nn.Module.__init__(self)
        first = members[0]
        self.members = nn.ModuleList(members)
        self.input_shape, self.num_classes = first.input_shape, first.num_classes
        self.num_features, self.arguments = first.num_features, first.arguments
        self.parts = first.parts

    @property
    def plain(self) -> Network:
        """The first member; all members have the same architecture."""
        return self.members[0].plain  # type: ignore[return-value]

    def forward(self, images: Tensor) -> Outputs:
        """Map images (B, *input_shape) to the stacked outputs of all members."""
        return stack_outputs([member(images) for member in self.members])

    def initialize_from(self, inputs: Tensor) -> None:
        """Set weights of every member."""
        for member in self.members:
            member.initialize_from(inputs)  # type: ignore[operator]

    def named_modules_in(self, scope: Scope) -> Iterator[tuple[str, nn.Module]]:
        """Named modules of all members."""
        for number, member in enumerate(self.members):
            for name, module in member.named_modules_in(scope):  # type: ignore[operator]
                yield f"members.{number}.{name}".rstrip("."), module


def stack_outputs(outputs: Sequence[Outputs]) -> Outputs:
    """Stack outputs of M networks for the same images along a second dimension M."""
    return Outputs(
        torch.stack([each.features for each in outputs], 1),
        torch.stack([each.logits for each in outputs], 1),
        outputs[0].parts,
    )


def replace_last_layer(network: Network, width: int) -> None:
    """Replace the last Linear layer, which outputs the logits, by one with `width` outputs, in place."""
    last = [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == network.num_classes
    ]
    if not last:
        raise ValueError(
            f"the network has no Linear layer with {network.num_classes} outputs, one per class; "
            "expected one as the last layer, which is replaced to output the latent: wrap a module that "
            "ends in a Linear layer"
        )
    parent, _, child = last[-1].rpartition(".")
    old = network.get_submodule(last[-1])
    new = nn.Linear(old.in_features, width)  # type: ignore[arg-type]
    setattr(network.get_submodule(parent), child, new.to(old.weight))  # type: ignore[arg-type]
