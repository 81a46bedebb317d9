"""Texts of `daedl train` before and after training, and the record of training in the model file."""

import shlex
import textwrap
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from daedl.classifier import Classifier
from daedl.cli.results import printable
from daedl.data import Labelled
from daedl.training import History


def shorten(names: Sequence[str]) -> str:
    """Joins names, at most 100 characters of them, with control characters escaped."""
    return textwrap.shorten(", ".join(map(printable, names)), 100, placeholder=" ...")


def description(training: Labelled, held_out: Labelled, model: Classifier) -> str:
    """Describes the data, method and network before training."""
    return (
        f"{len(training)} training {training.noun}, {len(held_out)} held out, {training.summary}; "
        f"{training.num_classes} classes: "
        f"{shorten(training.names)}\n{model.method.name}, {type(model.network.plain).__name__}"
    )


def training_record(
    training: Labelled, held_out: Labelled, history: History, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Describes the training for the model file.

    It contains no date, so that equal trainings write equal files.
    """
    counts = torch.bincount(training.labels, minlength=training.num_classes)
    return {
        "version": version("daedl"),
        "data": training.name,
        "digest": options["resume_key"]["data"],
        "samples": len(training),
        "samples_per_class": counts.tolist(),
        "held_out": len(held_out),
        "accuracy": history.epochs[history.best_epoch].val_accuracy,
        "epochs": len(history.epochs),
        "best_epoch": history.best_epoch + 1,
        "seed": options["seed"],
    }


def summary(
    history: History, data: str, out: Path, configuration: Path, noun: str = "images"
) -> str:
    """Describes the result of training and the next commands."""
    quoted = shlex.quote(str(out))
    best = history.epochs[history.best_epoch]
    lines = [
        f"accuracy on held-out {noun} {best.val_accuracy:.2%}, best epoch {history.best_epoch + 1} of "
        f"{len(history.epochs)}"
    ]
    if history.density_effect is not None:
        lines.append(str(history.density_effect))
        for name, value in history.density_effect.remedies()[:1]:
            lines += [
                "Other settings of the density need no new training, for example:",
                f"  daedl refit {quoted} --data {shlex.quote(data)} --held-out HELD_OUT --set {name}={value}",
            ]
    lines += [
        f"Saved the model to {out} and its options to {configuration}. Next:",
        f"  daedl calibrate {quoted} --data HELD_OUT_{noun.upper()} --reject 0.05",
        f"  daedl evaluate {quoted} --id TEST_{noun.upper()} --ood OTHER_{noun.upper()}",
        f"  daedl predict {quoted} {'IMAGE.png' if noun == 'images' else noun.upper()}",
        f"  daedl serve {quoted}",
    ]
    return "\n".join(lines)
