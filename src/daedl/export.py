"""One graph from images to predictions, for ONNX runtimes and for `torch.export`.

The graph is traced from the classifier's own forward pass and its method's `predict`, so that no formula is
written twice. It differs from `Classifier.predict` in two respects: weights are baked, so that spectral
normalisation is gone, and values aren't checked. Where an image holds a NaN the outputs do, and `accept` is
False.
"""

import copy
import io
import json
import logging
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.export import Dim, ExportedProgram
from torch.overrides import TorchFunctionMode

from daedl.classifier import Classifier
from daedl.methods import MCDropout, Method
from daedl.prediction import Prediction
from daedl.spectral import bake
from daedl.storage import write_atomically
from daedl.thresholds import RejectAtMost, Thresholds

INPUT = "images"
BATCH = "batch"
# What torch's exporter itself is written in; every onnxruntime since 1.14 reads it.
OPSET = 18
TOLERANCE = 1e-4  # between PyTorch and what was exported; see `difference`
RANGE = (0.0, 1.0)  # of pixels, as the commands have them
# Images that the check before writing looks at (chosen: it takes a fraction of a second).
CHECKED = 16
# Protocol buffers, which ONNX files are, end at 2 GiB; a hundredth of it is left for the graph itself.
LARGEST = int(0.99 * 2**31)
# By this share a limit is moved in the graph, about 16 roundings of float32; see `_for_a_graph` (chosen).
SLACK = 1e-6


def named(prediction: Prediction) -> dict[str, Tensor]:
    """What a graph gives of a prediction for B images over C classes: what its method has of these.

        probs (B, C)      label (B,)          aleatoric (B,)     epistemic (B,)
        log_alpha (B, C)  alpha0 (B,)         density_score (B,) log_density (B,)
        accept (B,), if the classifier was calibrated

    As in `Prediction`; alpha0 is the sum of the concentrations.
    """
    found = {
        "probs": prediction.probs,
        "label": prediction.labels,
        "aleatoric": prediction.aleatoric,
        "epistemic": prediction.epistemic,
        "log_alpha": prediction.log_alpha,
        "alpha0": None if prediction.log_alpha is None else prediction.dirichlet.precision,
        "density_score": prediction.density_score,
        "log_density": prediction.log_density,
        "accept": None if prediction.thresholds is None else prediction.accept,
    }
    return {name: tensor for name, tensor in found.items() if tensor is not None}


class Exported(nn.Module):
    """A classifier as one pass from images to tensors; on the CPU, in eval mode, with baked weights."""

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        _require_one_answer(model.method)
        self.method = model.method
        self.thresholds = None if model.thresholds is None else _for_a_graph(model.thresholds)
        self.network = bake(copy.deepcopy(model.network))
        self.fitted = copy.deepcopy(model.fitted)
        self.requires_grad_(False).cpu().eval()

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Images (B, *input_shape) to the tensors of `named`."""
        outputs = self.method.forward(self.network, images)
        with _InOneBlock():
            prediction = self.method.predict(outputs, self.fitted)
        return named(replace(prediction, thresholds=self.thresholds))


class _InOneBlock(TorchFunctionMode):
    """What a method splits, to bound its memory, stays whole: a graph can't loop over the batch."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """`torch.split(batch, rows)` in one part, everything else as it is."""
        kwargs = kwargs or {}
        # While a graph is traced, what has a row for each image has a symbol for their number.
        if func is torch.split and isinstance(args[0].shape[kwargs.get("dim", 0)], torch.SymInt):
            return (args[0],)
        return func(*args, **kwargs)


def _require_one_answer(method: Method) -> None:
    """Raise for a method that draws random numbers to predict."""
    if isinstance(getattr(method, "member", method), MCDropout):
        raise ValueError(
            f"method {method.name!r} predicts from random passes, which a graph can't repeat; expected "
            "a method without them: export a classifier with another, such as 'daedl' or 'ensemble'"
        )


