"""Writes the tables of the documentation from rows.

A table stands below a comment with its name, as in `<!-- rows: every-method -->`. A test compares the
pages with the rows.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd
import typer

from daedl.storage import write_atomically
from daedl_bench import methods_page, paper, results
from daedl_bench.comparison import titles
from daedl_bench.options import RESULTS, ResultsFolder
from daedl_bench.spec import Catalogue, catalogue
from daedl_bench.studies import mnist_quick

# Pages with tables, from the root of the repository.
PAGES = (
    "README.md",
    "docs/results.md",
    "docs/experiments.md",
    "docs/say_i_dont_know.md",
    "benchmarks/results/findings.md",
)
MARKED = re.compile(r"(?<=<!-- rows: )([a-z-]+)( -->\n\n)((?:\|.*\n)+)")
QUICK, BRIEF, PAPER = "mnist-quick", "mnist-brief", "mnist-paper"
BOTH = ("aleatoric", "epistemic")
DASH = "–"
app = typer.Typer()


class Summary(NamedTuple):
    """A figure over `n` seeds; the standard deviation of one seed is NaN."""

    mean: float
    std: float
    n: int

    def text(self, scale: float = 100, count: bool = False) -> str:
        """ "99.85 ± 0.03", with the number of seeds if `count`."""
        shown = f"{scale * self.mean:,.2f}"
        if self.n > 1:
            shown += f" ± {scale * self.std:,.2f}"
        return f"{shown} ({self.n})" if count else shown


class Question(NamedTuple):
    """A line or a column of a table; figures of several scores are shown side by side."""

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


class Figures:
    """Figures over seeds, of the experiments and of the studies."""

    def __init__(self, rows: Sequence[results.Row], specs: Catalogue) -> None:
        self.catalogue = specs
        self.rows = results.frame(rows)
        self._summaries = _summaries(results.current(rows, specs))

    def get(self, protocol: str, label: str, question: Question, score: str) -> Summary | None:
        """One figure of an experiment; None if it was not measured."""
        method = self.catalogue.canonical(label)
        _, data, task, metric, _ = question
        return self._summaries.get((protocol, method, data, task, score, metric))

    def of_study(self, **fields: str) -> dict[tuple[str, ...], Summary]:
        """Summaries of the rows whose fields begin with these values."""
        table = self.rows
        for name, value in fields.items():
            table = table[table[name].str.startswith(value)]
        return _summaries(table)

    def seeds(self, protocol: str, label: str) -> int:
        """Number of seeds of the accuracy."""
        summary = self.get(protocol, label, ACCURACY, "labels")
        return 0 if summary is None else summary.n

    def text(self, protocol: str, label: str, question: Question) -> str:
        """The figures of every score; the number of seeds is shown where it is not the accuracy's."""
        found = [self.get(protocol, label, question, score) for score in question.scores]
        seeds = self.seeds(protocol, label)
        cells = [DASH if each is None else each.text(count=each.n != seeds) for each in found]
        return " / ".join(cells) if any(found) else DASH


def _summaries(table: pd.DataFrame) -> dict[tuple[str, ...], Summary]:
    summarised = results.summarise(table)
    lines = summarised.itertuples(index=False, name=None)
    return {key: Summary(*line) for key, line in zip(summarised.index, lines, strict=True)}


def protocols(figures: Figures) -> list[str]:
    """DAEDL under the paper's protocol and the quick one, beside the paper's figures."""
    questions = (
        ACCURACY,
        BRIER,
        MISCLASSIFICATION,
        KMNIST,
        KMNIST._replace(title="KMNIST: AUROC", metric="auroc"),
        FASHION,
        FASHION._replace(title="Fashion-MNIST: AUROC", metric="auroc"),
        MNIST_C,
    )
    columns = ((PAPER, "daedl"), (QUICK, "daedl"), (QUICK, "daedl-loo"))
    heads = [
        f"{titles.method(label)}, {_short(protocol)}, {_seeds(figures.seeds(protocol, label))}"
        for protocol, label in columns
    ]
    return _markdown(
        ["", "published", *heads],
        (
            [each.title, _published("daedl", each), *(figures.text(*c, each) for c in columns)]
            for each in questions
        ),
    )


def ablation(figures: Figures) -> list[str]:
    """The parts of DAEDL, and softmax, under the quick protocol."""
    labels = ("softmax", "edl", "exp", "exp+de", "exp+sn", "daedl")
    return _markdown(
        ["", *map(titles.method, labels)],
        (
            [each.title, *(figures.text(QUICK, label, each) for label in labels)]
            for each in (ACCURACY, ECE, *DETECTION)
        ),
    )


