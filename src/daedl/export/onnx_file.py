"""Converts traced graphs to ONNX files and runs them in onnxruntime; requires `daedl[export]`."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from daedl.checks import import_optional
from daedl.export.graph import BATCH, INPUT, quiet_tracing, shorten

# The native opset of torch's exporter, supported since onnxruntime 1.14.
OPSET = 18
# Protocol buffers are limited to 2 GiB; 1% is reserved for the graph.
LARGEST = int(0.99 * 2**31)


def import_package(name: str) -> Any:
    """Imports a package that only exports require."""
    return import_optional(name, "ONNX export", "'daedl[export]'")


def require_size_limit(program: ExportedProgram) -> None:
    """Raises if the tensors exceed the size limit of ONNX files."""
    tensors = [*program.state_dict.values(), *program.constants.values()]
    size = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
    if size > LARGEST:
        raise ValueError(
            f"the tensors of the graph have {size / 1e9:.1f} GB; expected at most {LARGEST / 1e9:.1f} GB in "
            "an ONNX file: export to .pt2 instead, or store fewer samples if the method is 'knn' or 'nuq'"
        )


def _logaddexp(a: Any, b: Any) -> Any:
    """Computes max(a, b) + softplus(−|a − b|)."""
    op = import_package("onnxscript").opset18
    return op.Add(op.Max(a, b), op.Softplus(op.Neg(op.Abs(op.Sub(a, b)))))


def _logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """Computes max x + ln Σ exp(x − max x); the maximum is not subtracted if it is infinite."""
    op = import_package("onnxscript").opset18
    largest = op.ReduceMax(x, dim, keepdims=1)
    shift = op.Where(op.IsInf(largest), op.CastLike(0.0, x), largest)
    total = op.Log(op.ReduceSum(op.Exp(op.Sub(x, shift)), dim, keepdims=int(keepdim)))
    return op.Add(total, shift if keepdim else op.Squeeze(shift, dim))


# Numerically stable translations. Torch translates the first to operators that overflow, the second to
# ReduceLogSumExp, which onnxruntime evaluates by the plain formula if an input is −∞.
STABLE: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.logaddexp.default: _logaddexp,
    torch.ops.aten.logsumexp.default: _logsumexp,
}


def to_bytes(program: ExportedProgram, names: list[str], description: str) -> bytes:
    """Returns `program` as an ONNX file with operators of the default domain and without local paths."""
    onnx = import_package("onnx")
    try:
        with quiet_tracing():
            exported = torch.onnx.export(
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
            f"the classifier uses a function without ONNX operator ({shorten(error.__cause__ or error)}); "
            "expected functions that ONNX supports: export to .pt2 instead, or change the network"
        ) from error
    assert exported is not None  # because no file name is passed
    model: Any = exported.model_proto
    graph = model.graph
    for each in (*_nodes(graph), *graph.input, *graph.output):
        each.ClearField("metadata_props")
    graph.ClearField("value_info")  # intermediate shapes, which can be inferred
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    onnx.helper.set_model_props(model, {"daedl": description})
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def run(data: bytes, names: list[str], images: Tensor) -> dict[str, Tensor]:
    """Runs an ONNX file in onnxruntime on images (B, *input_shape)."""
    runtime = import_package("onnxruntime")
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    outputs = session.run(names, {INPUT: images.numpy()})
    return dict(zip(names, map(torch.from_numpy, outputs), strict=True))


def _nodes(graph: Any) -> Iterable[Any]:
    """Yields all nodes of an ONNX graph and its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
