"""Architectures of the package transformers in model files, which are untrusted input."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import nn

# Settings that networks without a classification head don't need: names of labels, which take memory, a
# path of the machine, and code on a hub.
UNUSED = ("num_labels", "id2label", "label2id", "_name_or_path", "auto_map")
# No code is downloaded: `kernels` and classes of a hub may be named in a configuration.
LOCAL = MappingProxyType(
    {"trust_remote_code": False, "attn_implementation": None, "experts_implementation": None}
)


def settings_of(model: Any) -> dict[str, Any]:
    """Returns the configuration of `model` for model files."""
    return _used(json.loads(model.config.to_json_string(use_diff=False)))


def build(package: Any, config: Mapping[str, Any]) -> nn.Module:
    """Builds an architecture with random weights, without network access.

    Architectures with others as parts, and those of timm, may load the weights of these parts.
    """
    name = str(config.get("model_type"))
    known = package.CONFIG_MAPPING
    composed = name in known and known[name].sub_configs
    if name not in known or composed or name.startswith("timm"):
        raise ValueError(
            f"the architecture is {name!r}; expected one of transformers that has no other one as a part, "
            "such as 'bert' or 'vit'"
        )
    try:
        settings = package.AutoConfig.for_model(**_used(config))
        built: nn.Module = package.AutoModel.from_config(settings, **LOCAL)
    except ImportError as error:
        raise ValueError(
            f"the architecture {name!r} needs another package ({error}); expected one that transformers "
            "contains"
        ) from error
    return built


def _used(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in UNUSED}