def every_method(figures: Figures) -> list[str]:
    """Figures and costs of each method under the brief protocol."""
    cost = Question("", "cost", "cost", "relative")
    lines = []
    for label in figures.catalogue.experiment("mnist-ood").methods:
        if seeds := figures.seeds(BRIEF, label):
            costs = [figures.get(BRIEF, label, cost, each) for each in ("step", "prediction")]
            lines.append(
                [
                    titles.method(label),
                    str(seeds),
                    *(figures.text(BRIEF, label, each) for each in (ACCURACY, ECE, *DETECTION)),
                    *(DASH if each is None else each.text(scale=1) for each in costs),
                ]
            )
    heads = "seeds,accuracy,ECE,KMNIST,Fashion-MNIST,MNIST-C,step,prediction"
    return _markdown(["", *heads.split(",")], lines)


def wrapped(figures: Figures) -> list[str]:
    """What the density adds to a softmax network that is trained already."""
    names = {
        "softmax": "softmax, as it is",
        "retrofit": "networks like these with the density, `retrofit`",
        "daedl": "DAEDL",
    }
    return _markdown(
        ["", "accuracy", "calibration error", "KMNIST", "Fashion-MNIST", "MNIST-C"],
        (
            [
                f"{name} ({_seeds(figures.seeds(BRIEF, label))})",
                *(figures.text(BRIEF, label, each) for each in (ACCURACY, ECE, *DETECTION)),
            ]
            for label, name in names.items()
        ),
    )


def prevalence(figures: Figures) -> list[str]:
    """AUPR with one in-distribution image in two and in eight, beside figures printed for the latter."""
    study = figures.of_study(experiment="prevalence")
    lines = []
    for label in ("postnet", "kl-pn", "dropout", "rkl-pn"):
        cells, counts = [], set()
        for each in (KMNIST, FASHION):
            of_each = [
                study[BRIEF, label, each.data, "ood", score, "aupr, one in eight"] for score in BOTH
            ]
            counts |= {summary.n for summary in of_each}
            one_in_eight = " / ".join(summary.text() for summary in of_each)
            cells += [figures.text(BRIEF, label, each), one_in_eight, _published(label, each)]
        (count,), of = counts, figures.seeds(BRIEF, label)
        part = "" if count == of else f", {count} of them at 1 to 7"
        lines.append([f"{titles.method(label)} ({_seeds(of)}{part})", *cells])
    heads = ["ours, 1 to 1", "ours, 1 to 7", "printed"]
    sets = [f"KMNIST: {heads[0]}", *heads[1:], f"Fashion-MNIST: {heads[0]}", *heads[1:]]
    return _markdown(["", *sets], lines)


def quick_and_paper(figures: Figures) -> list[str]:
    """DAEDL under all protocols, and under candidates with lower rates than `quick`."""
    recipe = figures.catalogue.protocols[QUICK].training
    names = {mnist_quick.name({**recipe, "learning_rate": r}): f"up to {r:g}" for r in (2e-3, 1e-3)}
    study = figures.of_study(experiment=mnist_quick.EXPERIMENT)
    questions = (
        ACCURACY,
        KMNIST,
        FASHION,
        Question("uniform noise: AUROC", "noise-grey", "ood", "auroc"),
        MNIST_C,
        MNIST_C._replace(title="MNIST-C: AUROC", metric="auroc"),
    )

    def of(name: str, each: Question) -> list[Summary]:
        _, data, task, metric, scores = each
        return [study[name, "daedl", data, task, score, metric] for score in scores]

    lines = [
        [
            each.title,
            figures.text(BRIEF, "daedl", each),
            *(" / ".join(summary.text() for summary in of(name, each)) for name in names),
            *(figures.text(protocol, "daedl", each) for protocol in (QUICK, PAPER)),
        ]
        for each in questions
    ]
    brief, quick, published = (
        f"{_short(name)}, {_seeds(figures.seeds(name, 'daedl'))}" for name in (BRIEF, QUICK, PAPER)
    )
    heads = [f"{short}, {_seeds(of(name, ACCURACY)[0].n)}" for name, short in names.items()]
    return _markdown(["", brief, *heads, quick, published], lines)


def candidates(figures: Figures) -> list[str]:
    """The candidates for `quick` by figures of validation images, the lowest loss first."""
    study = figures.of_study(data="validation", protocol=mnist_quick.ONE_CYCLE)
    keys = {key[:2] for key in study}
    ordered = sorted(keys, key=lambda key: _validation(study, *key)["validation"].mean)
    return _validated(
        ["candidate"],
        [([_recipe(key[0], figures)], _validation(study, *key)) for key in ordered],
    )


