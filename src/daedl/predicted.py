"""`Predicted`: the base class of predictions of classes and of numbers."""

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from numpy.typing import NDArray
from torch import Tensor

from daedl.checks import import_optional
from daedl.selective import Thresholds, accepts

if TYPE_CHECKING:
    import pandas

UNLIKE = "unlike the training data"


@dataclass(frozen=True, eq=False)
class Predicted(ABC):
    """Predictions for B inputs: a record of tensors whose first axis is B, with thresholds.

    `p[i]`, `p[2:5]` and `p[mask]` select inputs; `p.to(...)` moves all tensors.
    """

    if TYPE_CHECKING:  # fields of the subclasses

        @property
        def aleatoric(self) -> Tensor: ...
        @property
        def epistemic(self) -> Tensor | None: ...
        @property
        def log_density(self) -> Tensor | None: ...
        @property
        def thresholds(self) -> Thresholds | None: ...

    def scores(self) -> dict[str, Tensor]:
        """Returns the method's uncertainty scores by name, each (B,); larger = more uncertain."""
        scores = {"aleatoric": self.joint(self.aleatoric)}
        if self.epistemic is not None:
            scores["epistemic"] = self.joint(self.epistemic)
        if self.log_density is not None:
            scores["density"] = -self.log_density
        return scores

    def joint(self, uncertainties: Tensor) -> Tensor:
        """One value (B,) per input."""
        return uncertainties

    @abstractmethod
    def columns(self) -> dict[str, Tensor]:
        """Returns the tensors that the method provides, by their public names."""

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Returns one JSON-able record per input."""

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Concatenates predictions of consecutive batches."""
        if not parts:
            raise ValueError("no predictions to concatenate; expected at least one")
        joined: dict[str, Any] = {}
        for field in fields(cls):
            values = [getattr(part, field.name) for part in parts]
            tensors = isinstance(values[0], Tensor)
            joined[field.name] = torch.cat(values) if tensors else values[0]
        return cls(**joined)

    def __len__(self) -> int:
        return len(self.aleatoric)

    def __getitem__(self, index: Any) -> Self:
        """Selects inputs by an index, a slice, a mask (B,) or indices; the batch axis is kept."""
        axes = getattr(index, "ndim", 0)  # of an array or tensor
        if axes == 0 and hasattr(index, "__index__"):
            # Resolves negative indices, or raises IndexError.
            index = range(len(self))[operator.index(index)]
            index = slice(index, index + 1)
        elif axes != 1 and not isinstance(index, slice | list | range):
            arrived = f"a {type(index).__name__}" + (f" with {axes} axes" if axes else "")
            raise TypeError(
                f"the index is {arrived}; expected an integer, a slice, a mask (B,), or a list or tensor of "
                "indices, which select inputs: index a tensor of the prediction, such as p.probs, instead"
            )
        return self._map(lambda tensor: tensor[index])

    def __eq__(self, other: object) -> bool:
        """Returns whether all tensors, thresholds and names are equal."""
        if not isinstance(other, type(self)):
            return NotImplemented
        return all(
            _equal(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)
        )

    __hash__ = None  # type: ignore[assignment]

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Moves or converts all tensors, like `Tensor.to`; labels remain integers."""

        def convert(tensor: Tensor) -> Tensor:
            converted = tensor.to(*args, **kwargs)
            return converted if tensor.is_floating_point() else converted.to(tensor.dtype)

        return self._map(convert)

    def _map(self, change: Callable[[Tensor], Any]) -> Self:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        tensors = {name: change(each) for name, each in values.items() if isinstance(each, Tensor)}
        return replace(self, **tensors)

    def limited(self, thresholds: Thresholds | None) -> Self:
        """Returns this prediction with these thresholds."""
        return replace(self, thresholds=thresholds)  # type: ignore[call-arg]

    def numpy(self) -> dict[str, NDArray[Any]]:
        """Returns `columns()` as NumPy arrays."""
        return {name: tensor.cpu().numpy() for name, tensor in self.columns().items()}

    def to_frame(self) -> "pandas.DataFrame":
        """Returns one row per input, with one column `probs.<class>` per class; needs pandas."""
        pandas = import_optional("pandas", "to_frame()", "pandas")
        return pandas.json_normalize(self.records())  # type: ignore[no-any-return]

    @property
    def accept(self) -> Tensor:
        """Whether each prediction (B,) is within the thresholds."""
        return accepts(self._limits, self.scores())

    def _exceeded(self, *names: str) -> list[bool]:
        """Whether one of these scores exceeds its limit; those without a limit exceed none."""
        limits = {name: limit for name, limit in self._limits.items() if name in names}
        return (~accepts(limits, self.scores())).tolist() if limits else [False] * len(self)

    @property
    def _limits(self) -> Mapping[str, float]:
        if self.thresholds is None:
            raise ValueError(
                "the prediction has no thresholds; expected a calibrated classifier: call "
                "model.calibrate(loader, target=...) with held-out data first"
            )
        return self.thresholds.limits


def finite_list(values: Tensor) -> list[float | None]:
    """The values (B,), with None for NaN and infinity, which JSON does not have."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)
