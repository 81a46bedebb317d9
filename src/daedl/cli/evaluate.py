"""`daedl evaluate`: accuracy, calibration and OOD detection of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from daedl import evaluate as tasks
from daedl import metrics
from daedl.cli import results, tables
from daedl.cli.common import Device
from daedl.cli.images import ModelFile, SkipBroken, load_any, read_known, read_unknown
from daedl.evaluate import Measured
from daedl.prediction import Prediction
from daedl.regressor import Regressor
from daedl.storage import write_atomically


def evaluate(
    model: ModelFile,
    known: Annotated[
        str,
        typer.Option(
            "--id",
            help="Images of known classes: a folder with one subfolder per class, or a .npz file; or a CSV "
            "file of texts, or for a regressor.",
        ),
    ],
    unknown: Annotated[
        list[str] | None,
        typer.Option(
            "--ood",
            help="OOD images: a folder, flat or nested, or a .npz file; or a file of texts; may be repeated.",
        ),
    ] = None,
    form: results.FormatOption = None,
    out: results.OutOption = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="HTML file for a report: classes, confusions, score histograms, calibration, and images "
            "that are wrong or unexpected."
        ),
    ] = None,
    skip_broken: SkipBroken = False,
    device: Device = "cpu",
) -> None:
    """Evaluate a model on data of known classes, and its uncertainty scores on OOD data.

    Values are fractions, except for the log loss. In-distribution is the positive class.
    """
    _require_outputs(model, out, report)
    classifier = load_any(model, device)
    if isinstance(classifier, Regressor):
        if report is not None:
            raise ValueError(
                f"--report is {report} for a model that predicts numbers; expected a classifier: leave "
                "--report out, the figures are printed or written with --out"
            )
        tables.evaluate(classifier, known, unknown or [], form, out)
        return
    inside = read_known(known, classifier, skip_broken)
    # All datasets are read before any prediction, so that a wrong path fails immediately.
    outside = {source: read_unknown(source, classifier, skip_broken) for source in unknown or []}
    prediction = classifier.predict(inside).to("cpu")
    others = {source: classifier.predict(each).to("cpu") for source, each in outside.items()}
    records = _records(known, tasks.classification(prediction, inside.labels), prediction)
    for source, other in others.items():
        records += _records(source, tasks.ood_detection(prediction, other), other)
    results.write_records(
        records, _table(records, list(prediction.scores()), inside.noun), form, out
    )
    if report is not None:
        from daedl.report import evaluation  # noqa: PLC0415 (imports matplotlib, which is slow)

        datasets = (inside, *outside.values()), (prediction, *others.values())
        evaluated = map(evaluation.Evaluated, _short_names([known, *outside]), *datasets)
        html = evaluation.render(model.name, classifier, *evaluated)
        # Class names may be invalid UTF-8.
        write_atomically(report, html.encode("utf-8", "replace"))
        typer.echo(f"Saved the report to {report}.", err=True)


def _require_outputs(model: Path, out: Path | None, report: Path | None) -> None:
    """Raise if an output can't be written, before anything is computed."""
    for option, path in (("--out", out), ("--report", report)):
        if path is not None:
            results.require_output_file(path, option, model)
    if report is not None and out is not None and report.absolute() == out.absolute():
        raise ValueError(f"--out and --report are both {out}; expected two files: rename one")


def _short_names(sources: Sequence[str]) -> list[str]:
    """Returns the last parts of the paths as valid text, or the paths themselves where these are equal."""
    last = [Path(source).name or source for source in sources]
    names = [
        source if last.count(name) > 1 else name for source, name in zip(sources, last, strict=True)
    ]
    return [results.printable(name).encode("utf-8", "replace").decode() for name in names]


def _records(
    data: str, measured: Sequence[Measured], prediction: Prediction
) -> list[results.Record]:
    return [
        {"data": data, "images": len(prediction), **each._asdict()}
        for each in (*measured, *tasks.acceptance(prediction))
    ]


def _table(records: Sequence[results.Record], scores: Sequence[str], noun: str) -> Table:
    """One row per dataset and metric, one column per uncertainty score."""
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    for record in records:
        data = f"{record['data']} ({record['images']} {noun})"
        row = values.setdefault((data, record["task"], record["metric"]), {})
        # Metrics of probabilities or labels have no uncertainty score: they use the first column.
        row[record["score"] if record["score"] in scores else ""] = record["value"]
    columns = ("", *scores)
    cells = []
    previous = ""
    for (data, task, metric), row in values.items():
        shown = "" if data == previous else data
        cells.append([shown, metrics.title(task, metric), *(row.get(name) for name in columns)])
        previous = data
    return results.make_table(["data", "metric", *columns], cells, texts=2)
