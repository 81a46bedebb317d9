"""Writes the tables of the documentation from rows.

A table stands below a comment with its name, as in `<!-- rows: every-method -->`. A test compares the
pages with the rows.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import typer
from pandas import DataFrame, isna

from daedl.storage import write_atomically
from daedl_bench import methods_page, names, paper
from daedl_bench.names import DASH, markdown
from daedl_bench.options import RESULTS, ResultsFolder
from daedl_bench.spec import catalogue
from daedl_bench.studies import mnist_quick
from daedl_bench.studies.panel.verdict import panel, panel_goals
from daedl_bench.summary import Results, Summary

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
# The summary of (protocol, method, data, task, score, metric), or None.
Get = Callable[..., Summary | None]
app = typer.Typer()


class Question(NamedTuple):
    """A line or a column of a table; figures of several scores are shown side by side."""

    title: str
    data: str
    task: str
    metric: str
    scores: tuple[str, ...] = BOTH

    def ask(self, get: Get, protocol: str, label: str) -> list[Summary | None]:
        """The summary of every score."""
        return [get(protocol, label, self.data, self.task, s, self.metric) for s in self.scores]

    def text(self, get: Get, protocol: str, label: str) -> str:
        """Every score; the number of seeds is shown where it is not the accuracy's."""
        found, seeds = self.ask(get, protocol, label), _count(get, protocol, label)
        cells = [each.text(count=each.n != (seeds or each.n)) if each else DASH for each in found]
        return " / ".join(cells) if any(found) else DASH

    def published(self, method: str) -> str:
        """The paper's means."""
        means = {
            column.score: figure.mean
            for table in paper.tables().values()
            for column, figure in zip(table.columns, table.rows.get(method, ()), strict=False)
            if figure and (column.id, column.ood) == ("mnist", self.data)
            if (column.task, column.metric) == (self.task, self.metric)
        }
        cells = [f"{means[each]:.2f}" if each in means else DASH for each in self.scores]
        return " / ".join(cells) if means else DASH


ACCURACY = Question("accuracy", "mnist", "classification", "accuracy", ("labels",))
BRIER = Question("Brier score (lower is better)", "mnist", "classification", "brier", ("probs",))
ECE = Question("calibration error ECE (lower is better)", "mnist", "calibration", "ece", ("probs",))
MISCLASSIFICATION = Question(
    "misclassification AUPR, aleatoric", "mnist", "misclassification", "aupr", ("aleatoric",)
)
KMNIST = Question("KMNIST: AUPR", "kmnist", "ood", "aupr")
FASHION = Question("Fashion-MNIST: AUPR", "fashion-mnist", "ood", "aupr")
NOISE = Question("uniform noise: AUROC", "noise-grey", "ood", "auroc")
MNIST_C = Question("MNIST-C: AUPR", "mnist-c", "shift", "aupr")
DETECTION = (KMNIST, FASHION, MNIST_C)
COMPARED = (ACCURACY, ECE, *DETECTION)


def protocols(results: Results) -> str:
    """DAEDL under the paper's protocol and the quick one, beside the paper's figures."""
    questions = (
        *(ACCURACY, BRIER, MISCLASSIFICATION, KMNIST),
        *(KMNIST._replace(title="KMNIST: AUROC", metric="auroc"), FASHION),
        *(FASHION._replace(title="Fashion-MNIST: AUROC", metric="auroc"), MNIST_C),
    )
    return _published(results, questions, (PAPER, "daedl"), (QUICK, "daedl"), (QUICK, "daedl-loo"))


def summary(results: Results) -> str:
    """DAEDL beside the paper's figures, and softmax; for the README."""
    questions = (ACCURACY, *DETECTION)
    return _published(results, questions, (PAPER, "daedl"), (QUICK, "daedl"), (QUICK, "softmax"))


def _published(results: Results, questions: Sequence[Question], *columns: tuple[str, str]) -> str:
    """Columns of (protocol, method), beside the paper's figures of DAEDL."""
    heads = [
        f"{names.method(label)}, {protocol.removeprefix('mnist-')}, "
        f"{names.seeds(_count(results.get, protocol, label))}"
        for protocol, label in columns
    ]
    lines = [
        [each.title, each.published("daedl"), *(each.text(results.get, *c) for c in columns)]
        for each in questions
    ]
    return markdown(["", "published", *heads], lines)


