"""`daedl evaluate`: how right a model is on known images, and whether it notices unknown ones."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from daedl import evaluate as tasks
from daedl.checks import NotFittedError
from daedl.classifier import Classifier
from daedl.cli.common import Threads, report_errors, using_threads
from daedl.cli.images import (
    ModelFile,
    predict_images,
    read_known,
    read_unknown,
)
from daedl.cli.results import (
    Format,
    FormatOption,
    OutOption,
    Record,
    make_table,
    require_place,
    write_records,
)
from daedl.evaluate import Measured

# What a line of the table shows: its name, by the task and the metric.
LINES = {
    ("classification", "accuracy"): "accuracy ↑",
    ("classification", "brier"): "Brier score ↓",
    ("classification", "nll"): "log loss (NLL) ↓",
    ("calibration", "ece"): "calibration error (ECE) ↓",
    ("misclassification", "aupr"): "misclassification AUPR ↑",
    ("misclassification", "aurc"): "risk-coverage area (AURC) ↓",
    ("ood", "aupr"): "AUPR ↑",
    ("ood", "auroc"): "AUROC ↑",
    ("ood", "fpr95"): "FPR95 ↓",
}


def evaluate(
    model: ModelFile,
    known: Annotated[
        str,
        typer.Option(
            "--id",
            help="Images of known classes: a folder with a subfolder for each class, a .npz file.",
        ),
    ],
    unknown: Annotated[
        list[str] | None,
        typer.Option(
            "--ood",
            help="Images of anything else: a folder, flat or nested, or a .npz file; "
            "may be given several times.",
        ),
    ] = None,
    form: FormatOption = Format.TABLE,
    out: OutOption = None,
    threads: Threads = None,
) -> None:
    """Measure a model on known images, and how well its uncertainties tell unknown ones from them.

    Figures are shares of 1, except for the log loss. Known images are the positive class.
    """
    with report_errors(OSError, ValueError, NotFittedError), using_threads(threads):
        if out is not None:
            require_place(out, model=model)
        classifier = Classifier.load(model)
        inside = read_known(known, classifier)
        # All are read before the first is predicted, so that a wrong path is found out at once.
        outside = {source: read_unknown(source, classifier) for source in unknown or []}
        prediction = predict_images(classifier, inside.images)
        records = _records(known, len(inside), tasks.classification(prediction, inside.labels))
        for source, others in outside.items():
            measured = tasks.ood_detection(prediction, predict_images(classifier, others.images))
            records += _records(source, len(others), measured)
        write_records(records, _table(records, list(prediction.scores())), form, out)


def _records(data: str, images: int, measured: Sequence[Measured]) -> list[Record]:
    return [{"data": data, "images": images, **each._asdict()} for each in measured]


def _table(records: Sequence[Record], scores: Sequence[str]) -> Table:
    """A line for each data set and measure, a column for each uncertainty score."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for record in records:
        data = f"{record['data']} ({record['images']} images)"
        line = found.setdefault((data, LINES[record["task"], record["metric"]]), {})
        # What looks at probabilities or labels belongs to no score.
        line[record["score"] if record["score"] in scores else ""] = record["value"]
    columns = ("", *scores)
    cells: list[list[Any]] = []
    before = ""
    for (data, measure), line in found.items():
        shown = "" if data == before else data
        cells.append([shown, measure, *(line.get(name) for name in columns)])
        before = data
    return make_table(["data", "measure", *columns], cells, texts=2)
