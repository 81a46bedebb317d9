"""Tables of experiments in the documentation: lines ask for figures, columns say where they come from."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from daedl_bench import names, paper
from daedl_bench.names import DASH, markdown
from daedl_bench.summary import Results, Summary

BOTH = ("aleatoric", "epistemic")


class Source(NamedTuple):
    """Source of the figures of a line or column; by default the experiments."""

    protocol: str
    method: str
    study: str = ""


class Question(NamedTuple):
    """A line or a column of a table; figures of several scores are shown side by side."""

    title: str
    data: str
    task: str
    metric: str
    scores: tuple[str, ...] = BOTH
    scale: float = 100

    def ask(self, results: Results, source: Source) -> list[Summary | None]:
        """The summary of every score."""
        *trial, study = source
        figures = [(*trial, self.data, self.task, score, self.metric) for score in self.scores]
        return [results.get(*each, study=study) for each in figures]

    def text(self, results: Results, source: Source) -> str:
        """Every score; the number of seeds is shown where it is not the accuracy's."""
        found = self.ask(results, source)
        # Costs are measured with one seed.
        seeds = 0 if self.task == "cost" else number_of_seeds(results, source)
        cells = [
            each.text(self.scale, count=each.n != (seeds or each.n)) if each else DASH
            for each in found
        ]
        return " / ".join(cells) if any(found) else DASH

    def published(self, method: str, known: str) -> str:
        """The paper's means of a method on the dataset `known`."""
        means = {
            column.score: figure.mean
            for table in paper.tables().values()
            for column, figure in zip(table.columns, table.rows.get(method, ()), strict=False)
            if figure and (column.id, column.ood or known) == (known, self.data)
            if (column.task, column.metric) == (self.task, self.metric)
        }
        cells = [f"{means[each]:.2f}" if each in means else DASH for each in self.scores]
        return " / ".join(cells) if means else DASH


class Known(NamedTuple):
    """The questions about an in-distribution dataset."""

    accuracy: Question
    misclassification: Question
    brier: Question
    ece: Question


def known(data: str) -> Known:
    """The questions about the test set `data`."""
    return Known(
        Question("accuracy", data, "classification", "accuracy", ("labels",)),
        Question("misclassification AUPR, aleatoric", data, "misclassification", "aupr", BOTH[:1]),
        Question("Brier score (lower is better)", data, "classification", "brier", ("probs",)),
        Question("calibration error ECE (lower is better)", data, "calibration", "ece", ("probs",)),
    )


def detection(data: str, metric: str = "aupr") -> Question:
    """The question how well an OOD dataset, or corruptions, are detected."""
    task = "shift" if "-c" in data else "ood"
    return Question(f"{names.dataset(data)}: {metric.upper()}", data, task, metric)


def by_name(*tables: Callable[[Results], str]) -> Mapping[str, Callable[[Results], str]]:
    """The tables by the names that pages call them."""
    return {each.__name__.replace("_", "-"): each for each in tables}


def by_source(
    results: Results,
    sources: Mapping[str, Source],
    questions: Mapping[str, Question],
    first: Iterable[Sequence[str]] = (),
) -> str:
    """One line per source, one column per question, by heading; `first` are lines above."""
    lines = [
        [head, *(each.text(results, source) for each in questions.values())]
        for head, source in sources.items()
    ]
    return markdown(["", *questions], [*first, *lines])


def every_source(
    results: Results, experiment: str, protocol: str, questions: Mapping[str, Question]
) -> str:
    """One line per method of an experiment with rows under `protocol`, with the number of seeds."""
    labels = results.catalogue.experiment(experiment).methods
    sources = {names.method(label): Source(protocol, label) for label in labels}
    lines = [
        [head, str(seeds), *(each.text(results, source) for each in questions.values())]
        for head, source in sources.items()
        if (seeds := number_of_seeds(results, source))
    ]
    return markdown(["", "seeds", *questions], lines)


def by_question(
    results: Results,
    questions: Iterable[Question],
    sources: Mapping[str, Source],
    published: str = "",
) -> str:
    """One line per question, one column per source.

    `published` is an in-distribution dataset, for which the paper's DAEDL comes first.
    """
    lines = [
        [
            each.title,
            *([each.published("daedl", published)] if published else []),
            *(each.text(results, source) for source in sources.values()),
        ]
        for each in questions
    ]
    return markdown(["", *(["published"] if published else []), *sources], lines)


def with_seeds(results: Results, sources: Mapping[str, Source]) -> dict[str, Source]:
    """The number of seeds appended to every heading."""
    return {
        f"{head}, {names.seeds(number_of_seeds(results, source))}": source
        for head, source in sources.items()
    }


def number_of_seeds(results: Results, source: Source) -> int:
    """Number of seeds of the accuracy."""
    protocol = results.catalogue.protocols.get(source.protocol)
    # Candidates of studies are no protocols; all are of MNIST.
    data = protocol.data if protocol else "mnist"
    question = Question("", data, "classification", "accuracy", ("labels",))
    (accuracy,) = question.ask(results, source)
    return accuracy.n if accuracy else 0