def rates(figures: Figures) -> list[str]:
    """Learning rates that were tried under `brief`, by figures of validation images."""
    study = figures.of_study(data="validation", protocol="brief, rate")
    lines = [
        ([titles.method(label), f"{rate:g}"], found)
        for label in figures.catalogue.methods
        for rate in mnist_quick.RATES
        if (found := _validation(study, f"brief, rate {rate:g}", label))
    ]
    return _validated(["", "rate"], lines)


def unknown_digits(figures: Figures) -> list[str]:
    """AUROC of candidates for `quick` against digits left out of training, the highest mean first."""
    rows = figures.rows
    rows = rows[rows["data"].str.startswith("digits ") & (rows["metric"] == "auroc")]
    rows = rows[rows["score"].isin(BOTH)]
    # Datasets that every candidate was measured on.
    table = rows.pivot_table("value", "protocol", ["data", "score"]).dropna(axis="columns")
    values, means = table.T.to_dict(), table.mean(axis="columns").to_dict()
    sets = [str(each) for each in table.columns.unique("data")]
    lines = [
        [
            _recipe(name, figures),
            *(" / ".join(f"{100 * values[name][each, s]:.2f}" for s in BOTH) for each in sets),
            f"{100 * means[name]:.2f}",
        ]
        for name in sorted(map(str, means), key=lambda name: -means[name])
    ]
    return _markdown(["candidate", *sets, "mean"], lines)


TABLES: Mapping[str, Callable[[Figures], list[str]]] = MappingProxyType(
    {
        each.__name__.replace("_", "-"): each
        for each in (
            protocols,
            ablation,
            every_method,
            wrapped,
            prevalence,
            quick_and_paper,
            candidates,
            unknown_digits,
            rates,
        )
    }
)


def written(page: str, figures: Figures) -> str:
    """The page with its tables as the rows are now."""

    def table(match: re.Match[str]) -> str:
        name, mark, _ = match.groups()
        return f"{name}{mark}" + "\n".join(TABLES[name](figures)) + "\n"

    return MARKED.sub(table, page)


def _validation(
    study: Mapping[tuple[str, ...], Summary], protocol: str, label: str
) -> dict[str, Summary]:
    """Figures of validation images by metric."""
    return {key[-1]: each for key, each in study.items() if key[:2] == (protocol, label)}


def _validated(heads: list[str], lines: list[tuple[list[str], dict[str, Summary]]]) -> list[str]:
    """Means over seeds, without columns that no line has."""
    columns = {
        "validation": ("validation loss", "{:.5f}"),
        "accuracy": ("accuracy", "{:.2%}"),
        "brier": ("Brier", "{:.4f}"),
        "nll": ("NLL", "{:.4f}"),
        "seconds": ("seconds", "{:.0f}"),
    }
    shown = {key: each for key, each in columns.items() if any(key in of for _, of in lines)}
    return _markdown(
        [*heads, *(head for head, _ in shown.values()), "seeds"],
        (
            [
                *name,
                *(
                    form.format(of[key].mean) if key in of else DASH
                    for key, (_, form) in shown.items()
                ),
                str(of["validation"].n),
            ]
            for name, of in lines
        ),
    )


def _recipe(name: str, figures: Figures) -> str:
    """The name of a candidate, after the name of the protocol that it became."""
    became = (
        f"`{_short(protocol)}`: "
        for protocol in (QUICK, BRIEF)
        if mnist_quick.name(figures.catalogue.protocols[protocol].training) == name
    )
    return next(became, "") + name


def _published(method: str, question: Question) -> str:
    """The paper's means."""
    means = {
        column.score: figure.mean
        for table in paper.tables().values()
        for column, figure in zip(table.columns, table.rows.get(method, ()), strict=False)
        if figure and (column.id, column.ood) == ("mnist", question.data)
        if (column.task, column.metric) == (question.task, question.metric)
    }
    cells = [f"{means[each]:.2f}" if each in means else DASH for each in question.scores]
    return " / ".join(cells) if means else DASH


def _short(protocol: str) -> str:
    return protocol.removeprefix("mnist-")


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def _markdown(heads: list[str], lines: Iterable[list[str]]) -> list[str]:
    first, *rest = (f"| {' | '.join(cells)} |" for cells in (heads, *lines))
    return [first.replace("|  |", "| |", 1), f"|{'---|' * len(heads)}", *rest]


@app.command()
def main(folder: ResultsFolder = RESULTS, root: Path = Path()) -> None:
    """Write the tables of every page from the rows, and docs/methods.md from the methods."""
    figures = Figures(results.load_folder(folder), catalogue())
    for page in PAGES:
        path = root / page
        write_atomically(path, written(path.read_text("utf-8"), figures).encode())
    write_atomically(root / "docs/methods.md", methods_page.markdown().encode())
