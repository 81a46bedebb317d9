"""A pretrained backbone with a head of dense layers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from daedl import backbones
from daedl.backbones import Pretrained, Remembering
from daedl.checks import require_sizes
from daedl.inputs import Inputs, convert, form_of, require_form
from daedl.names import look_up
from daedl.networks.base import Network, Scope, require_bounded
from daedl.networks.depths import Features, Pooling
from daedl.networks.feature_head import FeatureHead
from daedl.networks.mlp import dense_blocks


class Backbone(Network):
    """Blocks of a backbone of `daedl.backbones`, then dense1, dense2, ..., logits.

    Built with random weights; `load_pretrained` sets the published ones.
    Frozen blocks have no gradients and stay in eval mode. BatchNorm stays in eval mode in every block of
    the backbone: statistics of a small dataset would replace those of the published training.

    Arguments:
        backbone: "efficientnet-lite0", "timm:NAME" or "hf:NAME".
        num_classes: C.
        image_size: image height and width; None for texts.
        hidden: widths of the dense layers between features and logits.
        features: block, or several, whose pooled outputs are the features: by default `Body.depths` and the
            last one of the backbone, which is what the head sees; with "last" the last one alone. A dense
            layer of the head is possible too.
        pooling: see `daedl.networks.depths.pool`.
        trained_from: first block of the backbone, or module in a block, that is trained; None freezes all.
        config: settings of the architecture; see `daedl.backbones.Pretrained`.
    """

    is_pretrained = True

    def __init__(
        self,
        backbone: str,
        num_classes: int,
        image_size: int | None,
        hidden: Sequence[int] = (),
        features: Features = None,
        trained_from: str | None = None,
        config: Mapping[str, Any] | None = None,
        pooling: Pooling | None = None,
    ) -> None:
        require_sizes(
            hidden, num_classes=num_classes, image_size=1 if image_size is None else image_size
        )
        config = config or {}
        shape = () if image_size is None else (3, image_size, image_size)
        require_bounded(shape)  # before a pass for the width
        body = backbones.body(backbone, image_size, config)
        self.backbone_names = tuple(body.blocks)
        self.finetuned, self.one, self.takes_embeddings = (
            body.finetuned,
            body.blank,
            body.blank is not None,
        )
        self.width = _width(body.blocks, torch.zeros(1, *shape) if self.one is None else self.one)
        blocks = {**body.blocks, **dense_blocks(self.width, hidden, num_classes)}
        depths = (*body.depths, self.backbone_names[-1])
        super().__init__(blocks, shape, depths, locals())
        self.freeze(trained_from)

    def backbone_blocks(self) -> Iterator[tuple[str, nn.Module]]:
        """Names and modules of the backbone's blocks, in order."""
        blocks = {**dict(self.extractor.named_children()), **dict(self.classifier.named_children())}
        return ((name, blocks[name]) for name in self.backbone_names)

    def freeze(self, trained_from: str | None = None) -> None:
        """Freezes the blocks of the backbone before `trained_from`; all of them for None."""
        if trained_from is not None and trained_from not in dict(self._backbone_modules()):
            look_up({name: name for name in self.backbone_names}, trained_from, "backbone block")
        self.arguments = {**self.arguments, "trained_from": trained_from}
        for module, frozen in self._frozen():
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(not frozen)
        self.train(self.training)

    def train(self, mode: bool = True) -> "Backbone":
        """Sets training mode, except for frozen blocks and the backbone's BatchNorm."""
        super().train(mode)
        for module, frozen in self._frozen():
            if frozen or isinstance(module, _BatchNorm):
                module.training = False
        return self

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Keeps outputs of frozen layers of the blocks that can."""
        with ExitStack() as stack:
            for _, block in self.backbone_blocks():
                if isinstance(block, Remembering):
                    stack.enter_context(block.remembering())
            yield

    def blank(self) -> Inputs:
        """One input, of zeros if it is an image."""
        if self.one is None:
            return super().blank()
        device = next(self.parameters()).device
        return convert(self.one, lambda part: part.to(device))

    def conform(self, inputs: Inputs, where: str = "") -> Inputs:
        """Convert a user's batch; token ids and masks need no preprocessing."""
        if self.one is None:
            return super().conform(inputs, where)
        require_form(inputs, form_of(self.one), where)
        return convert(inputs, torch.as_tensor)

    def encode(self, inputs: Inputs) -> Tensor:
        """Inputs of `head`: features (B, H) of the frozen backbone."""
        if self._sees_head:
            for _, block in self.backbone_blocks():
                inputs = block(inputs)
            return inputs.flatten(1)  # type: ignore[no-any-return]
        return self(inputs).features  # type: ignore[no-any-return]

    @property
    def encoded(self) -> int:
        """Number of columns that `encode` returns."""
        return self.width if self._sees_head else self.num_features

    @property
    def _sees_head(self) -> bool:
        """Whether the features are outputs of the head's layers alone."""
        return not set(self.depths) & set(self.backbone_names)

    def load_pretrained(self, pretrained: Pretrained) -> None:
        """Sets the weights of the backbone's blocks."""
        for name, block in self.backbone_blocks():
            prefix = f"{name}."
            own = {
                k.removeprefix(prefix): v
                for k, v in pretrained.weights.items()
                if k.startswith(prefix)
            }
            block.load_state_dict(own)

    def head(self) -> FeatureHead:
        """Builds a head for the features of the frozen backbone, with parameter names as here."""
        first, last = self.arguments["trained_from"], self.backbone_names[-1]
        hidden = self.arguments["hidden"]
        if self._sees_head and first is None:
            return FeatureHead(self.width, self.num_classes, hidden, list(self.depths))
        if self.depths[-1] != last or first is not None:
            raise ValueError(
                f"the features are outputs of {', '.join(self.depths)} and the backbone is trained from "
                f"block {first!r}; expected a frozen backbone and features that end with its last block "
                f"{last!r}, which the head sees: train this network with daedl.fit"
            )
        parts = self.parts if len(self.parts) > 1 else ()
        return FeatureHead(self.num_features, self.num_classes, hidden, parts=parts)

    def reinitialized(self) -> "Backbone":
        """Builds the same backbone with the same weights, and a head with new ones."""
        new = type(self)(**self.arguments)
        for (_, block), (_, own) in zip(new.backbone_blocks(), self.backbone_blocks(), strict=True):
            block.load_state_dict(own.state_dict())
        return new

    def named_modules_in(self, scope: Scope) -> Iterator[tuple[str, nn.Module]]:
        """Named modules of the head: spectral normalisation would change what pretraining learned."""
        for name, module in super().named_modules_in(scope):
            block = name.split(".")[1:2]
            if not block or block[0] not in self.backbone_names:
                yield name, module

    def _backbone_modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Dotted names and modules of the blocks and everything in them, in order."""
        for name, block in self.backbone_blocks():
            yield from block.named_modules(prefix=name)

    def _frozen(self) -> Iterator[tuple[nn.Module, bool]]:
        """Every module of the backbone, and whether it comes before the first trained one."""
        frozen, first = True, self.arguments["trained_from"]
        for name, module in self._backbone_modules():
            frozen = frozen and name != first
            yield module, frozen


def _width(blocks: Mapping[str, nn.Module], maps: Inputs) -> int:
    """Number of features that the last block returns for the input `maps`."""
    with torch.no_grad():
        for block in blocks.values():
            block.eval()
            maps = block(maps)
    if not isinstance(maps, Tensor) or maps.ndim != 2:
        raise ValueError(
            f"the backbone returned {tuple(getattr(maps, 'shape', ()))} for one input; expected features "
            "(1, H): choose an image model with pooled outputs"
        )
    return maps.shape[1]
