"""`Network`: a sequence of named blocks, split into feature extractor and classifier."""

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from daedl.names import look_up
from daedl.outputs import Outputs, evaluating

Scope = Literal["all", "features"]


class Network(nn.Module):
    """A sequence of blocks; the flattened output of the block `features` is the feature vector.

    Attributes:
        input_shape: shape of one input, without batch dimension.
        num_classes: C, columns of the logits.
        num_features: H, columns of the features.
        arguments: constructor arguments that rebuild this network.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    num_features: int
    arguments: dict[str, Any]
    is_pretrained: ClassVar[bool] = False  # whether its weights come from another dataset

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
        """Map images (B, *input_shape) to features (B, H) and logits (B, C)."""
        maps = self.extractor(images)
        return Outputs(features=maps.flatten(1), logits=self.classifier(maps))

    @property
    def plain(self) -> "Network":
        """The underlying network, without the heads or ensemble members that a method adds."""
        return self

    def reinitialized(self) -> "Network":
        """Build the same architecture with new initial weights."""
        return type(self)(**self.arguments)

    def initialize_from(self, inputs: Tensor) -> None:
        """Set weights from training inputs (B, *input_shape); `daedl.fit` calls it before the first step.

        Does nothing by default. Weights that were set or trained before must not change.
        """

    def named_modules_in(self, scope: Scope) -> Iterator[tuple[str, nn.Module]]:
        """Named modules of the whole network, or of the feature extractor only."""
        if scope == "all":
            yield from self.named_modules()
        else:
            yield from self.extractor.named_modules(prefix="extractor")


class FeatureModule(Network):
    """Wraps any module; its output is the logits, the output of a named submodule is the features.

    Arguments:
        module: maps a batch of images (B, *input_shape) to logits (B, C).
        features: dotted name of the submodule whose output, flattened to (B, H), is the features, as in
            `module.named_modules()`.
        input_shape: shape of one image, for example (3, 224, 224).
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
        """Map images (B, *input_shape) to features (B, H) and logits (B, C), in one pass."""
        caught: list[Tensor] = []
        thread = threading.get_ident()

        def catch(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
            # Several threads may predict at once: ignore other threads' passes. The output is cloned
            # because an in-place layer may follow.
            if threading.get_ident() == thread and isinstance(output, Tensor):
                caught.append(output.flatten(1).clone())

        hook = self.module.get_submodule(self.features_name).register_forward_hook(catch)
        try:
            logits = self.module(images)
        finally:
            hook.remove()
        if len(caught) != 1:
            raise ValueError(
                f"module {self.features_name!r} returned {len(caught)} tensors during the forward pass; "
                "expected one: name a submodule that runs once and returns a tensor"
            )
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            arrived = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(
                f"the wrapped module returned {arrived}; expected logits (batch, classes): wrap it in a "
                "module that returns only the logits"
            )
        return Outputs(features=caught[0], logits=logits)

    def reinitialized(self) -> "FeatureModule":
        """Copy the module and reset the parameters of all its layers."""
        new = copy.deepcopy(self)
        for name, module in new.named_modules():
            own = [*module.parameters(recurse=False)]
            if own and not hasattr(module, "reset_parameters"):
                raise ValueError(
                    f"layer {name!r} has no reset_parameters(), so its weights can't be reinitialised; "
                    "expected it on every layer with parameters: train the networks separately, and "
                    "join them with daedl.ensemble([...])"
                )
            if own:
                module.reset_parameters()
        return new

    def named_modules_in(self, scope: Scope) -> Iterator[tuple[str, nn.Module]]:
        """Named modules; with "features" only those registered up to and including `features`.

        The execution order of a module is unknown, so the order of registration is used.
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
    """Convert weights in place, by default to channels last, which is faster for convolutions on CPUs.

    Results are equal up to rounding. A `FeatureModule` is left unchanged, because its code may rely on
    contiguous tensors, as `view` does.
    """
    if not isinstance(network.plain, FeatureModule):
        network.to(memory_format=memory_format)  # type: ignore[call-overload]


def _probe(network: Network, input_shape: tuple[int, ...]) -> Outputs:
    """Outputs for one zero image, in eval mode so that running statistics don't change."""
    parameter = next(network.parameters())
    blank = torch.zeros((1, *input_shape), dtype=parameter.dtype, device=parameter.device)
    with evaluating(network), torch.no_grad():
        return network(blank)  # type: ignore[no-any-return]
