"""A classifier as one graph, traced from images to predictions by `torch.export`.

The graph is traced from the classifier's own forward pass and its method's `predict`, so that no formula is
written twice. It differs from `Classifier.predict` in two respects: weights are baked, so that spectral
normalisation is gone, and values aren't checked. Where an image holds a NaN the outputs do, and `accept` is
False.
"""

import copy
import io
import logging
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.export import Dim, ExportedProgram
from torch.overrides import TorchFunctionMode

from daedl.classifier import Classifier
from daedl.data import Preprocess
from daedl.methods import MCDropout, Method
from daedl.spectral import remove_spectral_norm

INPUT = "images"
BATCH = "batch"


class Exported(nn.Module):
    """A classifier as one pass from images to tensors; on the CPU, in eval mode, with baked weights."""

    preprocess: Preprocess | None

    def __init__(self, model: Classifier) -> None:
        super().__init__()
        _require_one_answer(model.method)
        self.method = model.method
        self.preprocess = model.preprocess
        self.thresholds = None if model.thresholds is None else model.thresholds.for_graph()
        self.network = remove_spectral_norm(copy.deepcopy(model.network))
        self.fitted = copy.deepcopy(model.fitted)
        self.requires_grad_(False).cpu().eval()

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Converts raw inputs (B, *input_shape) to the tensors of `Prediction.columns`."""
        if self.preprocess is not None:
            images = self.preprocess(images, next(self.network.parameters()).dtype)
        outputs = self.method.forward(self.network, images)
        with _InOneBlock():
            prediction = self.method.predict(outputs, self.fitted)
        return replace(prediction, thresholds=self.thresholds).columns()


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


def to_torch_export(model: Classifier) -> ExportedProgram:
    """The classifier traced by `torch.export`, for batches of any size.

    `to_torch_export(model).module()(images)` gives a dictionary of the tensors of `Prediction.columns`.
    """
    graph = Exported(model)
    images = random_images(model, 2)
    graph(images)  # what is wrong with the classifier itself is said in its own words
    try:
        with undisturbed():
            shapes = {INPUT: {0: Dim(BATCH)}}
            program = torch.export.export(graph, (images,), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # torch raises of every kind
        raise ValueError(
            f"the classifier can't be traced into one graph ({short(error)}); expected a network that "
            "doesn't branch on values in Python, and that takes the size of a batch from x.shape[0], not "
            "len(x), which would fix it: change its forward"
        ) from error
    _drop_unused(program)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def random_images(model: Classifier, number: int) -> Tensor:
    """Returns fixed uniform noise (number, *input_shape): uint8 pixels, or floats without preprocessing."""
    shape = (number, *model.network.input_shape)
    generator = torch.Generator().manual_seed(0)
    if model.preprocess is not None:
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    return torch.rand(shape, generator=generator).to(next(model.network.parameters()).dtype)


@contextmanager
def undisturbed() -> Iterator[None]:
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


def short(error: BaseException) -> str:
    """An error as one line."""
    return f"{type(error).__name__}: {textwrap.shorten(str(error), 200)}"
