"""Networks whose forward gives features and logits together, and the table to build them by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from daedl.names import look_up
from daedl.networks.base import FeatureModule, Network, lay_out
from daedl.networks.convnet import ConvNet
from daedl.networks.headed import Headed, Members
from daedl.networks.mlp import MLP
from daedl.networks.resnet import ResNet18
from daedl.networks.vgg import VGG16
from daedl.networks.whitennet import WhitenNet

NETWORKS: Mapping[str, type[Network]] = MappingProxyType(
    {"MLP": MLP, "ConvNet": ConvNet, "VGG16": VGG16, "ResNet18": ResNet18, "WhitenNet": WhitenNet}
)


def build(name: str, **arguments: Any) -> Network:
    """Build a network by its name in `NETWORKS`."""
    return look_up(NETWORKS, name, "network")(**arguments)


__all__ = [
    "MLP",
    "NETWORKS",
    "VGG16",
    "ConvNet",
    "FeatureModule",
    "Headed",
    "Members",
    "Network",
    "ResNet18",
    "WhitenNet",
    "build",
    "lay_out",
]
