"""Tables of the README, two guides and the findings, from rows.

    python benchmarks/pages.py    writes each into its page

A table stands below a comment with its name, as in `<!-- rows: every-method -->`. A test compares pages
and rows, so that none can fall behind.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

from daedl.storage import write_atomically
from daedl_bench import paper
from daedl_bench.report import names, summary
from daedl_bench.report.names import seeds
from daedl_bench.report.summary import Results, Summary
from daedl_bench.report.tables import DASH, text
from daedl_bench.spec import catalogue

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
QUICK, BRIEF, PAPER = "mnist-quick", "mnist-brief", "mnist-paper"
BOTH = ("aleatoric", "epistemic")
# What benchmarks/mnist_quick.py calls a candidate for `quick`.
CANDIDATE = "one cycle, {max_epochs} epochs, batch {batch_size}, rate {learning_rate:g}"
TABLE = re.compile(r"(?<=<!-- rows: )([a-z-]+)( -->\n\n)((?:\|.*\n)+)")


class Question(NamedTuple):
    """What a line or a column of a table asks; figures of several scores stand side by side."""

    title: str
    data: str
    task: str
    metric: str
    scores: tuple[str, ...] = BOTH


ACCURACY = Question("accuracy", "mnist", "classification", "accuracy", ("labels",))
BRIER = Question("Brier score (lower is better)", "mnist", "classification", "brier", ("probs",))
ECE = Question("calibration error ECE (lower is better)", "mnist", "calibration", "ece", ("probs",))
MISCLASSIFICATION = Question(
    "misclassification AUPR, aleatoric", "mnist", "misclassification", "aupr", ("aleatoric",)
)
KMNIST = Question("KMNIST: AUPR", "kmnist", "ood", "aupr")
FASHION = Question("Fashion-MNIST: AUPR", "fashion-mnist", "ood", "aupr")
MNIST_C = Question("MNIST-C: AUPR", "mnist-c", "shift", "aupr")
DETECTION = (KMNIST, FASHION, MNIST_C)


def protocols(found: Results) -> list[str]:
    """DAEDL under the paper's protocol and the quick one, beside the paper's figures."""
    questions = [
        ACCURACY,
        BRIER,
        MISCLASSIFICATION,
        KMNIST,
        KMNIST._replace(title="KMNIST: AUROC", metric="auroc"),
        FASHION,
        FASHION._replace(title="Fashion-MNIST: AUROC", metric="auroc"),
        MNIST_C,
    ]
    columns = ((PAPER, "daedl"), (QUICK, "daedl"), (QUICK, "daedl-loo"))
    heads = [
        f"{names.method(label)}, {protocol.removeprefix('mnist-')}, "
        + seeds(_count(found, protocol, label))
        for protocol, label in columns
    ]
    return _table(
        ["", "published", *heads],
        (
            [
                each.title,
                _published("daedl", each),
                *(_figures(found, *column, each) for column in columns),
            ]
            for each in questions
        ),
    )


def ablation(found: Results) -> list[str]:
    """The parts of DAEDL, and softmax, under the quick protocol."""
    labels = ("softmax", "edl", "exp", "exp+de", "exp+sn", "daedl")
    return _table(
        ["", *map(names.method, labels)],
        (
            [each.title, *(_figures(found, QUICK, label, each) for label in labels)]
            for each in (ACCURACY, ECE, *DETECTION)
        ),
    )


def every_method(found: Results) -> list[str]:
    """A line for each method with rows: what it gives, and what it costs."""
    lines = []
    for label in found.catalogue.experiment("mnist-ood").methods:
        if not _count(found, BRIEF, label):
            continue
        costs = (
            found.get(BRIEF, label, "cost", "cost", each, "relative")
            for each in ("step", "prediction")
        )
        lines.append(
            [
                names.method(label),
                str(_count(found, BRIEF, label)),
                *(_figures(found, BRIEF, label, each) for each in (ACCURACY, ECE)),
                *(_figures(found, BRIEF, label, each) for each in DETECTION),
                *(DASH if each is None else text(each, scale=1) for each in costs),
            ]
        )
    heads = "seeds,accuracy,ECE,KMNIST,Fashion-MNIST,MNIST-C,step,prediction"
    return _table(["", *heads.split(",")], lines)


def wrapped(found: Results) -> list[str]:
    """What the density gives to a softmax network that is trained already."""
    names = {
        "softmax": "softmax, as it is",
        "retrofit": "networks like these with the density, `retrofit`",
        "daedl": "DAEDL",
    }
    return _table(
        ["", "accuracy", "calibration error", "KMNIST", "Fashion-MNIST", "MNIST-C"],
        (
            [
                f"{name} ({seeds(_count(found, BRIEF, label))})",
                *(_figures(found, BRIEF, label, each) for each in (ACCURACY, ECE, *DETECTION)),
            ]
            for label, name in names.items()
        ),
    )


def prevalence(found: Results) -> list[str]:
    """AUPR with one known image in two and in eight, beside rows that were printed for one in eight."""
    lines = []
    for label in ("postnet", "kl-pn", "dropout", "rkl-pn"):
        cells, counts = [], set()
        for question in (KMNIST, FASHION):
            one_in_eight = [
                Summary.of(
                    row.value
                    for row in found.rows
                    if (row.experiment, row.method, row.data, row.score)
                    == ("prevalence", label, question.data, score)
                )
                for score in BOTH
            ]
            counts |= {each.n for each in one_in_eight}
            cells += [
                _figures(found, BRIEF, label, question),
                " / ".join(map(text, one_in_eight)),
                _published(label, question),
            ]
        (count,) = counts
        of = _count(found, BRIEF, label)
        part = "" if count == of else f", {count} of them at 1 to 7"
        lines.append([f"{names.method(label)} ({seeds(of)}{part})", *cells])
    heads = ["ours, 1 to 1", "ours, 1 to 7", "printed"]
    sets = [f"KMNIST: {heads[0]}", *heads[1:], f"Fashion-MNIST: {heads[0]}", *heads[1:]]
    return _table(["", *sets], lines)


def quick_and_paper(found: Results) -> list[str]:
    """DAEDL under all protocols, and under candidates with lower rates than `quick`."""
    recipe = found.catalogue.protocols[QUICK].training
    names = {
        CANDIDATE.format_map({**recipe, "learning_rate": rate}): f"up to {rate:g}"
        for rate in (2e-3, 1e-3)
    }
    values = defaultdict(list)
    for row in found.rows:
        if row.protocol in names and row.data != "validation":
            key = row.protocol, row.data, row.task, row.metric, row.score
            values[key].append(row.value or 0.0)
    questions = [
        ACCURACY,
        KMNIST,
        FASHION,
        Question("uniform noise: AUROC", "noise-grey", "ood", "auroc"),
        MNIST_C,
        MNIST_C._replace(title="MNIST-C: AUROC", metric="auroc"),
    ]
    lines = []
    for each in questions:
        cells = [
            " / ".join(text(Summary.of(values[name, *each[1:4], score])) for score in each.scores)
            for name in names
        ]
        brief, quick, paper_ = (
            _figures(found, name, "daedl", each) for name in (BRIEF, QUICK, PAPER)
        )
        lines.append([each.title, brief, *cells, quick, paper_])
    brief, quick, paper_ = (
        f"{name.removeprefix('mnist-')}, {seeds(_count(found, name, 'daedl'))}"
        for name in (BRIEF, QUICK, PAPER)
    )
    heads = [
        f"{short}, {seeds(len(values[name, *ACCURACY[1:4], 'labels']))}"
        for name, short in names.items()
    ]
    return _table(["", brief, *heads, quick, paper_], lines)


def candidates(found: Results) -> list[str]:
    """What was compared to choose `quick`, by figures on validation images; the lowest loss first."""
    lines = [
        ([_recipe(name, found)], figures)
        for (name, _), figures in sorted(
            _on_validation_images(found).items(), key=lambda line: fmean(line[1]["validation"])
        )
        if name.startswith("one cycle")
    ]
    return _validated(["candidate"], lines)


def unknown_digits(found: Results) -> list[str]:
    """AUROC of candidates for `quick` against digits left out of training; the highest mean first."""
    values: dict[str, dict[str, dict[str, float]]] = {}
    for row in found.rows:
        if row.data.startswith("digits ") and row.metric == "auroc" and row.score in BOTH:
            sets = values.setdefault(row.protocol, {})
            sets.setdefault(row.data, {})[row.score] = row.value or 0.0
    # Those that all candidates were asked about.
    asked = sorted(set.intersection(*map(set, values.values())))
    means = {
        name: fmean(value for each in asked for value in sets[each].values())
        for name, sets in values.items()
    }
    lines = [
        [
            _recipe(name, found),
            *(
                " / ".join(f"{100 * values[name][each][score]:.2f}" for score in BOTH)
                for each in asked
            ),
            f"{100 * means[name]:.2f}",
        ]
        for name in sorted(means, key=lambda name: -means[name])
    ]
    return _table(["candidate", *asked, "mean"], lines)


def rates(found: Results) -> list[str]:
    """Rates at which methods were tried under `brief`, by figures on validation images."""
    values = _on_validation_images(found)
    lines = [
        ([names.method(label), rate], figures)
        for label in found.catalogue.methods
        for rate in ("0.004", "0.001")
        if (figures := values.get((f"brief, rate {rate}", label)))
    ]
    return _validated(["", "rate"], lines)


TABLES: Mapping[str, Callable[[Results], list[str]]] = MappingProxyType(
    {
        "protocols": protocols,
        "ablation": ablation,
        "every-method": every_method,
        "wrapped": wrapped,
        "prevalence": prevalence,
        "quick-and-paper": quick_and_paper,
        "candidates": candidates,
        "unknown-digits": unknown_digits,
        "rates": rates,
    }
)
PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "experiments.md",
    ROOT / "docs" / "say_i_dont_know.md",
    RESULTS / "findings.md",
)


def written(page: str, found: Results) -> str:
    """The page with its tables as the rows are now."""

    def table(match: re.Match[str]) -> str:
        name, mark, _ = match.groups()
        return f"{name}{mark}" + "\n".join(TABLES[name](found)) + "\n"

    return TABLE.sub(table, page)


def _table(heads: list[str], lines: Iterable[list[str]]) -> list[str]:
    marks = ["---"] * len(heads)
    first, *rest = (f"| {' | '.join(cells)} |" for cells in (heads, *lines))
    return [first.replace("|  |", "| |", 1), f"|{'|'.join(marks)}|", *rest]


def _recipe(name: str, found: Results) -> str:
    """The name of a candidate, after that of the protocol which it became."""
    became = (
        f"`{protocol.removeprefix('mnist-')}`: "
        for protocol in (QUICK, BRIEF)
        if CANDIDATE.format_map(found.catalogue.protocols[protocol].training) == name
    )
    return next(became, "") + name


def _on_validation_images(found: Results) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Values over the seeds of what was trained to choose, by recipe and method, then by metric."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in found.rows:
        if row.data == "validation":
            figures = values.setdefault((row.protocol, row.method), {})
            figures.setdefault(row.metric, []).append(row.value or 0.0)
    return values


def _validated(
    heads: list[str], lines: list[tuple[list[str], dict[str, list[float]]]]
) -> list[str]:
    """Means over seeds, without what no line has."""
    columns = {
        "validation": ("validation loss", "{:.5f}"),
        "accuracy": ("accuracy", "{:.2%}"),
        "brier": ("Brier", "{:.4f}"),
        "nll": ("NLL", "{:.4f}"),
        "seconds": ("seconds", "{:.0f}"),
    }
    shown = [metric for metric in columns if any(metric in each for _, each in lines)]
    return _table(
        [*heads, *(columns[metric][0] for metric in shown), "seeds"],
        (
            [
                *name,
                *(
                    columns[metric][1].format(fmean(figures[metric])) if metric in figures else DASH
                    for metric in shown
                ),
                str(len(figures["validation"])),
            ]
            for name, figures in lines
        ),
    )


def _count(found: Results, protocol: str, label: str) -> int:
    """Seeds of the accuracy."""
    summary = found.get(protocol, label, *ACCURACY[1:3], "labels", "accuracy")
    return 0 if summary is None else summary.n


def _figure(
    found: Results, protocol: str, label: str, question: Question, score: str
) -> str | None:
    """Mean and deviation, with the number of seeds where it isn't the accuracy's."""
    summary = found.get(protocol, label, question.data, question.task, score, question.metric)
    if summary is None:
        return None
    return text(summary, count=summary.n != _count(found, protocol, label))


def _figures(found: Results, protocol: str, label: str, question: Question) -> str:
    """The figures of every score; one dash where there are none."""
    cells = [_figure(found, protocol, label, question, score) for score in question.scores]
    return " / ".join(each or DASH for each in cells) if any(cells) else DASH


def _published(method: str, question: Question) -> str:
    """The paper's means."""
    means = {
        column.score: row.mean
        for table in paper.tables().values()
        for column, row in zip(table.columns, table.rows.get(method, ()), strict=False)
        if row and (column.id, column.ood) == ("mnist", question.data)
        if (column.task, column.metric) == (question.task, question.metric)
    }
    cells = [f"{means[each]:.2f}" if each in means else DASH for each in question.scores]
    return " / ".join(cells) if means else DASH


def main() -> int:
    """Write the tables of every page."""
    found = summary.load(RESULTS, catalogue())
    for path in PAGES:
        write_atomically(path, written(path.read_text("utf-8"), found).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