def ablation(results: Results) -> str:
    """The parts of DAEDL, and softmax, under the quick protocol."""
    labels = ("softmax", "edl", "exp", "exp+de", "exp+sn", "daedl")
    lines = [
        [each.title, *(each.text(results.get, QUICK, label) for label in labels)]
        for each in COMPARED
    ]
    return markdown(["", *map(names.method, labels)], lines)


def every_method(results: Results) -> str:
    """Figures and costs of each method under the brief protocol."""
    cost = Question("", "cost", "cost", "relative", ("step", "prediction"))
    lines = [
        [
            names.method(label),
            str(seeds),
            *(each.text(results.get, BRIEF, label) for each in COMPARED),
            *(each.text(scale=1) if each else DASH for each in cost.ask(results.get, BRIEF, label)),
        ]
        for label in results.catalogue.experiment("mnist-ood").methods
        if (seeds := _count(results.get, BRIEF, label))
    ]
    heads = "seeds,accuracy,ECE,KMNIST,Fashion-MNIST,MNIST-C,step,prediction"
    return markdown(["", *heads.split(",")], lines)


def wrapped(results: Results) -> str:
    """What the density adds to a softmax network that is trained already."""
    titles = {
        "softmax": "softmax, as it is",
        "retrofit": "networks like these with the density, `retrofit`",
        "daedl": "DAEDL",
    }
    lines = [
        [
            f"{title} ({names.seeds(_count(results.get, BRIEF, label))})",
            *(each.text(results.get, BRIEF, label) for each in COMPARED),
        ]
        for label, title in titles.items()
    ]
    heads = ["", "accuracy", "calibration error", "KMNIST", "Fashion-MNIST", "MNIST-C"]
    return markdown(heads, lines)


def prevalence(results: Results) -> str:
    """AUPR with one in-distribution image in two and in eight, beside figures printed for the latter."""
    study = results.of_study(experiment="prevalence")
    lines = []
    for label in ("postnet", "kl-pn", "dropout", "rkl-pn"):
        seeds, cells = _count(results.get, BRIEF, label), []
        for each in (KMNIST, FASHION):
            rare = each._replace(metric="aupr, one in eight")
            cells += [
                each.text(results.get, BRIEF, label),
                rare.text(_getter(study), BRIEF, label),
                each.published(label),
            ]
        (count,) = {each.n for key, each in study.items() if key[1] == label}
        part = "" if count == seeds else f", {count} of them at 1 to 7"
        lines.append([f"{names.method(label)} ({names.seeds(seeds)}{part})", *cells])
    first, *others = "ours, 1 to 1", "ours, 1 to 7", "printed"
    heads = [f"KMNIST: {first}", *others, f"Fashion-MNIST: {first}", *others]
    return markdown(["", *heads], lines)


def quick_and_paper(results: Results) -> str:
    """DAEDL under all protocols, and under candidates with lower rates than `quick`."""
    recipe = results.catalogue.protocols[QUICK].training
    study = _getter(results.of_study(experiment=mnist_quick.EXPERIMENT))
    lower = {rate: mnist_quick.name({**recipe, "learning_rate": rate}) for rate in (2e-3, 1e-3)}
    columns: list[tuple[Get, str, str]] = [
        (results.get, BRIEF, "brief"),
        *((study, name, f"up to {rate:g}") for rate, name in lower.items()),
        (results.get, QUICK, "quick"),
        (results.get, PAPER, "paper"),
    ]
    auroc = MNIST_C._replace(title="MNIST-C: AUROC", metric="auroc")
    lines = [
        [each.title, *(each.text(get, protocol, "daedl") for get, protocol, _ in columns)]
        for each in (ACCURACY, KMNIST, FASHION, NOISE, MNIST_C, auroc)
    ]
    seeds = [names.seeds(_count(get, protocol, "daedl")) for get, protocol, _ in columns]
    return markdown(
        ["", *(f"{head}, {n}" for (*_, head), n in zip(columns, seeds, strict=True))], lines
    )


def candidates(results: Results) -> str:
    """The candidates for `quick` by figures of validation images, the lowest loss first."""
    table = _validation(results, mnist_quick.ONE_CYCLE).sort_values("validation", kind="stable")
    lines = [([_recipe(key[0], results)], key) for key in table.index]
    return _validated(lines, ["candidate"], table)