def _for_a_graph(thresholds: Thresholds) -> Thresholds:
    """The same thresholds, moved by so little that ties at a limit end as they do in PyTorch.

    A limit is the score of a calibration image, or just below one. Where a density wipes out all evidence
    many images have that very score, but a runtime that adds in another order rounds it differently: they
    must end on the side on which the target wants them.
    """
    outwards = SLACK if isinstance(thresholds.target, RejectAtMost) else -SLACK
    ordered = sorted(thresholds.limits.items())  # in which order they come from a file
    moved = {name: limit + outwards * abs(limit) for name, limit in ordered}
    return replace(thresholds, limits=moved)


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


def to_torch_export(model: Classifier) -> ExportedProgram:
    """The classifier traced by `torch.export`, for batches of any size.

    `to_torch_export(model).module()(images)` gives a dictionary of the tensors of `named`.
    """
    graph = Exported(model)
    images = _random_images(model, 2)
    graph(images)  # what is wrong with the classifier itself is said in its own words
    try:
        with _undisturbed():
            shapes = {INPUT: {0: Dim(BATCH)}}
            program = torch.export.export(graph, (images,), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # torch raises of every kind
        raise ValueError(
            f"the classifier can't be traced into one graph ({_short(error)}); expected a network that "
            "doesn't branch on values in Python, and that takes the size of a batch from x.shape[0], not "
            "len(x), which would fix it: change its forward"
        ) from error
    _drop_unused(program)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def to_pt2(
    model: Classifier,
    path: str | Path,
    *,
    input_range: tuple[float, float] = RANGE,
    tolerance: float = TOLERANCE,
) -> Written:
    """Write the classifier as `torch.export.load` reads it; arguments as those of `to_onnx`.

    The description is in the extra file "daedl.json".
    """
    program, buffer = to_torch_export(model), io.BytesIO()
    text = json.dumps(description(model, input_range), sort_keys=True)
    with _undisturbed():
        torch.export.save(program, buffer, extra_files={"daedl.json": text})
        buffer.seek(0)
        run = torch.export.load(buffer).module()
    worst = _require_parity(model, run, input_range, tolerance)
    return _write(model, path, buffer.getvalue(), None, worst)


def to_onnx(
    model: Classifier,
    path: str | Path,
    *,
    input_range: tuple[float, float] = RANGE,
    tolerance: float = TOLERANCE,
) -> Written:
    """Write the classifier as one ONNX file, with operators of the default set alone.

    Its input is "images" (batch, *input_shape), its outputs are those of `named`. The file is tried in
    onnxruntime on random images before it is written, so that a bad one never is.

    Arguments:
        path: of the file; one that is there is replaced, once the new one is whole.
        input_range: of the values in images, for those who use the file, and for the random images.
        tolerance: the largest `difference` to PyTorch.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):  # before time is spent
        _optional(package)
    program = to_torch_export(model)
    _require_room(program)
    names, text = list(_example(model)), json.dumps(description(model, input_range), sort_keys=True)
    data = _translated(program, names, text)
    worst = _require_parity(model, partial(_run, data, names), input_range, tolerance)
    return _write(model, path, data, OPSET, worst)


def description(model: Classifier, input_range: tuple[float, float] = RANGE) -> dict[str, Any]:
    """What goes with a graph, JSON-able: under the key "daedl" of an ONNX file's metadata.

    Thresholds are as they were calibrated; classes without a name have their number.
    """
    network, parameter = model.network, next(model.network.parameters())
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
            "dtype": _type(parameter),
            "range": list(input_range),
        },
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
    input_range: tuple[float, float],
    tolerance: float,
) -> float:
    """How far `run` is from the classifier on random images; raise if that is too far."""
    images = _random_images(model, CHECKED, input_range)
    worst = difference(named(model.predict(images)), run(images))
    if not worst <= tolerance:  # NaN is too far as well
        raise ValueError(
            f"what was exported differs from PyTorch by {worst:.1e} on {CHECKED} random images; expected "
            f"at most {tolerance:.0e}, so nothing was written: allow more with `tolerance`"
        )
    return worst


def _random_images(
    model: Classifier, number: int, input_range: tuple[float, float] = RANGE
) -> Tensor:
    """Uniform noise (number, *input_shape), the same each time."""
    low, high = input_range
    shape = (number, *model.network.input_shape)
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return (low + (high - low) * uniform).to(next(model.network.parameters()).dtype)


def _write(
    model: Classifier, path: str | Path, data: bytes, opset: int | None, worst: float
) -> Written:
    """Write `data`, and say what they are."""
    place = Path(path).expanduser()
    write_atomically(place, data)
    inputs = {INPUT: _shaped(_random_images(model, 1))}
    outputs = {name: _shaped(tensor) for name, tensor in _example(model).items()}
    return Written(place, inputs, outputs, opset, len(data), worst)


def _example(model: Classifier) -> dict[str, Tensor]:
    """The outputs of one image."""
    return named(model.predict(_random_images(model, 1)))


def _shaped(tensor: Tensor) -> str:
    sizes = ", ".join(map(str, (BATCH, *tensor.shape[1:])))
    return f"{_type(tensor)} ({sizes})"


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _optional(name: str) -> Any:
    """A package that only exports need."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{name} can't be imported ({error}); expected it for exports to ONNX: "
            "pip install 'daedl[export]'"
        ) from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let torch trace and translate: without checks of values, and without what it says meanwhile."""
    validated, silenced = Distribution._validate_args, logging.root.manager.disable
    Distribution.set_default_validate_args(False)
    logging.disable()
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        Distribution.set_default_validate_args(validated)
        logging.disable(silenced)


def _drop_unused(program: ExportedProgram) -> None:
    """Take out parameters and buffers that nothing reads, as what a density was fitted to, in place."""
    signature = program.graph_signature
    kept = {*signature.user_inputs, *(node.name for node in program.graph.nodes if node.users)}
    unused = [spec for spec in signature.input_specs if spec.arg.name not in kept]
    for node in program.graph.find_nodes(op="placeholder"):
        if node.name not in kept:
            program.graph.erase_node(node)
    for spec in unused:
        signature.input_specs.remove(spec)
        program.state_dict.pop(spec.target, None)
        program.constants.pop(spec.target, None)
    program.graph_module.recompile()


def _require_room(program: ExportedProgram) -> None:
    tensors = [*program.state_dict.values(), *program.constants.values()]
    size = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
    if size > LARGEST:
        raise ValueError(
            f"the graph holds {size / 1e9:.1f} GB of numbers; expected at most {LARGEST / 1e9:.1f} GB in "
            "an ONNX file: export to .pt2 instead, or keep fewer samples if the method is 'knn' or 'nuq'"
        )


def _translated(program: ExportedProgram, names: list[str], description: str) -> bytes:
    """The ONNX file of `program`: operators of the default set, and no path of this machine."""
    onnx = _optional("onnx")
    try:
        with _undisturbed():
            translated = torch.onnx.export(
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
            f"a part of the classifier has no ONNX operator ({_short(error.__cause__ or error)}); "
            "expected torch functions that ONNX knows: export to .pt2 instead, or change the network"
        ) from error
    assert translated is not None  # as no file was named
    model: Any = translated.model_proto
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


def _logaddexp(a: Any, b: Any) -> Any:
    """max(a, b) + softplus(−|a − b|)."""
    op = _optional("onnxscript").opset18
    return op.Add(op.Max(a, b), op.Softplus(op.Neg(op.Abs(op.Sub(a, b)))))


def _logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    """max x + ln Σ exp(x − max x), without the maximum where it is infinite."""
    op = _optional("onnxscript").opset18
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


def _run(data: bytes, names: list[str], images: Tensor) -> dict[str, Tensor]:
    """What onnxruntime makes of an ONNX file and images (B, *input_shape)."""
    runtime = _optional("onnxruntime")
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


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {textwrap.shorten(str(error), 200)}"
