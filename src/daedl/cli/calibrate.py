"""`daedl calibrate`: choose thresholds for accepting predictions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from daedl.cli.common import Device
from daedl.cli.images import (
    Force,
    ModelFile,
    ModelOut,
    SkipBroken,
    load_any,
    model_output,
    read_known,
)
from daedl.cli.results import require_output_file
from daedl.regressor import Regressor
from daedl.selective import MaxErrorRate, MaxRejectionRate, MaxWidth, On, Target
from daedl.storage import expand_user, write_atomically


def calibrate(
    model: ModelFile,
    data: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Held-out images of known classes: a folder with one subfolder per class, or a .npz "
            "file; a CSV file for a regressor.",
        ),
    ],
    reject: Annotated[
        float | None,
        typer.Option(help="Maximum share of in-distribution images to reject, such as 0.05."),
    ] = None,
    error: Annotated[
        float | None,
        typer.Option(help="Maximum error rate of accepted in-distribution images, such as 0.01."),
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(help="For a regressor: largest width of accepted 90% intervals."),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="With --error: the probability that the guarantee fails.")
    ] = 0.05,
    on: Annotated[
        On | None,
        typer.Option(
            metavar="SCORES",
            help="Scores to threshold: epistemic, aleatoric, both or all (with the density); by default "
            "those that the method has.",
        ),
    ] = None,
    out: ModelOut = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="PNG file for the risk-coverage plot; by default MODEL.risk.png."),
    ] = None,
    force: Force = False,
    skip_broken: SkipBroken = False,
    device: Device = "cpu",
) -> None:
    """Choose thresholds on held-out images, save them in the model, and plot risk against coverage.

    `daedl predict` and `daedl serve` then report whether to accept each prediction, or why not. The
    guarantee holds for new inputs from the distribution of the held-out ones.
    """
    from daedl import figures  # noqa: PLC0415 (imports matplotlib, which is slow)

    destination = model_output(model, out, force)
    plot = plot or destination.with_name(f"{destination.name}.risk.png")
    if plot.suffix.lower() != ".png":
        raise ValueError(f"--plot is {plot}; expected a file name that ends in .png: rename it")
    require_output_file(plot, "--plot", model)
    classifier = load_any(model, device)
    rules: dict[str, Callable[[float], Target]] = {
        "--reject": MaxRejectionRate,
        "--error": lambda rate: MaxErrorRate(rate, delta),
    }
    if isinstance(classifier, Regressor):
        rules["--width"] = MaxWidth
    target = _target(rules, {"--reject": reject, "--error": error, "--width": width})
    if isinstance(classifier, Regressor):
        typer.echo(classifier.calibrate(expand_user(data), target))
        classifier.save(destination)
        typer.echo(f"Saved the model to {destination}.")
        return
    held_out = read_known(data, classifier, skip_broken)
    thresholds = classifier.calibrate(held_out, target, on)
    prediction = classifier.predict(held_out).to("cpu")
    figure = figures.risk_coverage(prediction, held_out.labels, thresholds)
    write_atomically(plot, figures.png(figure))
    classifier.save(destination)
    typer.echo(thresholds)
    typer.echo(f"Saved the model to {destination} and the risk-coverage plot to {plot}.")


def _target(
    rules: Mapping[str, Callable[[float], Target]], values: Mapping[str, float | None]
) -> Target:
    """The rule of the only option that has a value."""
    given = {option: value for option, value in values.items() if value is not None}
    if len(given) == 1 and given.keys() <= rules.keys():
        ((option, value),) = given.items()
        return rules[option](value)
    arrived = " and ".join(f"{option} {value:g}" for option, value in given.items())
    raise ValueError(
        f"the target is {arrived or 'missing'}; expected exactly one of {', '.join(rules)}: --reject 0.05 "
        "to reject at most 5% of in-distribution inputs, --error 0.01 for at most 1% errors among accepted "
        "ones, or for a regressor --width X to reject intervals wider than X"
    )
