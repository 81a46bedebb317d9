"""`daedl evaluate`: accuracy, calibration and OOD detection of a model."""

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from daedl import evaluate as tasks
from daedl import metrics
from daedl.checks import NotFittedError
from daedl.cli.common import Threads, report_errors, using_threads
from daedl.cli.images import ModelFile, SkipBroken, load_model, read_known, read_unknown
from daedl.cli.results import (
    Format,
    FormatOption,
    OutOption,
    Record,
    make_table,
    require_output_file,
    write_records,
)
from daedl.evaluate import Measured


def evaluate(
    model: ModelFile,
    known: Annotated[
        str,
        typer.Option(
            "--id",
            help="Images of known classes: a folder with one subfolder per class, or a .npz file.",
        ),
    ],
    unknown: Annotated[
        list[str] | None,
        typer.Option(
            "--ood",
            help="OOD images: a folder, flat or nested, or a .npz file; may be repeated.",
        ),
    ] = None,
    form: FormatOption = Format.TABLE,
    out: OutOption = None,
    skip_broken: SkipBroken = False,
    threads: Threads = None,
) -> None:
    """Evaluate a model on images of known classes, and its uncertainty scores on OOD images.

    Values are fractions, except for the log loss. In-distribution is the positive class.
    """
    with report_errors(OSError, ValueError, NotFittedError), using_threads(threads):
        if out is not None:
            require_output_file(out, model=model)
        classifier = load_model(model)
        inside = read_known(known, classifier, skip_broken)
        # All datasets are read before any prediction, so that a wrong path fails immediately.
        outside = {
            source: read_unknown(source, classifier, skip_broken) for source in unknown or []
        }
        prediction = classifier.predict(inside)
        records = _records(known, len(inside), tasks.classification(prediction, inside.labels))
        for source, others in outside.items():
            measured = tasks.ood_detection(prediction, classifier.predict(others))
            records += _records(source, len(others), measured)
        write_records(records, _table(records, list(prediction.scores())), form, out)


def _records(data: str, images: int, measured: Sequence[Measured]) -> list[Record]:
    return [{"data": data, "images": images, **each._asdict()} for each in measured]


def _table(records: Sequence[Record], scores: Sequence[str]) -> Table:
    """One row per dataset and metric, one column per uncertainty score."""
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    for record in records:
        data = f"{record['data']} ({record['images']} images)"
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
    return make_table(["data", "metric", *columns], cells, texts=2)
