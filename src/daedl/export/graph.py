"""Traces a classifier with `torch.export` as one graph from images to predictions.

The graph is traced from the network and the method's `predict`, so that no formula is duplicated. It differs
from `Classifier.predict` in two ways: spectral normalisation is folded into the weights, and values are not
validated. For an image with NaN the outputs are NaN and `accept` is False.
"""

import copy
import io
import logging
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.export import Dim, ExportedProgram
from torch.overrides import TorchFunctionMode

from daedl.data import InputKind, Preprocess
from daedl.methods.base import BaseMethod
from daedl.methods.dropout import DropoutPasses
from daedl.model import Model
from daedl.spectral import remove_spectral_norm

INPUT = "images"
BATCH = "batch"


class Exported(nn.Module):
    """A classifier as a module from images to tensors, on the CPU, in eval mode, with plain weights."""

    preprocess: Preprocess | None

    def __init__(self, model: Model[Any]) -> None:
        super().__init__()
        _require_deterministic(model.method)
        self.method, self.scaled, self.finished = model.method, model.scaled, model.finished
        self.preprocess = _require_images(model.preprocess)
        self.thresholds = None if model.thresholds is None else model.thresholds.for_graph()
        self.network = remove_spectral_norm(copy.deepcopy(model.network))
        self.fitted = copy.deepcopy(model.fitted)
        self.requires_grad_(False).cpu().eval()

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Converts raw inputs (B, *input_shape) to the tensors of `Prediction.columns`."""
        if self.preprocess is not None:
            images = self.preprocess(images, next(self.network.parameters()).dtype)
        outputs = self.method.forward(self.network, self.scaled(images))
        with _WithoutSplitting():
            prediction = self.method.predict(outputs, self.fitted)
        columns: dict[str, Tensor] = self.finished(prediction).limited(self.thresholds).columns()
        return columns


class _WithoutSplitting(TorchFunctionMode):
    """Disables `torch.split` of the batch, which bounds memory, because a graph can't loop over it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Returns one part for `torch.split(batch, rows)`; calls all other functions."""
        kwargs = kwargs or {}
        # While a graph is traced, the size of the batch axis is symbolic.
        if func is torch.split and isinstance(args[0].shape[kwargs.get("dim", 0)], torch.SymInt):
            return (args[0],)
        return func(*args, **kwargs)


def _require_images(preprocess: InputKind | None) -> Preprocess | None:
    """Raises for inputs that a graph can't prepare, such as texts."""
    if preprocess is None or isinstance(preprocess, Preprocess):
        return preprocess
    raise ValueError(
        f"the classifier reads {preprocess.noun}, which a graph of tensors can't prepare; expected images or "
        "prepared inputs: serve this model with `daedl serve`"
    )


def _require_deterministic(method: BaseMethod) -> None:
    """Raises for a method whose predictions draw random numbers."""
    if isinstance(getattr(method, "member", method), DropoutPasses):
        raise ValueError(
            f"method {method.name!r} predicts from random forward passes, which a graph can't reproduce; "
            "expected a deterministic method: export another, such as 'daedl' or 'ensemble'"
        )


def to_torch_export(model: Model[Any]) -> ExportedProgram:
    """Traces the classifier with `torch.export`, for batches of any size.

    `to_torch_export(model).module()(images)` returns a dictionary of the tensors of `Prediction.columns`.
    """
    graph = Exported(model)
    images = random_images(model, 2)
    graph(images)  # raises the classifier's own errors, which are clearer than those of tracing
    try:
        with quiet_tracing():
            shapes = {INPUT: {0: Dim(BATCH)}}
            program = torch.export.export(graph, (images,), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # torch raises many types
        raise ValueError(
            f"the classifier can't be traced as one graph ({shorten(error)}); expected a network that does "
            "not branch on values in Python and that reads the batch size from x.shape[0], not len(x): "
            "change its forward"
        ) from error
    _drop_unused(program)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains local paths
    return program


def random_images(model: Model[Any], number: int) -> Tensor:
    """Returns fixed noise (number, *input_shape): uint8 pixels, floats, or rows like those of the table."""
    shape = (number, *model.network.input_shape)
    generator = torch.Generator().manual_seed(0)
    if model.preprocess is not None:
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    dtype = next(model.network.parameters()).dtype
    if model.scaling is not None and model.scaling.features is not None:
        mean, std = model.scaling.features.tensors(torch.empty(0, dtype=dtype))
        return mean + std * torch.randn(shape, generator=generator).to(dtype)
    return torch.rand(shape, generator=generator).to(dtype)


@contextmanager
def quiet_tracing() -> Iterator[None]:
    """Disables torch's validation of values, which can't be traced, and its warnings and logging."""
    validate, log_level = Distribution._validate_args, logging.root.manager.disable
    Distribution.set_default_validate_args(False)
    logging.disable()
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        Distribution.set_default_validate_args(validate)
        logging.disable(log_level)


def _drop_unused(program: ExportedProgram) -> None:
    """Removes unused parameters and buffers, such as the statistics of a density, in place."""
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


def shorten(error: BaseException) -> str:
    """Formats an error as one short line."""
    return f"{type(error).__name__}: {textwrap.shorten(str(error), 200)}"
