"""Writes exported classifiers to files, after comparing their outputs with PyTorch."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from daedl.export import onnx_file
from daedl.export.graph import BATCH, INPUT, quiet_tracing, random_images, to_torch_export
from daedl.model import Model
from daedl.names import names_or_numbers
from daedl.storage import expand_user, write_atomically

TOLERANCE = 1e-4  # of outputs against PyTorch, see `max_difference` (chosen)
# Number of random images compared before writing (chosen: takes a fraction of a second).
CHECKED = 16


@dataclass(frozen=True)
class ExportedFile:
    """An exported file.

    Attributes:
        path: path of the file.
        inputs, outputs: types and shapes by name.
        opset: ONNX opset; None for torch.export.
        size: size in bytes.
        difference: largest difference to PyTorch on random images; see `max_difference`.
    """

    path: Path
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    opset: int | None
    size: int
    difference: float

    def __str__(self) -> str:
        kind = "torch.export" if self.opset is None else f"ONNX, opset {self.opset}"
        width = max(map(len, (*self.inputs, *self.outputs)))
        lines = [f"{self.path}: {kind}, {self.size / 1e6:,.2f} MB"]
        for head, tensors in (("in", self.inputs), ("out", self.outputs)):
            lines += [f"  {head:3}  {name:{width}}  {text}" for name, text in tensors.items()]
        lines.append(
            f"largest difference to PyTorch on {CHECKED} random images: {self.difference:.1e}"
        )
        return "\n".join(lines)


def to_onnx(
    model: Model[Any],
    path: str | Path,
    *,
    tolerance: float = TOLERANCE,
) -> ExportedFile:
    """Writes the classifier as one ONNX file that uses operators of the default domain only.

    The input is "images" (batch, *input_shape), 8-bit pixels, or floats for a classifier without
    preprocessing; the outputs are those of `Prediction.columns`. The file is run in onnxruntime on random
    images and written only if its outputs agree with PyTorch.

    Arguments:
        path: path of the file; an existing file is replaced atomically.
        tolerance: largest difference to PyTorch; see `max_difference`.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):  # fails before the slow steps
        onnx_file.import_package(package)
    program = to_torch_export(model)
    onnx_file.require_size_limit(program)
    names, text = list(_example(model)), json.dumps(description(model), sort_keys=True)
    data = onnx_file.to_bytes(program, names, text)
    difference = _require_parity(model, partial(onnx_file.run, data, names), tolerance)
    return _write(model, path, data, onnx_file.OPSET, difference)


def to_pt2(
    model: Model[Any],
    path: str | Path,
    *,
    tolerance: float = TOLERANCE,
) -> ExportedFile:
    """Writes the classifier in the format of `torch.export.load`; arguments as for `to_onnx`.

    The description is in the extra file "daedl.json".
    """
    program, buffer = to_torch_export(model), io.BytesIO()
    text = json.dumps(description(model), sort_keys=True)
    with quiet_tracing():
        torch.export.save(program, buffer, extra_files={"daedl.json": text})
        buffer.seek(0)
        run = torch.export.load(buffer).module()
    difference = _require_parity(model, run, tolerance)
    return _write(model, path, buffer.getvalue(), None, difference)


def description(model: Model[Any]) -> dict[str, Any]:
    """Returns the JSON-able metadata of a graph, stored under the key "daedl" in ONNX files.

    Classes without names are named by their number.
    """
    network = model.network
    return {
        "version": version("daedl"),
        "network": type(network.plain).__name__,
        "method": {"name": model.method.name, "arguments": model.method.arguments()},
        **_names(model),
        "thresholds": None if model.thresholds is None else model.thresholds.settings(),
        "input": {
            "name": INPUT,
            "shape": [BATCH, *network.input_shape],
            "dtype": _dtype(random_images(model, 1)),
        },
        "preprocess": None if model.preprocess is None else model.preprocess.settings(),
    }


def _names(model: Model[Any]) -> dict[str, Any]:
    """Names of the classes, or of the columns of a table."""
    if model.scaling is None:
        return {"class_names": names_or_numbers(model.class_names, model.network.num_classes)}
    targets, features = model.scaling.targets, model.scaling.features
    return {"target_names": targets.names, "feature_names": features and features.names}


def max_difference(expected: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> float:
    """Returns the largest |a − b| / max(1, |a|) over all outputs: absolute up to 1, relative above.

    Labels and decisions are compared as numbers. NaN if either side contains NaN.
    """
    largest = torch.zeros((), dtype=torch.float64)
    for name, tensor in expected.items():
        a, b = tensor.cpu().double(), outputs[name].double()
        difference = torch.where(a == b, 0.0, (a - b).abs() / a.abs().clamp_min(1))  # ∞ equals ∞
        largest = torch.maximum(largest, difference.max())
    return float(largest)


def _require_parity(
    model: Model[Any],
    run: Callable[[Tensor], Mapping[str, Tensor]],
    tolerance: float,
) -> float:
    """Returns the largest difference of `run` to the classifier; raises if it exceeds `tolerance`."""
    images = random_images(model, CHECKED)
    difference = max_difference(model.predict(images).columns(), run(images))
    if not difference <= tolerance:  # also true for NaN
        raise ValueError(
            f"the exported graph differs from PyTorch by {difference:.1e} on {CHECKED} random images; "
            f"expected at most {tolerance:.0e}, so no file was written: increase `tolerance`"
        )
    return difference


def _write(
    model: Model[Any], path: str | Path, data: bytes, opset: int | None, difference: float
) -> ExportedFile:
    """Writes `data` to `path` and describes the file."""
    target = expand_user(path)
    write_atomically(target, data)
    inputs = {INPUT: _signature(random_images(model, 1))}
    outputs = {name: _signature(tensor) for name, tensor in _example(model).items()}
    return ExportedFile(target, inputs, outputs, opset, len(data), difference)


def _example(model: Model[Any]) -> dict[str, Tensor]:
    """Returns the outputs for one image."""
    columns: dict[str, Tensor] = model.predict(random_images(model, 1)).columns()
    return columns


def _signature(tensor: Tensor) -> str:
    sizes = ", ".join(map(str, (BATCH, *tensor.shape[1:])))
    return f"{_dtype(tensor)} ({sizes})"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