def rates(results: Results) -> str:
    """Learning rates that were tried under `brief`, by figures of validation images."""
    table = _validation(results, "brief, rate")
    lines = [
        ([names.method(label), f"{rate:g}"], key)
        for label in results.catalogue.methods
        for rate in mnist_quick.RATES
        if (key := (f"brief, rate {rate:g}", label)) in table.index
    ]
    return _validated(lines, ["", "rate"], table)


def unknown_digits(results: Results) -> str:
    """AUROC of candidates for `quick` against digits left out of training, the highest mean first."""
    rows = results.every_row
    rows = rows[rows["data"].str.startswith("digits ") & (rows["metric"] == "auroc")]
    rows = rows[rows["score"].isin(BOTH)]
    # Datasets that every candidate was measured on.
    table = 100 * rows.pivot_table("value", "protocol", ["data", "score"]).dropna(axis="columns")
    values, means = table.to_dict(), table.mean(axis="columns").sort_values(ascending=False)
    sets = [str(each) for each in table.columns.unique("data")]
    lines = [
        [
            _recipe(name, results),
            *(" / ".join(f"{float(values[each, s][name]):.2f}" for s in BOTH) for each in sets),
            f"{mean:.2f}",
        ]
        for name, mean in zip(map(str, means.index), means, strict=True)
    ]
    return markdown(["candidate", *sets, "mean"], lines)


TABLES: Mapping[str, Callable[[Results], str]] = MappingProxyType(
    {
        each.__name__.replace("_", "-"): each
        for each in (
            *(summary, protocols, ablation, every_method, wrapped, prevalence),
            *(quick_and_paper, candidates, unknown_digits, rates, panel, panel_goals),
        )
    }
)


def written(page: str, results: Results) -> str:
    """The page with its tables as the rows are now."""

    def table(match: re.Match[str]) -> str:
        name, mark, _ = match.groups()
        return f"{name}{mark}{TABLES[name](results)}\n"

    return MARKED.sub(table, page)


def _getter(study: Mapping[tuple[str, ...], Summary]) -> Get:
    return lambda *figure: study.get(figure)


def _count(get: Get, protocol: str, label: str) -> int:
    """Number of seeds of the accuracy."""
    (accuracy,) = ACCURACY.ask(get, protocol, label)
    return accuracy.n if accuracy else 0


def _validation(results: Results, protocol: str) -> DataFrame:
    """Means of figures of validation images under protocols that begin with `protocol`, and seeds."""
    rows = results.every_row
    rows = rows[(rows["data"] == "validation") & rows["protocol"].str.startswith(protocol)]
    table = rows.pivot_table("value", ["protocol", "method"], "metric")
    return table.assign(seeds=rows.groupby(["protocol", "method"])["seed"].nunique())


def _validated(
    lines: Iterable[tuple[list[str], tuple[str, str]]], heads: Sequence[str], table: DataFrame
) -> str:
    """One line per pair of its first cells and its key in `table`, without metrics that it lacks."""
    forms = {
        "validation": ("validation loss", "{:.5f}"),
        "accuracy": ("accuracy", "{:.2%}"),
        "brier": ("Brier", "{:.4f}"),
        "nll": ("NLL", "{:.4f}"),
        "seconds": ("seconds", "{:.0f}"),
        "seeds": ("seeds", "{:.0f}"),
    }
    shown = {name: each for name, each in forms.items() if name in table}
    values = table.to_dict("index")
    cells = [
        [*line, *(_formatted(values[key][name], form) for name, (_, form) in shown.items())]
        for line, key in lines
    ]
    return markdown([*heads, *(head for head, _ in shown.values())], cells)


def _formatted(value: float, form: str) -> str:
    return DASH if isna(value) else form.format(value)


def _recipe(name: str, results: Results) -> str:
    """The name of a candidate, after the name of the protocol that it became."""
    training = {each: results.catalogue.protocols[each].training for each in (QUICK, BRIEF)}
    became = (each for each, settings in training.items() if mnist_quick.name(settings) == name)
    return next((f"`{each.removeprefix('mnist-')}`: " for each in became), "") + name


@app.command()
def main(folder: ResultsFolder = RESULTS, root: Path = Path()) -> None:
    """Write the tables of every page from the rows, and docs/methods.md from the methods."""
    results = Results.load(folder, catalogue())
    for page in PAGES:
        path = root / page
        write_atomically(path, written(path.read_text("utf-8"), results).encode())
    write_atomically(root / "docs/methods.md", methods_page.markdown().encode())
