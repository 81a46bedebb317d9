"""Networks whose forward pass returns features and logits; `NETWORKS` maps names to classes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from daedl.names import look_up, subclasses_in
from daedl.networks.backbone import Backbone
from daedl.networks.base import Network, lay_out
from daedl.networks.convnet import ConvNet
from daedl.networks.feature_head import FeatureHead
from daedl.networks.feature_module import FeatureModule
from daedl.networks.headed import Headed, Members
from daedl.networks.mlp import MLP
from daedl.networks.resnet import ResNet18
from daedl.networks.vgg import VGG16
from daedl.networks.whitennet import WhitenNet

# Networks around other modules can't be built from a name and JSON arguments.
_WRAPPERS = (FeatureModule, Headed, Members)
# Every other network in a module of this package: a new file needs no entry here.
NETWORKS: Mapping[str, type[Network]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in subclasses_in(__name__, __path__, Network)
        if kind not in _WRAPPERS
    }
)


def build(name: str, **arguments: Any) -> Network:
    """Build a network by its name in `NETWORKS`."""
    return look_up(NETWORKS, name, "network")(**arguments)


__all__ = [
    "MLP",
    "NETWORKS",
    "VGG16",
    "Backbone",
    "ConvNet",
    "FeatureHead",
    "FeatureModule",
    "Headed",
    "Members",
    "Network",
    "ResNet18",
    "WhitenNet",
    "build",
    "lay_out",
]
