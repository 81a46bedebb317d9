"""Files of an exported classifier, each compared with PyTorch before it is written."""

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

from daedl.classifier import Classifier
from daedl.export import onnx_file
from daedl.export.graph import (
    BATCH,
    INPUT,
    random_images,
    to_torch_export,
    undisturbed,
)
from daedl.storage import expanded, write_atomically

TOLERANCE = 1e-4  # between PyTorch and what was exported; see `difference`
# Images that the check before writing looks at (chosen: it takes a fraction of a second).
CHECKED = 16


@dataclass(frozen=True)
class Written:
    """What was exported: names, types and shapes, and how far it is from PyTorch on random images.

    `opset` is that of an ONNX file, `size` in bytes, `difference` as `difference` has it.
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
    model: Classifier,
    path: str | Path,
    *,
    tolerance: float = TOLERANCE,
) -> Written:
    """Write the classifier as one ONNX file, with operators of the default set alone.

    Its input is "images" (batch, *input_shape), 8-bit pixels, or prepared floats for a classifier without
    preprocessing; its outputs are those of `Prediction.columns`. The file is tried in
    onnxruntime on random images before it is written, so that a bad one never is.

    Arguments:
        path: of the file; one that is there is replaced, once the new one is whole.
        tolerance: the largest `difference` to PyTorch.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):  # before time is spent
        onnx_file.optional(package)
    program = to_torch_export(model)
    onnx_file.require_room(program)
    names, text = list(_example(model)), json.dumps(description(model), sort_keys=True)
    data = onnx_file.translated(program, names, text)
    worst = _require_parity(model, partial(onnx_file.run, data, names), tolerance)
    return _write(model, path, data, onnx_file.OPSET, worst)


def to_pt2(
    model: Classifier,
    path: str | Path,
    *,
    tolerance: float = TOLERANCE,
) -> Written:
    """Write the classifier as `torch.export.load` reads it; arguments as those of `to_onnx`.

    The description is in the extra file "daedl.json".
    """
    program, buffer = to_torch_export(model), io.BytesIO()
    text = json.dumps(description(model), sort_keys=True)
    with undisturbed():
        torch.export.save(program, buffer, extra_files={"daedl.json": text})
        buffer.seek(0)
        run = torch.export.load(buffer).module()
    worst = _require_parity(model, run, tolerance)
    return _write(model, path, buffer.getvalue(), None, worst)


def description(model: Classifier) -> dict[str, Any]:
    """What goes with a graph, JSON-able: under the key "daedl" of an ONNX file's metadata.

    Thresholds are as they were calibrated; classes without a name have their number.
    """
    network = model.network
    numbers = [str(number) for number in range(network.num_classes)]
    return {
        "version": version("daedl"),
        "network": type(network.plain).__name__,
        "method": {"name": model.method.name, "arguments": model.method.arguments()},
        "class_names": model.class_names or numbers,
        "thresholds": None if model.thresholds is None else model.thresholds.settings(),
        "input": {
            "name": INPUT,
            "shape": [BATCH, *network.input_shape],
            "dtype": _type(random_images(model, 1)),
        },
        "preprocess": None if model.preprocess is None else model.preprocess.settings(),
    }


def difference(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> float:
    """The largest |a − b| / max(1, |a|) of all outputs: absolute for small numbers, relative for large ones.

    Labels and decisions count as numbers too, so that one that differs can't be overlooked. NaN if either
    side holds one.
    """
    worst = torch.zeros((), dtype=torch.float64)
    for name, one in expected.items():
        a, b = one.cpu().double(), found[name].double()
        apart = torch.where(a == b, 0.0, (a - b).abs() / a.abs().clamp_min(1))  # ∞ equals ∞
        worst = torch.maximum(worst, apart.max())
    return float(worst)


def _require_parity(
    model: Classifier,
    run: Callable[[Tensor], Mapping[str, Tensor]],
    tolerance: float,
) -> float:
    """How far `run` is from the classifier on random images; raise if that is too far."""
    images = random_images(model, CHECKED)
    worst = difference(model.predict(images).columns(), run(images))
    if not worst <= tolerance:  # NaN is too far as well
        raise ValueError(
            f"what was exported differs from PyTorch by {worst:.1e} on {CHECKED} random images; expected "
            f"at most {tolerance:.0e}, so nothing was written: allow more with `tolerance`"
        )
    return worst


def _write(
    model: Classifier, path: str | Path, data: bytes, opset: int | None, worst: float
) -> Written:
    """Write `data`, and say what they are."""
    place = expanded(path)
    write_atomically(place, data)
    inputs = {INPUT: _shaped(random_images(model, 1))}
    outputs = {name: _shaped(tensor) for name, tensor in _example(model).items()}
    return Written(place, inputs, outputs, opset, len(data), worst)


def _example(model: Classifier) -> dict[str, Tensor]:
    """The outputs of one image."""
    return model.predict(random_images(model, 1)).columns()


def _shaped(tensor: Tensor) -> str:
    sizes = ", ".join(map(str, (BATCH, *tensor.shape[1:])))
    return f"{_type(tensor)} ({sizes})"


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
