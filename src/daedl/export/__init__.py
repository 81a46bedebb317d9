"""One graph from images to predictions, for ONNX runtimes and for `torch.export`."""

from daedl.export.files import (
    TOLERANCE,
    Written,
    description,
    difference,
    to_onnx,
    to_pt2,
)
from daedl.export.graph import to_torch_export

__all__ = [
    "TOLERANCE",
    "Written",
    "description",
    "difference",
    "to_onnx",
    "to_pt2",
    "to_torch_export",
]
