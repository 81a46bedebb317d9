"""The families of corruptions, MNIST-C and CIFAR-10-C, assembled from the modules."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from daedl_bench.corruptions import blur, digital, drawing, geometry, noise, spatter, tone, weather
from daedl_bench.corruptions.corruption import Corruption

_MODULES = (noise, blur, weather, tone, geometry, digital, spatter, drawing)


@dataclass(frozen=True)
class Family:
    """A published set of corruptions, for images (channels, side, side).

    Attributes:
        name: of the dataset.
        severities: the number of published severities, from 1.
        rounded: to the nearest of 256 levels; otherwise down, as in the published code of CIFAR-10-C.
    """

    name: str
    title: str
    reference: str
    channels: int
    side: int
    severities: int
    rounded: bool

    @property
    def corruptions(self) -> Mapping[str, Corruption]:
        """The corruptions by name."""
        entries = (each for module in _MODULES for each in module.CORRUPTIONS)
        return {each.name: each for each in entries if each.family == self.name}


MNIST_C = Family(
    name="mnist-c",
    title="MNIST-C",
    reference="Mu and Gilmer, 2019, arXiv:1906.02337",
    channels=1,
    side=28,
    severities=1,
    rounded=True,
)
CIFAR10_C = Family(
    name="cifar10-c",
    title="CIFAR-10-C",
    reference="Hendrycks and Dietterich, 2019, arXiv:1903.12261",
    channels=3,
    side=32,
    severities=5,
    rounded=False,
)
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {family.name: family for family in (MNIST_C, CIFAR10_C)}
)
