"""`Network`: a sequence of named blocks, split into feature extractor and classifier."""

import copy
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from daedl.networks.depths import Pooling, chosen, constructor_arguments, pool
from daedl.outputs import Outputs, evaluating

Scope = Literal["all", "features"]


class Network(nn.Module):
    """A sequence of named blocks; the pooled outputs of one or several of them are the feature vector.

    The paper's theorems hold for this feature map and a Gaussian density on it. Theorem 3, a softmax of
    temperature 1 / s, holds for every input. Theorems 1 and 4, a uniform prediction in the limit and
    growing uncertainty on the way, hold for inputs whose features move away from the training features:
    for several blocks it suffices that one part does. With `normalize_features` the density sees the
    direction of each part, which is bounded. Features c·f then have the same score for every c > 0, no
    feature is arbitrarily far away, and the score is small but not 0 in directions without training data.

    Attributes:
        input_shape: shape of one input, without batch dimension.
        num_classes: C, columns of the logits.
        num_features: H, columns of the features.
        parts: columns of the features per block.
        arguments: constructor arguments that rebuild this network.
        since: arguments that were added after model files were written, with the values that rebuild
            these; `arguments` omits them at these values.
    """

    since: ClassVar[Mapping[str, Any]] = MappingProxyType({"pooling": "flatten"})
    input_shape: tuple[int, ...]
    num_classes: int
    num_features: int
    parts: tuple[int, ...] = ()
    arguments: dict[str, Any]
    is_pretrained: ClassVar[bool] = False  # whether its weights come from another dataset

    def __init__(
        self,
        blocks: Mapping[str, nn.Module],
        input_shape: tuple[int, ...],
        depths: Sequence[str],
        arguments: Mapping[str, Any],
    ) -> None:
        """Build from blocks.

        Arguments:
            depths: blocks that `features=None` selects; `features="last"` selects the last of them.
            arguments: `locals()` of the subclass's constructor: `num_classes`, `features`, if it has it
                `pooling` (see `daedl.networks.depths`), and its own.
        """
        super().__init__()
        names = list(blocks)
        features, pooling = arguments["features"], arguments.get("pooling")
        self.depths, self.pooling = chosen(features, pooling, depths, names[:-1])
        cut = names.index(self.depths[-1]) + 1
        self.extractor = nn.Sequential(OrderedDict((name, blocks[name]) for name in names[:cut]))
        self.classifier = nn.Sequential(OrderedDict((name, blocks[name]) for name in names[cut:]))
        self.input_shape = input_shape
        self.num_classes = arguments["num_classes"]
        selected = self.depths[0] if len(self.depths) == 1 else list(self.depths)
        every = constructor_arguments(type(self), arguments)
        every |= {"features": selected, "pooling": self.pooling}
        added = self.since.items()
        self.arguments = {k: v for k, v in every.items() if (k, v) not in added}
        self.parts = _probe(self).parts
        self.num_features = sum(self.parts)

    def forward(self, images: Tensor) -> Outputs:
        """Map images (B, *input_shape) to features (B, H) and logits (B, C)."""
        maps, parts = images, []
        for name, block in self.extractor._modules.items():
            maps = block(maps)
            if name in self.depths:
                parts.append(pool(maps, self.pooling))
        outputs = Outputs.of_parts(parts, self.classifier(maps))
        return outputs._replace(parts=self.parts or outputs.parts)

    @property
    def plain(self) -> "Network":
        """The underlying network, without the heads or ensemble members that a method adds."""
        return self

    def blank(self) -> Tensor:
        """Zero input (B, *input_shape) to determine shapes: B = 0, for which a pass takes no memory.

        B = 1 for modules of other packages, which may not support an empty batch.
        """
        parameter, plain = next(self.parameters()), self.plain
        rows = int(isinstance(plain, FeatureModule) or plain.is_pretrained)
        shape = (rows, *self.input_shape)
        return torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)

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
    """Wraps any module; its output is the logits, outputs of named submodules are the features.

    Arguments:
        module: maps a batch of images (B, *input_shape) to logits (B, C).
        features: dotted names of one or several submodules, as in `module.named_modules()`. Their outputs
            (B, C, ...) are pooled to vectors, and joined in the order of the forward pass.
        input_shape: shape of one image, for example (3, 224, 224).
        pooling: "flatten"; or over all positions of each channel "mean", or "mean-std", the mean and the
            standard deviation.
    """

    def __init__(
        self,
        module: nn.Module,
        features: str | Sequence[str],
        input_shape: tuple[int, ...],
        pooling: Pooling = "flatten",
    ) -> None:
        nn.Module.__init__(self)
        names = [name for name, _ in module.named_modules()]
        self.depths, self.pooling = chosen(features, pooling, (), names)
        self.module = module
        self.input_shape = tuple(input_shape)
        selected = self.depths[0] if len(self.depths) == 1 else list(self.depths)
        self.arguments = {"features": selected, "input_shape": list(input_shape)}
        if pooling != self.since["pooling"]:
            self.arguments["pooling"] = pooling
        probe = _probe(self)
        self.parts, self.num_classes = probe.parts, probe.logits.shape[1]
        self.num_features = sum(self.parts)

    def forward(self, images: Tensor) -> Outputs:
        """Map images (B, *input_shape) to features (B, H) and logits (B, C), in one pass."""
        caught: list[tuple[str, Tensor]] = []
        hooks = [self._catch(name, caught) for name in self.depths]
        try:
            logits = self.module(images)
        finally:
            for hook in hooks:
                hook.remove()
        names = [name for name, _ in caught]
        for name in self.depths:
            if names.count(name) != 1:
                raise ValueError(
                    f"module {name!r} returned {names.count(name)} tensors during the forward pass; "
                    "expected one: name a submodule that runs once and returns a tensor"
                )
        if not isinstance(logits, Tensor) or logits.ndim != 2:
            arrived = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(
                f"the wrapped module returned {arrived}; expected logits (batch, classes): wrap it in a "
                "module that returns only the logits"
            )
        return Outputs.of_parts([part for _, part in caught], logits)

    def _catch(self, name: str, caught: list[tuple[str, Tensor]]) -> RemovableHandle:
        """Append the pooled output of the submodule `name` to `caught` whenever it runs."""
        thread = threading.get_ident()

        def catch(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
            # Several threads may predict at once: ignore other threads' passes. The output is cloned
            # because an in-place layer may follow.
            if threading.get_ident() == thread and isinstance(output, Tensor):
                caught.append((name, pool(output, self.pooling).clone()))

        return self.module.get_submodule(name).register_forward_hook(catch)

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
        """Named modules; with "features" only those registered up to the last module of `features`.

        The execution order of a module is unknown, so the order of registration is used.
        """
        ends = {f"module.{name}" for name in self.depths}
        seen: set[str] = set()
        for name, module in self.named_modules():
            inside = {end for end in ends if name == end or name.startswith(f"{end}.")}
            if scope == "features" and seen == ends and not inside:
                return
            seen |= inside
            yield name, module


def lay_out(network: Network, memory_format: torch.memory_format = torch.channels_last) -> None:
    """Convert weights in place, by default to channels last, which is faster for convolutions on CPUs.

    Results are equal up to rounding. A `FeatureModule` is left unchanged, because its code may rely on
    contiguous tensors, as `view` does.
    """
    if not isinstance(network.plain, FeatureModule):
        network.to(memory_format=memory_format)  # type: ignore[call-overload]


def _probe(network: Network) -> Outputs:
    """Outputs for `network.blank()`, in eval mode so that running statistics don't change."""
    with evaluating(network), torch.no_grad():
        return network(network.blank())  # type: ignore[no-any-return]
