"""A traced graph as an ONNX file, and that file in onnxruntime; the packages are those of `daedl[export]`."""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from daedl.export.graph import BATCH, INPUT, short, undisturbed

# What torch's exporter itself is written in; every onnxruntime since 1.14 reads it.
OPSET = 18
# Protocol buffers, which ONNX files are, end at 2 GiB; a hundredth of it is left for the graph itself.
LARGEST = int(0.99 * 2**31)


def optional(name: str) -> Any:
    """A package that only exports need."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{name} can't be imported ({error}); expected it for exports to ONNX: "
            "pip install 'daedl[export]'"
        ) from error


def require_room(program: ExportedProgram) -> None:
    """Raise if the program is too large for a file."""
    tensors = [*program.state_dict.values(), *program.constants.values()]
    size = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
    if size > LARGEST:
        raise ValueError(
            f"the graph holds {size / 1e9:.1f} GB of numbers; expected at most {LARGEST / 1e9:.1f} GB in "
            "an ONNX file: export to .pt2 instead, or keep fewer samples if the method is 'knn' or 'nuq'"
        )


def _logaddexp(a: Any, b: Any) -> Any:
    """max(a, b) + softplus(−|a − b|)."""
    op = optional("onnxscript").opset18
    return op.Add(op.Max(a, b), op.Softplus(op.Neg(op.Abs(op.Sub(a, b)))))


def _logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """max x + ln Σ exp(x − max x), without the maximum where it is infinite."""
    op = optional("onnxscript").opset18
    largest = op.ReduceMax(x, dim, keepdims=1)
    shift = op.Where(op.IsInf(largest), op.CastLike(0.0, x), largest)
    total = op.Log(op.ReduceSum(op.Exp(op.Sub(x, shift)), dim, keepdims=int(keepdim)))
    return op.Add(total, shift if keepdim else op.Squeeze(shift, dim))


# Logarithms of sums of exponentials that can't overflow. Torch translates the first into operators that do,
# the second into one that ONNX defines by the plain formula, and that onnxruntime takes so after a −∞.
STABLE: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.logaddexp.default: _logaddexp,
    torch.ops.aten.logsumexp.default: _logsumexp,
}


def translated(program: ExportedProgram, names: list[str], description: str) -> bytes:
    """The ONNX file of `program`: operators of the default set, and no path of this machine."""
    onnx = optional("onnx")
    try:
        with undisturbed():
            found = torch.onnx.export(
                program,
                input_names=[INPUT],
                output_names=names,
                opset_version=OPSET,
                custom_translation_table=STABLE,
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise ValueError(
            f"a part of the classifier has no ONNX operator ({short(error.__cause__ or error)}); "
            "expected torch functions that ONNX knows: export to .pt2 instead, or change the network"
        ) from error
    assert found is not None  # as no file was named
    model: Any = found.model_proto
    graph = model.graph
    for each in (*_nodes(graph), *graph.input, *graph.output):
        each.ClearField("metadata_props")
    graph.ClearField("value_info")  # shapes in between, which anyone can infer
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    onnx.helper.set_model_props(model, {"daedl": description})
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def run(data: bytes, names: list[str], images: Tensor) -> dict[str, Tensor]:
    """What onnxruntime makes of an ONNX file and images (B, *input_shape)."""
    runtime = optional("onnxruntime")
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    found = session.run(names, {INPUT: images.numpy()})
    return dict(zip(names, map(torch.from_numpy, found), strict=True))


def _nodes(graph: Any) -> Iterable[Any]:
    """Every node of an ONNX graph, those of graphs inside it included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
