"""docs/methods.md, rendered from the table of methods."""

import inspect
import re
from dataclasses import fields
from typing import Any

import torch

from daedl.classifier import Classifier
from daedl.methods import METHODS, Method
from daedl.networks import MLP
from daedl.outputs import evaluating
from daedl.prediction import Prediction

_HEAD = """# Methods

Rendered from `daedl.methods.METHODS`; do not edit. To render it:
`python -c "from daedl_bench.methods_page import markdown; print(markdown(), end='')" > docs/methods.md`

A method is selected by name, `daedl.Classifier(network, "i-edl")` or `daedl train --method i-edl`; its
settings are keyword arguments. `daedl.methods.build_for("cifar10", name)` applies the settings published
for a dataset. The report of `python -m daedl_bench report` compares all methods under one protocol.
[adding_a_method.md](adding_a_method.md) explains how to add one.

Every method predicts class probabilities and uncertainty scores; larger scores mean more uncertain.
"Aleatoric" is 1 − the largest probability, unless the method defines its own score. "Epistemic" is the
method's score of missing knowledge, −ln α₀ for a Dirichlet. "Density" is the negative log density of the
features or the latent.
"""

_LEFT_OUT = """## Not implemented

- **DUQ** (van Amersfoort et al., ICML 2020) penalises the gradient with respect to the images and updates
  class centroids after each step: the loss needs image gradients and state that the optimiser doesn't
  train.
- **DUE** (van Amersfoort et al., 2021) trains a Gaussian process with inducing points initialised by
  k-means on the first features: its outputs are distributions over functions, and its loss needs their
  divergence and the size of the training set.
"""


def markdown() -> str:
    """The text of docs/methods.md."""
    header = (
        "method",
        "paper",
        "predicts",
        "passes",
        "extra training cost",
        "extra data",
        "scores",
        "published settings",
        "caveats",
    )
    lines = [_HEAD, _line(header), "|---" * len(header) + "|"]
    lines += [_line(_cells(name, kind())) for name, kind in METHODS.items()]
    sections = [_section(name, kind()) for name, kind in METHODS.items()]
    return "\n".join([*lines, "", *sections, _LEFT_OUT])


def _cells(name: str, method: Method) -> tuple[str, ...]:
    example = _example(method)
    return (
        f"[`{name}`](#{_anchor(_heading(name, method))})",
        method.paper,
        "probabilities" if example.log_alpha is None else "a Dirichlet",
        str(method.passes),
        method.extra_cost,
        method.extra_data,
        ", ".join(example.scores()),
        _published(method),
        method.caveats,
    )


def _section(name: str, method: Method) -> str:
    """The docstring, with the meaning of each setting, and the values of all settings."""
    text = inspect.cleandoc(type(method).__doc__ or "")
    formula, _, attributes = text.partition("\n\nAttributes:\n")
    settings = ", ".join(f"`{key}={value!r}`" for key, value in _settings(method).items())
    own = f"\n{_as_list(attributes)}\n" if attributes else ""
    return f"## {_heading(name, method)}\n\n{_formulas_as_code(formula)}\n{own}\nDefaults: {settings}.\n"


def _settings(method: Method) -> dict[str, Any]:
    return {
        each.name: getattr(method, each.name)
        for each in fields(method)
        if each.name not in ("spectral", "reduction")
        or getattr(method, each.name) != getattr(Method, each.name)
    } or {"reduction": method.reduction}


def _published(method: Method) -> str:
    """How the paper trains, and settings for data sets that differ from the defaults."""
    parts = [method.published_training] if method.published_training else []
    for data, settings in method.published.items():
        listed = ", ".join(f"{key} = {value}" for key, value in settings.items())
        parts.append(f"{data}: {listed}")
    return "; ".join(parts)


def _as_list(attributes: str) -> str:
    """The lines of a docstring's attributes as a list in Markdown."""
    items: list[str] = []
    for line in inspect.cleandoc(attributes).splitlines():
        if line.startswith(" "):
            items[-1] += f" {line.strip()}"
        else:
            name, _, meaning = line.partition(": ")
            items.append(f"- `{name.replace(', ', '`, `')}`: {meaning}")
    return "\n".join(items)


def _formulas_as_code(text: str) -> str:
    """Paragraphs as they are; displayed formulas, which are indented, as code."""
    return "\n\n".join(
        f"```\n{inspect.cleandoc(part)}\n```" if part.startswith("    ") else part
        for part in text.split("\n\n")
    )


def _example(method: Method) -> Prediction:
    """The prediction of an untrained network, which shows what the method gives."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        images, targets = torch.randn(60, 4), torch.arange(60) % 3
        network = Classifier(MLP(4, 3, hidden=(8,)), method).network
        with evaluating(network), torch.no_grad():
            outputs = method.forward(network, images)
        return method.predict(outputs, method.fit(outputs, targets))


def _heading(name: str, method: Method) -> str:
    return f"{name} ({type(method).__name__})"


def _anchor(heading: str) -> str:
    """The part of an address that leads to a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
