"""A network: named blocks in a row, cut in two where the features end and the classifier begins."""

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from daedl.names import look_up
from daedl.outputs import Outputs, evaluating

Scope = Literal["all", "features"]


class Network(nn.Module):
    """Blocks in a row; the output of the block named `features` is what the density sees.

    Attributes that every network has:
        input_shape: the shape of one input, without the batch axis.
        num_classes: C, columns of the logits.
        num_features: H, columns of the features.
        arguments: what to pass to the constructor to build this network again.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    num_features: int
    arguments: dict[str, Any]

    def __init__(
        self,
        blocks: Mapping[str, nn.Module],
        features: str,
        input_shape: tuple[int, ...],
        num_classes: int,
        arguments: dict[str, Any],
    ) -> None:
        super().__init__()
        names = list(blocks)
        look_up({name: name for name in names[:-1]}, features, "block for `features`")
        cut = names.index(features) + 1
        self.extractor = nn.Sequential(OrderedDict((name, blocks[name]) for name in names[:cut]))
        self.classifier = nn.Sequential(OrderedDict((name, blocks[name]) for name in names[cut:]))
        self.input_shape = input_shape
        self.num_classes = num_classes
        self.arguments = arguments
        self.num_features = _probe(self, input_shape).features.shape[1]

    def forward(self, images: Tensor) -> Outputs:
        """Images (B, *input_shape) to features (B, H) and logits (B, C)."""
        maps = self.extractor(images)
        return Outputs(features=maps.flatten(1), logits=self.classifier(maps))

    @property
    def plain(self) -> "Network":
        """The network as it was built, without what a method put behind or beside it."""
        return self

    def reinitialized(self) -> "Network":
        """A network of the same kind with new initial weights."""
        return type(self)(**self.arguments)

    def named_modules_in(self, scope: Scope) -> Iterator[tuple[str, nn.Module]]:
        """Every module inside, by name: of the whole network, or of the feature extractor alone."""
        if scope == "all":
            yield from self.named_modules()
        else:
            yield from self.extractor.named_modules(prefix="extractor")


class FeatureModule(Network):
    """A user's own module, whose logits are its output and whose features a named part gives.

    Arguments:
        module: any module that maps a batch of images (B, *input_shape) to logits (B, C).
        features: dotted name of the submodule whose output is the features, flattened to (B, H),
            as `module.named_modules()` lists it.
        input_shape: the shape of one image, for instance (3, 224, 224).
    """

    def __init__(self, module: nn.Module, features: str, input_shape: tuple[int, ...]) -> None:
        nn.Module.__init__(self)
        look_up(dict(module.named_modules()), features, "module for `features`")
        self.module = module
        self.features_name = features
        self.input_shape = tuple(input_shape)
        self.arguments = {"features": features, "input_shape": list(input_shape)}
        probe = _probe(self, self.input_shape)
        self.num_features, self.num_classes = probe.features.shape[1], probe.logits.shape[1]

    def forward(self, images: Tensor) -> Outputs:
        """Images (B, *input_shape) to features (B, H) and logits (B, C), in one pass."""
        caught: list[Tensor] = []
        thread = threading.get_ident()

        def catch(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
            # Two threads may be predicting at once: each takes only what its own pass gave. A copy,
            # because a layer that works in place may follow.
            if threading.get_ident() == thread and isinstance(output, Tensor):
                caught.append(output.flatten(1).clone())

        hook = self.module.get_submodule(self.features_name).register_forward_hook(catch)
        try:
            logits = self.module(images)
        finally:
            hook.remove()
        if len(caught) != 1:
            raise ValueError(
                f"module {self.features_name!r} gave {len(caught)} tensors during the forward pass; "
                "expected one: name a submodule that runs once and returns a tensor"
            )
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            arrived = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(
                f"the wrapped module gives {arrived}; expected logits (batch, classes): wrap it in a "
                "module that returns them alone"
            )
        return Outputs(features=caught[0], logits=logits)

    def reinitialized(self) -> "FeatureModule":
        """A copy whose layers drew new initial weights."""
        twin = copy.deepcopy(self)
        for name, module in twin.named_modules():
            own = [*module.parameters(recurse=False)]
            if own and not hasattr(module, "reset_parameters"):
                raise ValueError(
                    f"layer {name!r} has no reset_parameters(), so it can't draw new weights; expected "
                    "it of every layer with parameters: train the networks one by one instead, and "
                    "join them with daedl.ensemble([...])"
                )
            if own:
                module.reset_parameters()
        return twin

    def named_modules_in(self, scope: Scope) -> Iterator[tuple[str, nn.Module]]:
        """Every module inside; for "features" those registered up to the end of the named one.

        A module's execution order can't be read off it, so the order of registration stands in.
        """
        last = f"module.{self.features_name}"
        seen_last = False
        for name, module in self.named_modules():
            inside = name == last or name.startswith(f"{last}.")
            if scope == "features" and seen_last and not inside:
                return
            seen_last = seen_last or inside
            yield name, module


def lay_out(network: Network, memory_format: torch.memory_format = torch.channels_last) -> None:
    """Lay out weights in place, by default with the channels last: convolutions on a CPU are faster so.

    Results are the same up to rounding. Not those of a wrapped module, which may rely on how its tensors
    lie in memory, as `view` does.
    """
    if not isinstance(network.plain, FeatureModule):
        network.to(memory_format=memory_format)  # type: ignore[call-overload]


def _probe(network: Network, input_shape: tuple[int, ...]) -> Outputs:
    """Outputs for one blank image, in eval mode so that no running statistic moves."""
    parameter = next(network.parameters())
    blank = torch.zeros((1, *input_shape), dtype=parameter.dtype, device=parameter.device)
    with evaluating(network), torch.no_grad():
        return network(blank)  # type: ignore[no-any-return]
