"""`Network`: a sequence of named blocks, split into feature extractor and classifier."""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from daedl.checks import require_float
from daedl.inputs import Inputs, as_input
from daedl.networks.depths import chosen, constructor_arguments, pool
from daedl.outputs import Outputs, evaluating

Scope = Literal["all", "features"]
# Values of one input of a network that can be built from a file: 1182 x 1182 pixels in colour. A small file
# can describe any image size, and a ResNet18 for this one takes 1 GB (chosen).
MAX_INPUT = 2**22


class Network(nn.Module):
    """A sequence of named blocks; the pooled outputs of one or several of them are the feature vector.

    The paper's theorems hold for this feature map and a Gaussian density on it. Theorem 3, a softmax of
    temperature 1 / s, holds for every input. Theorems 1 and 4, a uniform prediction in the limit and
    growing uncertainty on the way, hold for inputs whose features move away from the training features:
    for several blocks it suffices that one part does. With `normalize_features` the density sees the
    direction of each part, which is bounded. Features c·f then have the same score for every c > 0, no
    feature is arbitrarily far away, and the score is small but not 0 in directions without training data.

    Attributes:
        input_shape: shape of one input, without batch dimension; () unless inputs are a tensor of one shape.
        num_classes: C, columns of the logits.
        num_features: H, columns of the features.
        parts: columns of the features per block.
        form: description of the first batch, see `daedl.inputs.form_of`, if there is no `input_shape`.
        arguments: constructor arguments that rebuild this network.
        since: arguments that were added after model files were written, with the values that rebuild
            these; `arguments` omits them at these values.
    """

    since: ClassVar[Mapping[str, Any]] = MappingProxyType({"pooling": "flatten"})
    input_shape: tuple[int, ...]
    num_classes: int
    num_features: int
    parts: tuple[int, ...] = ()
    form: str | None = None
    arguments: dict[str, Any]
    is_pretrained: bool = False  # whether its weights come from another dataset
    takes_embeddings: bool = False  # whether inputs are vectors of an encoder, or texts it encodes
    is_foreign: ClassVar[bool] = False  # whether it runs a user's code, without guarantees

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
        require_bounded(input_shape)
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
        self.parts = probe(self).parts
        self.num_features = sum(self.parts)

    def forward(self, images: Inputs) -> Outputs:
        """Map inputs, usually (B, *input_shape), to features (B, H) and logits (B, C)."""
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

    def blank(self) -> Inputs:
        """Zero input (B, *input_shape) to determine shapes: B = 0, for which a pass takes no memory.

        B = 1 for modules of other packages, which may not support an empty batch.
        """
        if self.plain is not self:
            return self.plain.blank()
        parameter, rows = next(self.parameters()), int(self.is_foreign or self.is_pretrained)
        shape = (rows, *self.input_shape)
        return torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)

    def conform(self, inputs: Inputs, where: str = "") -> Inputs:
        """Convert a user's batch without preprocessing to (B, *input_shape); raise for another form."""
        if self.plain is not self:
            return self.plain.conform(inputs, where)
        tensor = as_input(inputs, self.input_shape, where)
        require_float(tensor, where)
        return tensor

    def matches(self, data: Any) -> bool:
        """Whether `data` are inputs without labels although they may look like a pair with labels."""
        return self.plain is not self and self.plain.matches(data)

    def arrange(self, columns: Mapping[str, Any]) -> Inputs | None:
        """Return `columns` by name as inputs if these have several parts; None if they are one tensor."""
        return None if self.plain is self else self.plain.arrange(columns)

    def reinitialized(self) -> "Network":
        """Build the same architecture with new initial weights."""
        return type(self)(**self.arguments)

    def initialize_from(self, inputs: Tensor) -> None:
        """Set weights from training inputs (B, *input_shape); `daedl.fit` calls it before the first step.

        Does nothing by default. Weights that were set or trained before must not change.
        """

    def remembering(self) -> AbstractContextManager[None]:
        """Context of a training, in which outputs of frozen layers may be kept; by default none are."""
        return nullcontext() if self.plain is self else self.plain.remembering()

    def named_modules_in(self, scope: Scope) -> Iterator[tuple[str, nn.Module]]:
        """Named modules of the whole network, or of the feature extractor only."""
        if scope == "all":
            yield from self.named_modules()
        else:
            yield from self.extractor.named_modules(prefix="extractor")


def require_bounded(input_shape: Sequence[int]) -> None:
    """Raise if an input has more than `MAX_INPUT` values."""
    if math.prod(input_shape) > MAX_INPUT:
        raise ValueError(
            f"inputs have the shape {tuple(input_shape)}; expected at most {MAX_INPUT:,} values: choose a "
            "smaller size, or pass your own module to daedl.Classifier.from_module"
        )


def lay_out(network: Network, memory_format: torch.memory_format = torch.channels_last) -> None:
    """Convert weights in place, by default to channels last, which is faster for convolutions on CPUs.

    Results are equal up to rounding. Code of users is left unchanged, because it may rely on
    contiguous tensors, as `view` does.
    """
    if not network.plain.is_foreign:
        network.to(memory_format=memory_format)  # type: ignore[call-overload]


def probe(network: Network) -> Outputs:
    """Outputs for `network.blank()`, in eval mode so that running statistics don't change."""
    with evaluating(network), torch.no_grad():
        return network(network.blank())  # type: ignore[no-any-return]
