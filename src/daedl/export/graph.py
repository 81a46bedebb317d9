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
from daedl.methods import MCDropout, Method
from daedl.prediction import Prediction
from daedl.spectral import remove_spectral_norm

INPUT = "images"
BATCH = "batch"
RANGE = (0.0, 1.0)  # of pixels, as the commands have them


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
        self.thresholds = None if model.thresholds is None else model.thresholds.for_graph()
        self.network = remove_spectral_norm(copy.deepcopy(model.network))
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


def to_torch_export(model: Classifier) -> ExportedProgram:
    """The classifier traced by `torch.export`, for batches of any size.

    `to_torch_export(model).module()(images)` gives a dictionary of the tensors of `named`.
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


def random_images(
    model: Classifier, number: int, input_range: tuple[float, float] = RANGE
) -> Tensor:
    """Uniform noise (number, *input_shape), the same each time."""
    low, high = input_range
    shape = (number, *model.network.input_shape)
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return (low + (high - low) * uniform).to(next(model.network.parameters()).dtype)


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
