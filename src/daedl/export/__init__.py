"""Exports a classifier, from images to predictions, as one ONNX or `torch.export` graph."""

from daedl.export.files import (
    TOLERANCE,
    ExportedFile,
    description,
    max_difference,
    to_onnx,
    to_pt2,
)
from daedl.export.graph import to_torch_export

__all__ = [
    "TOLERANCE",
    "ExportedFile",
    "description",
    "max_difference",
    "to_onnx",
    "to_pt2",
    "to_torch_export",
]
