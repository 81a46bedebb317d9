"""`daedl refit`: fit the density again, without training."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from daedl.bulk import fit_density
from daedl.classifier import Classifier
from daedl.cli.backbone import CacheFolder, cache_folder
from daedl.cli.bulk import Column, EngineOption, Workers, labelled_parts
from daedl.cli.common import Device, report_warnings
from daedl.cli.images import (
    Force,
    ModelFile,
    ModelOut,
    SkipBroken,
    load_model,
    model_output,
    read_known,
)
from daedl.cli.settings import MethodSettings, change
from daedl.data import Labelled
from daedl.data.loaders import Data
from daedl.density import DensityScorer
from daedl.engines import LOCAL, connect
from daedl.selective import Thresholds
from daedl.training.frozen import on_features


def refit(
    model: ModelFile,
    data: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Training images: a folder with one subfolder per class, or a .npz file. For "
            "methods that are fitted to validation images, such as temperature: those. Or Parquet "
            "files, with --column and --label.",
        ),
    ],
    settings: MethodSettings = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Held-out images of known classes, on which to calibrate probabilities and to "
            "choose the thresholds of MODEL again, with the same target.",
        ),
    ] = None,
    column: Column = None,
    label: Annotated[
        str, typer.Option(metavar="NAME", help="Column of Parquet files with the labels.")
    ] = "label",
    engine: EngineOption = LOCAL,
    workers: Workers = None,
    out: ModelOut = None,
    cache: CacheFolder = None,
    skip_broken: SkipBroken = False,
    force: Force = False,
    device: Device = "cpu",
) -> None:
    """Fit the density, temperature or neighbours of a model again, without training.

    The images pass through the network once; its weights do not change. Features
    of a frozen backbone are taken from the cache. New densities change the
    scores, so thresholds are chosen again or removed.
    """
    destination = model_output(model, out, force)
    classifier = load_model(model, device)
    classifier.method = change(classifier.method, settings or [])
    parts = labelled_parts(model, classifier, data, column, label, engine)
    images = None if parts else read_known(data, classifier, skip_broken)
    calibration = None if held_out is None else read_known(held_out, classifier, skip_broken)
    before = classifier.thresholds
    tempering = calibration
    if calibration is not None and before is not None and classifier.method.needs_held_out:
        # The guarantee of thresholds holds for images that no fit has seen.
        tempering, calibration = calibration.random_split(len(calibration) // 2, seed=0)
    with report_warnings():
        if images is None:
            typer.echo(f"Fitting {classifier.method.name} to {len(parts)} parts of {data}")
            with connect(engine, workers) as connected:
                fit_density(classifier, parts, engine=connected, folder=destination.parent)
            if tempering is not None and classifier.method.needs_held_out:
                held = classifier.collect(tempering, "held-out data")
                classifier.fit_outputs_held_out(*held)
            report = _calibrate(classifier, before, calibration, destination)
        else:
            typer.echo(f"Fitting {classifier.method.name} to {len(images)} {images.noun}")
            report = _refit(
                classifier, images, (tempering, calibration), before, cache, destination
            )
    classifier.save(destination)
    typer.echo(report + f"Saved the model to {destination}.")


def _refit(
    model: Classifier,
    data: Labelled,
    held_out: tuple[Labelled | None, Labelled | None],
    before: Thresholds | None,
    cache: str | None,
    destination: Path,
) -> str:
    """Fits to `data`, with cached features of a frozen backbone, and calibrates; returns a report."""
    head, features = on_features(model, cache_folder(cache), progress=True)

    def read(samples: Labelled | None) -> Data | None:
        return None if samples is None else features(samples, "held-out")

    tempering, calibration = held_out
    head.fit_post_hoc(features(data, "training"), read(tempering))
    report = _calibrate(head, before, read(calibration), destination)
    for name in ("fitted", "thresholds", "revisions"):
        setattr(model, name, getattr(head, name))
    return report


def _calibrate(
    model: Classifier, before: Thresholds | None, images: Data | None, destination: Path
) -> str:
    """Chooses thresholds as `before` on held-out images; returns a report."""
    lines = []
    # "all" was the default of calibrate, which depends on the number of images.
    on = None if before is None or before.on == "all" else before.on
    if images is None and model.method.needs_held_out:
        lines.append("Probabilities are not calibrated: pass --held-out to calibrate them.")
    if images is not None and isinstance(model.fitted, DensityScorer):
        lines.append(str(model.density_effect(images)))
    if before is not None and images is not None:
        lines.append(str(model.calibrate(images, before.target, on)))
    elif before is not None:
        # --reject 0.05, or --error 0.01 --delta 0.05
        arguments = before.target.settings()
        kind, rate = arguments.pop("kind"), arguments.pop("rate")
        options = {kind: rate, **arguments, **({} if on is None else {"on": on})}
        typed = " ".join(f"--{name} {value}" for name, value in options.items())
        lines.append(
            f"Removed the thresholds, because the scores changed. To choose them again:\n"
            f"  daedl calibrate {shlex.quote(str(destination))} --data HELD_OUT {typed}"
        )
    return "".join(f"{line}\n" for line in lines)
