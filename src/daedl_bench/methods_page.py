"""The table and the sections of docs/methods.md, from the methods."""

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
from daedl_bench import names


def table() -> str:
    """One line per method."""
    columns = [_columns(name, kind()) for name, kind in METHODS.items()]
    return names.markdown(list(columns[0]), [list(each.values()) for each in columns])


def sections() -> str:
    """One section per method."""
    return "\n".join(_section(name, kind()) for name, kind in METHODS.items())


def _columns(name: str, method: Method) -> dict[str, str]:
    example = _example(method)
    return {
        "method": f"[`{name}`](#{_anchor(_heading(name, method))})",
        "paper": method.paper,
        "predicts": "probabilities" if example.log_alpha is None else "a Dirichlet",
        "passes": str(method.passes),
        "extra training cost": method.extra_cost,
        "extra data": method.extra_data,
        "scores": ", ".join(example.scores()),
        "published settings": _published(method),
        "caveats": method.caveats,
    }


def _section(name: str, method: Method) -> str:
    """The docstring with the meaning of each setting, and the defaults."""
    # A class without settings inherits those of its base class.
    (formula, own), *bases = map(_parts, type(method).__mro__[: -len(Method.__mro__)])
    attributes = own or next((each for _, each in bases if each), "")
    settings = ", ".join(f"`{key}={value!r}`" for key, value in _settings(method).items())
    listed = f"\n{_as_list(attributes)}\n" if attributes else ""
    return f"## {_heading(name, method)}\n\n{_formulas_as_code(formula)}\n{listed}\nDefaults: {settings}.\n"


def _parts(kind: type[object]) -> tuple[str, str]:
    """Docstring of a class before its attributes, and the attributes."""
    formula, _, attributes = inspect.cleandoc(kind.__doc__ or "").partition("\n\nAttributes:\n")
    return formula, attributes


def _settings(method: Method) -> dict[str, Any]:
    return {
        each.name: getattr(method, each.name)
        for each in fields(method)
        if each.name not in ("spectral", "reduction")
        or getattr(method, each.name) != getattr(Method, each.name)
    } or {"reduction": method.reduction}


def _published(method: Method) -> str:
    """How the paper trains, and settings per dataset that differ from the defaults."""
    parts = [method.published_training] if method.published_training else []
    for data, settings in method.published.items():
        listed = ", ".join(f"{key} = {value}" for key, value in settings.items())
        parts.append(f"{data}: {listed}")
    return "; ".join(parts)


def _as_list(attributes: str) -> str:
    """The attributes of a docstring as a Markdown list."""
    items: list[str] = []
    for line in inspect.cleandoc(attributes).splitlines():
        if line.startswith(" "):
            items[-1] += f" {line.strip()}"
        else:
            name, _, meaning = line.partition(": ")
            items.append(f"- `{name.replace(', ', '`, `')}`: {meaning}")
    return "\n".join(items)


def _formulas_as_code(text: str) -> str:
    """Displayed formulas, which are indented, as code blocks."""
    return "\n\n".join(
        f"```\n{inspect.cleandoc(part)}\n```" if part.startswith("    ") else part
        for part in text.split("\n\n")
    )


def _example(method: Method) -> Prediction:
    """The prediction of an untrained network, for the fields that the method fills."""
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
    """The anchor of a heading on GitHub."""
    return re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
