"""What a corruption is: a function of images and random draws, with its published parameters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from daedl_bench.corruptions.draws import Array


@dataclass(frozen=True)
class Corruption:
    """One corruption of a family; each module lists its own as `CORRUPTIONS`.

    Attributes:
        family: "mnist-c" or "cifar10-c".
        function: (images (N, C, H, W) in [0, 1], draws, **parameters) -> images, not yet clipped; its name
            is the name of the corruption.
        description: what the result looks like.
        parameters: keyword arguments of `function`: one value per severity, or one for all.
        deviation: from the published definition.
        no_farther: severities whose published parameters do not increase the mean absolute difference
            from the clean images over the previous severity.
    """

    family: str
    function: Callable[..., Array]
    description: str
    parameters: Mapping[str, float | tuple[float, ...]]
    deviation: str = "None."
    no_farther: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name of the corruption in the published dataset."""
        return self.function.__name__

    def at(self, severity: int) -> dict[str, float]:
        """The keyword arguments of `function` for a severity from 1."""
        return {
            key: value[severity - 1] if isinstance(value, tuple) else value
            for key, value in self.parameters.items()
        }
