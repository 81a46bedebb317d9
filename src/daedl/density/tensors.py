"""Tensors that a density stores of the statistics of its samples.

Of each symmetric matrix one triangle is stored: with a backbone it is most of the model file. Statistics with
low-rank parts per class are compact: 51 MB for 1,000 classes of 2,048 features instead of 105. Of many
classes, means and sketches are rounded to float32; the scatter, whose inverse is needed, remains float64;
directions, which are signs, are bits.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from daedl.density.statistics import ClassStatistics, Structure

# Means and sketches with more values are rounded to float32 (chosen).
_EXACT_VALUES = 2**20


def as_stored(statistics: ClassStatistics) -> ClassStatistics:
    """Statistics as a density stores them, so that it has the same values before and after saving."""
    means, sketch = statistics.means, statistics.sketch
    if sketch is None or means.numel() + sketch.numel() <= _EXACT_VALUES:
        return statistics
    return replace(statistics, means=means.float().double(), sketch=sketch.float().double())


def stored(statistics: ClassStatistics) -> dict[str, Tensor]:
    """Tensors to store, by name."""
    tensors = {name: getattr(statistics, name) for name in ("counts", "means", "scatter")}
    if statistics.structure != "diagonal":
        tensors["scatter"] = _packed(statistics.scatter)
    if statistics.directions is None or statistics.sketch is None:
        return tensors
    bits = np.packbits(statistics.directions.numpy() > 0, axis=-1)
    return tensors | {
        "means": _shortest(statistics.means),
        "directions": torch.from_numpy(bits),
        "sketch": _shortest(statistics.sketch),
    }


def restored(
    tensors: Mapping[str, Tensor], structure: Structure, normalized: bool, parts: tuple[int, ...]
) -> ClassStatistics:
    """Statistics from `stored` tensors, or from those of earlier versions, which have whole matrices."""
    counts, means, scatter = (tensors[name] for name in ("counts", "means", "scatter"))
    width, directions, sketch = means.shape[1], None, None
    if structure != "diagonal" and scatter.ndim == (2 if structure in ("full", "block") else 1):
        scatter = _unpacked(scatter, width)
    if structure == "tied-low-rank":
        means, sketch = means.double(), tensors["sketch"].double()
        bits = np.unpackbits(tensors["directions"].numpy(), axis=-1, count=width)
        directions = torch.from_numpy(bits).to(torch.int8) * 2 - 1
    return ClassStatistics(counts, means, scatter, structure, normalized, parts, directions, sketch)


def _packed(matrices: Tensor) -> Tensor:
    """Lower triangles (..., H (H + 1) / 2) of symmetric matrices (..., H, H), row by row."""
    rows, columns = torch.tril_indices(*matrices.shape[-2:])
    return matrices[..., rows, columns]


def _unpacked(triangles: Tensor, width: int) -> Tensor:
    """Symmetric matrices (..., H, H) with H = `width` of lower triangles (..., H (H + 1) / 2)."""
    expected = width * (width + 1) // 2
    if triangles.shape[-1] != expected:  # before memory is allocated for the matrices
        raise ValueError(
            f"triangles have {triangles.shape[-1]} values; expected {expected} for {width} features: pass "
            "the tensors of one density"
        )
    rows, columns = torch.tril_indices(width, width)
    matrices = triangles.new_empty(*triangles.shape[:-1], width, width)
    matrices[..., rows, columns] = triangles
    matrices[..., columns, rows] = triangles
    return matrices


def _shortest(values: Tensor) -> Tensor:
    """Values in float32 if that represents them exactly."""
    single = values.float()
    return single if torch.equal(single.double(), values) else values
