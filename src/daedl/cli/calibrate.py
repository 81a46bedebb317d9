"""`daedl calibrate`: which predictions to accept, and which to hand over to a person."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from daedl import figures
from daedl.checks import NotFittedError
from daedl.cli.common import Threads, report_errors, using_threads
from daedl.cli.images import ModelFile, load_model, read_known
from daedl.cli.results import require_place
from daedl.selective import MaxErrorRate, MaxRejectionRate, Target
from daedl.storage import write_atomically


class Looked(StrEnum):
    """Which uncertainties are looked at."""

    EPISTEMIC = "epistemic"
    ALEATORIC = "aleatoric"
    BOTH = "both"


def calibrate(
    model: ModelFile,
    data: Annotated[
        str,
        typer.Option(
            help="Held-out images of known classes: a folder with a subfolder for each class, a .npz "
            "file."
        ),
    ],
    reject: Annotated[
        float | None, typer.Option(help="Reject at most this share of known images, such as 0.05.")
    ] = None,
    error: Annotated[
        float | None, typer.Option(help="At most this share of accepted known images is wrong.")
    ] = None,
    delta: Annotated[
        float, typer.Option(help="With --error: the probability that it isn't so.")
    ] = 0.05,
    on: Annotated[
        Looked | None,
        typer.Option(help="Uncertainties to look at; by default both, where the method has both."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the calibrated model; by default the same.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="File for the curve; by default beside the model, MODEL.risk.png."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that --out names, if there is one.")
    ] = False,
    threads: Threads = None,
) -> None:
    """Choose thresholds on held-out images and keep them in the model; draw what they cost.

    From then on `daedl predict` and `daedl serve` say whether to accept a prediction, and why not. The
    promise holds for new images that are drawn as the held-out ones were.
    """
    with report_errors(OSError, ValueError, NotFittedError), using_threads(threads):
        target = _target(reject, error, delta)
        place = out or model
        picture = plot or place.with_name(f"{place.name}.risk.png")
        _require_places(model, place, picture, force)
        classifier = load_model(model)
        held_out = read_known(data, classifier)
        chosen = classifier.calibrate(held_out, target, None if on is None else on.value)
        prediction = classifier.predict(held_out)
        drawn = figures.risk_coverage(prediction, held_out.labels, chosen)
        write_atomically(picture, figures.png(drawn))
        classifier.save(place)
    typer.echo(f"{str(chosen).capitalize()}.")
    typer.echo(f"The model is in {place}, the risk-coverage curve in {picture}.")


def _require_places(model: Path, place: Path, picture: Path, force: bool) -> None:
    """Raise if a file can't or shouldn't be written: found out before time is spent."""
    require_place(place)
    if place.exists() and not place.samefile(model) and not force:
        raise FileExistsError(
            f"{place} exists already; expected a new file, or the model itself: choose another with "
            "--out, or pass --force to replace it"
        )
    if picture.suffix.lower() != ".png":
        raise ValueError(
            f"--plot is {picture}; expected a file that ends in .png, as a PNG is drawn: rename it"
        )
    require_place(picture, "--plot", model)


def _target(reject: float | None, error: float | None, delta: float) -> Target:
    if (reject is None) == (error is None):
        raise ValueError(
            f"--reject is {reject} and --error {error}; expected one of them: take --reject 0.05 to hand "
            "over at most 5% of known images, or --error 0.01 for at most 1% errors among the accepted"
        )
    return MaxRejectionRate(reject) if reject is not None else MaxErrorRate(error or 0.0, delta)
