"""`daedl info`: describe a model file."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

from daedl import storage
from daedl.classifier import Classifier
from daedl.cli.images import ModelFile, class_names, load_any
from daedl.cli.results import printable
from daedl.density import DensityScorer, GaussianDensity
from daedl.regressor import Regressor

# Width of the column of names (chosen for the longest one).
INDENT = 14
# Class names and samples per class that are shown; --json has all of them (chosen).
SHOWN = 10
LONGEST = 60  # characters of a value, such as the contents of a tokenizer (chosen)


def info(
    model: ModelFile,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Describe a model: network, method, training, density, thresholds, revisions."""
    path = storage.expand_user(model)
    described = describe(load_any(path))  # before the file's status, as it may not exist
    description = {"file": _file(path), **described}
    if as_json:
        typer.echo(json.dumps(description, indent=2))
        return
    for name, lines in _texts(description).items():
        head = name.replace("_", " ")
        for number, line in enumerate(lines):
            typer.echo(f"{'' if number else head:{INDENT}}{printable(line)}")


def describe(model: Classifier | Regressor) -> dict[str, Any]:
    """Returns a JSON-able description of a model."""
    network, thresholds = model.network, model.thresholds
    return {
        "network": {
            "name": type(network.plain).__name__,
            "arguments": network.plain.arguments,
            "weights": sum(each.numel() for each in network.parameters()),
        },
        "input": {
            "shape": list(network.input_shape),
            "preprocess": None if model.preprocess is None else model.preprocess.settings(),
        },
        "method": {"name": model.method.name, "settings": model.method.arguments()},
        "classes": class_names(model) if isinstance(model, Classifier) else None,
        "table": None if model.scaling is None else asdict(model.scaling),
        "trained_on": None if model.trained_on is None else dict(model.trained_on),
        "fit": None if model.fitted is None else _fit(model.fitted),
        "revisions": [asdict(each) for each in model.revisions],
        "thresholds": None
        if thresholds is None
        else {**thresholds.settings(), "guarantee": thresholds.target.guarantee},
    }


def _file(path: Path) -> dict[str, Any]:
    status = path.stat()
    written = datetime.fromtimestamp(status.st_mtime).astimezone()
    return {
        "path": str(path),
        "bytes": status.st_size,
        "written": written.isoformat(timespec="seconds"),
        "version": storage.load(path)[1].get("version"),
    }


def _fit(fitted: nn.Module) -> dict[str, Any]:
    """Returns the settings of the post-hoc fit and, for Gaussians, the shrinkage of their covariances."""
    settings: dict[str, Any] = dict(fitted.settings())  # type: ignore[operator]
    density = fitted.density if isinstance(fitted, DensityScorer) else fitted
    if isinstance(density, GaussianDensity):
        for name, values in asdict(density.shrunk).items():
            label = "shrinkage" if name == "amount" else name
            settings[label] = {"min": float(values.min()), "max": float(values.max())}
    return settings


def _texts(description: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the lines of each part of the description."""
    file, network, inputs = (description[name] for name in ("file", "network", "input"))
    method, classes = description["method"], description["classes"]
    preprocess = inputs["preprocess"]
    fit = description["fit"]
    return {
        "model": [
            f"{file['path']}, {file['bytes']:,} bytes, written {file['written']} by daedl "
            f"{file['version']}"
        ],
        "network": [
            f"{network['name']}, {network['weights']:,} weights",
            *_lines(network["arguments"]),
        ],
        "input": [
            " x ".join(map(str, inputs["shape"])) or "texts",
            *(["prepared outside of the model"] if preprocess is None else _lines(preprocess)),
        ],
        "method": [method["name"], *_lines(method["settings"])],
        **({} if classes is None else {"classes": [f"{len(classes)}: {_some(classes)}"]}),
        **_table(description["table"]),
        "trained on": _training(description["trained_on"]),
        "fit": ["none"] if fit is None else _lines(fit),
        "revisions": [
            f"{each['samples']} samples{' merged' if each['merged'] else ''} {each['note']}".rstrip()
            for each in description["revisions"]
        ]
        or ["none"],
        "thresholds": _thresholds(description["thresholds"]),
    }


def _table(scaling: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """Returns the columns of a regressor: names, means and standard deviations."""
    parts = {} if scaling is None else {name: scaling[name] for name in ("targets", "features")}
    return {
        name: [_some([f"{n} ({m:.4g} ± {s:.4g})" for n, m, s in zip(names, *numbers, strict=True)])]
        for name, part in parts.items()
        if part is not None
        for numbers in [(part["mean"], part["std"])]
        for names in [part["names"] or list(map(str, range(len(part["mean"]))))]
    }


def _training(record: Mapping[str, Any] | None) -> list[str]:
    if record is None:
        return ["not recorded: trained in Python, or by an earlier version"]
    if "rmse" in record:
        return [
            f"{record['samples']} rows of {record['data']} (digest {record['digest']}); "
            f"{record['held_out']} held out",
            f"{record['epochs']} epochs, best {record['best_epoch']}, on held-out rows RMSE "
            f"{record['rmse']:.4g}, NLL {record['nll']:.4g}; seed {record['seed']}, daedl "
            f"{record['version']}",
        ]
    counts = record["samples_per_class"]
    return [
        f"{record['samples']} samples of {record['data']} (digest {record['digest']}), "
        f"{min(counts)} to {max(counts)} per class; {record['held_out']} held out",
        f"{record['epochs']} epochs, best {record['best_epoch']}, accuracy on held-out images "
        f"{record['accuracy']:.2%}; seed {record['seed']}, daedl {record['version']}",
    ]


def _thresholds(chosen: Mapping[str, Any] | None) -> list[str]:
    if chosen is None:
        return ["none: `daedl calibrate` chooses them"]
    limits = " or ".join(f"{name} > {limit:.4g}" for name, limit in chosen["limits"].items())
    return [
        f"rejects {limits}",
        f"{chosen['coverage']:.2%} of {chosen['samples']} calibration samples accepted, of which "
        f"{chosen['error']:.2%} wrong",
        f"guarantee: {chosen['guarantee']}",
    ]


def _lines(settings: Mapping[str, Any]) -> list[str]:
    """One line per setting that is not empty."""
    return [
        f"{name} = {_value(value)}"
        for name, value in settings.items()
        if value not in (None, {}, [], ())
    ]


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_value(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return _some([_value(each) for each in value])
    return textwrap.shorten(str(value), LONGEST)


def _some(values: Sequence[str]) -> str:
    return ", ".join(values[:SHOWN]) + (", ..." if len(values) > SHOWN else "")
