"""The families of corruptions, MNIST-C and CIFAR-10-C, read from corruptions.toml."""

from collections.abc import Callable, Mapping
from importlib.resources import files
from types import MappingProxyType

import msgspec

from daedl.names import look_up
from daedl_bench.corruptions import blur, digital, drawing, geometry, noise, spatter, tone, weather
from daedl_bench.corruptions.draws import Array

_MODULES = (noise, blur, weather, tone, geometry, digital, spatter, drawing)
# With `int`, as msgspec would convert counts to floats.
Number = bool | int | float


class Corruption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One corruption of a family; corruptions.toml explains the fields."""

    description: str
    parameters: dict[str, Number | tuple[Number, ...]]
    deviation: str = "None."
    not_monotonic: tuple[int, ...] = ()

    def at(self, severity: int) -> dict[str, Number]:
        """The keyword arguments of `function` for a severity from 1."""
        return {
            key: value[severity - 1] if isinstance(value, tuple) else value
            for key, value in self.parameters.items()
        }


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published set of corruptions, for images (channels, side, side)."""

    title: str
    reference: str
    channels: int
    side: int
    severities: int
    rounded: bool
    corruptions: dict[str, Corruption]
    name: str = ""

    def function(self, name: str) -> Callable[..., Array]:
        """(images (N, C, H, W) in [0, 1], draws, **parameters) -> images, not yet clipped."""
        look_up(self.corruptions, name, f"corruption of {self.title}")
        found: Callable[..., Array] = next(
            vars(module)[name] for module in _MODULES if name in vars(module)
        )
        return found


def _load() -> Mapping[str, Family]:
    content = files(__package__).joinpath("corruptions.toml").read_bytes()
    table = msgspec.toml.decode(content, type=dict[str, Family])
    return MappingProxyType(
        {name: msgspec.structs.replace(family, name=name) for name, family in table.items()}
    )


FAMILIES = _load()
