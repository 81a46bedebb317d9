"""Pretrained feature extractors from several sources, one adapter each; packages are imported when used."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from daedl.backbones.base import Body, Pretrained, Remembering, Source
from daedl.backbones.efficientnet_lite0 import NAME as LITE0
from daedl.backbones.efficientnet_lite0 import EfficientNetLite0
from daedl.backbones.sentence_encoders import MINILM, SentenceEncoders
from daedl.backbones.timm_models import Timm
from daedl.backbones.transformers_models import Transformers
from daedl.names import suggestion

# Names, and prefixes of names, with their adapters.
NAMED: Mapping[str, Source] = MappingProxyType(
    {LITE0: EfficientNetLite0(), MINILM: SentenceEncoders()}
)
PREFIXED: Mapping[str, Source] = MappingProxyType(
    {"timm": Timm(), "hf": Transformers(), "text": SentenceEncoders()}
)


def body(backbone: str, image_size: int | None, config: Mapping[str, Any]) -> Body:
    """Builds the architecture of a backbone with random weights, without network access."""
    source, name = _source(backbone)
    return source.body(name, image_size, config)


def pretrained(backbone: str, image_size: int | None = None) -> Pretrained:
    """Loads the published weights of a backbone and the preprocessing that they expect.

    Arguments:
        backbone: "efficientnet-lite0", "timm:NAME" or "hf:NAME_OR_FOLDER" for images; "all-minilm-l6-v2" or
            "text:FOLDER_OR_NAME" for texts.
        image_size: height and width of inputs; by default chosen by the adapter.
    """
    source, name = _source(backbone)
    return source.pretrained(name, image_size)


def takes_texts(backbone: str) -> bool:
    """Whether the inputs of a backbone are texts, not images."""
    source, _ = _source(backbone)
    return isinstance(source, SentenceEncoders)


def _source(backbone: Any) -> tuple[Source, str]:
    """Returns the adapter, and the name without its prefix."""
    if isinstance(backbone, str):
        if backbone in NAMED:
            return NAMED[backbone], backbone
        prefix, _, name = backbone.partition(":")
        if name and prefix in PREFIXED:
            return PREFIXED[prefix], name
    names = [*NAMED, *(f"{prefix}:NAME" for prefix in PREFIXED)]
    hint = suggestion(backbone, names)
    raise ValueError(f"backbone is {backbone!r}; expected one of {', '.join(names)}{hint}")


__all__ = [
    "NAMED",
    "PREFIXED",
    "Body",
    "Pretrained",
    "Remembering",
    "Source",
    "body",
    "pretrained",
    "takes_texts",
]
