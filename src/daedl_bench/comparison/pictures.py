"""Which pictures there are: of cached networks' predictions, and of measured rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from daedl import figures
from daedl.prediction import Prediction
from daedl_bench.cache import Cache
from daedl_bench.comparison import drawing, missing, titles
from daedl_bench.comparison.choice import Choice
from daedl_bench.comparison.drawing import Told
from daedl_bench.comparison.measured import Measurements, Summary
from daedl_bench.datasets import corrupted_sets
from daedl_bench.spec import Experiment, Protocol, Trial
from daedl_bench.workspace import Load, Workspace

# The paper's four figures, from left to right and from top to bottom.
FOUR = (
    ("aleatoric", "aupr"),
    ("aleatoric", "auroc"),
    ("epistemic", "aupr"),
    ("epistemic", "auroc"),
)
NOT_RUN = "Not run. What runs it:"
WIDE, NARROW = 5, 2  # panels in a row of the grid of corruptions


@dataclass(frozen=True)
class Picture:
    """A PNG file; `narrow` is one for narrow screens, where the other would be too small to read."""

    name: str
    caption: str
    data: bytes
    narrow: bytes | None = None


@dataclass(frozen=True)
class Gallery:
    """Pictures under a heading, what is to be said of those that aren't there, and what makes them."""

    title: str
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""


@dataclass(frozen=True)
class Predicted:
    """Predictions of one seed: of the known test set by method, of the others by data set and method."""

    known: str
    targets: Tensor
    test: Mapping[str, Prediction]
    others: Mapping[str, Mapping[str, Prediction]]


def of_networks(measured: Measurements, cache: Path, load: Load) -> list[Gallery]:
    """Curves, density scores and reliability for every protocol of the catalogue, from networks in the cache.

    Nothing is trained: a network that isn't in the folder `cache` has no pictures, and the gallery says
    which command makes it.
    """
    return [
        _of_protocol(protocol, measured, cache, load)
        for protocol in measured.catalogue.protocols.values()
    ]


def of_corruptions(measured: Measurements) -> list[Gallery]:
    """Figures over corruptions, from rows alone, for every experiment and protocol that asks for them."""
    return [
        _of_family(experiment, short, protocol, measured)
        for experiment in measured.catalogue.experiments.values()
        for short, protocol in experiment.protocols.items()
        if experiment.shift
    ]


def of_choice(choice: Choice) -> Picture:
    """How well every method tells unknown images, from rows alone."""
    caption = (
        f"{choice.title}: detection by the better of a method's two scores; the nearer to the left, the "
        "better."
    )
    data = figures.png(drawing.missing_dots(choice.detection))
    return Picture(f"choice-{choice.protocol}", caption, data)


def _of_protocol(protocol: Protocol, measured: Measurements, cache: Path, load: Load) -> Gallery:
    title = f"{titles.data(protocol.data)}, {titles.short(protocol.name, protocol.data)} protocol"
    experiment = _asking(protocol, measured)
    if experiment is None:
        return Gallery(title, notes=("No experiment has unknown sets for it.",))
    workspace = Workspace(load, Cache(cache, reading=True))
    seed, cells = _cached(protocol, experiment, measured, workspace)
    predicted, notes = _predicted(cells, experiment, workspace)
    pictures = () if predicted is None else tuple(_pictures(protocol.name, predicted))
    title = f"{title}, seed {seed}" if cells else title
    lacking = [label for label in experiment.drawn if label not in cells]
    if not lacking:
        return Gallery(title, pictures, tuple(notes))
    was_run = protocol.name in measured.all_protocols
    if cells:
        names = ", ".join(map(titles.method, lacking))
        notes.append(f"Not in the cache, and so not drawn: {names}. What trains them:")
    elif was_run:
        notes.append(
            "No pictures: they are drawn from trained networks in the folder --cache, and it has none of "
            "this protocol. What trains them:"
        )
    else:
        notes.append(NOT_RUN)
    short = next(key for key, each in experiment.protocols.items() if each == protocol)
    methods = ",".join(lacking)
    command = missing.command(experiment.name, short, methods, str(seed), networks=was_run)
    return Gallery(title, pictures, tuple(notes), command)


def _asking(protocol: Protocol, measured: Measurements) -> Experiment | None:
    """The first experiment that has unknown sets for the protocol."""
    experiments = measured.catalogue.experiments.values()
    return next(
        (each for each in experiments if each.ood and protocol in each.protocols.values()), None
    )


def _cached(
    protocol: Protocol, experiment: Experiment, measured: Measurements, workspace: Workspace
) -> tuple[int, dict[str, Trial]]:
    """The seed with the most trained networks in the cache, which may be none, and its trials."""
    seeds = sorted({seed for key, seed in measured.rows if key.protocol == protocol.name}) or [0]
    trained = {
        seed: {
            label: trial
            for label in experiment.drawn
            if workspace.is_trained(trial := measured.catalogue.trial(label, protocol, seed))
        }
        for seed in seeds
    }
    return max(trained.items(), key=lambda item: len(item[1]))


def _predicted(
    trials: Mapping[str, Trial], experiment: Experiment, workspace: Workspace
) -> tuple[Predicted | None, list[str]]:
    """What can be predicted, and a note for each set that can't."""
    found: dict[str, dict[str, Prediction]] = {name: {} for name in experiment.units[:1]}
    found |= {name: {} for name in experiment.ood}
    targets, notes = None, []
    for label, trial in trials.items():
        for name, predictions in found.items():
            try:
                predictions[label], labels = workspace.prepare(trial).predict(name)
            except (OSError, ValueError) as error:
                notes.append(_note(label, name, error))
                if name == experiment.test:
                    break
            else:
                targets = labels if name == experiment.test else targets
    if targets is None:
        return None, notes
    return Predicted(experiment.test, targets, found.pop(experiment.test), found), notes


def _note(label: str, name: str, error: Exception) -> str:
    reason = (
        "its outputs are not in the cache, and its images not in the data folder"
        if isinstance(error, FileNotFoundError)
        else str(error)
    )
    return f"{titles.method(label)} on {titles.data(name)} is left out: {reason}."


def _pictures(stem: str, predicted: Predicted) -> Iterator[Picture]:
    known = titles.data(predicted.known)
    for name, predictions in predicted.others.items():
        if not predictions:
            continue
        told = {
            label: _told(predicted.test[label], outside) for label, outside in predictions.items()
        }
        cut = "the left axis begins where its label says"
        what = f"{known} test images told from {titles.data(name)}"
        for kind, draw, words in (
            ("roc", drawing.roc_curves, "ROC: {}. The lower axis is logarithmic; {}."),
            ("pr", drawing.precision_recall_curves, "Precision and recall: {}; {}."),
        ):
            data = figures.png(draw(told))
            yield Picture(f"{stem}-{kind}-{_file(name)}", words.format(what, cut), data)
    for label, inside in predicted.test.items():
        if inside.density_score is not None:
            data = figures.png(figures.density_histogram(_density_scores(label, predicted)))
            caption = (
                f"Density scores s under {titles.method(label)}; the logits are multiplied by them."
            )
            yield Picture(f"{stem}-density-{_file(label)}", caption, data)
    data = figures.png(figures.reliability_diagram(predicted.test, predicted.targets))
    caption = (
        f"Reliability on {known} test images: on the dashed line confidence is what it promises. Large "
        "marks hold many images; bins of fewer than five are left out."
    )
    yield Picture(f"{stem}-reliability", caption, data)


def _told(inside: Prediction, outside: Prediction) -> Told:
    """By epistemic uncertainty, or by aleatoric where a method has no other."""
    if inside.epistemic is None or outside.epistemic is None:
        return Told(inside.aleatoric, outside.aleatoric, "aleatoric")
    return Told(inside.epistemic, outside.epistemic, "epistemic")


def _density_scores(label: str, predicted: Predicted) -> dict[str, Tensor]:
    """Density scores of the test set, then of the others."""
    sets = {f"{titles.data(predicted.known)} test": predicted.test[label]} | {
        titles.data(name): predictions[label]
        for name, predictions in predicted.others.items()
        if label in predictions
    }
    return {
        name: each.density_score for name, each in sets.items() if each.density_score is not None
    }


def _of_family(
    experiment: Experiment, short: str, protocol: Protocol, measured: Measurements
) -> Gallery:
    """The figures of one family of corruptions under one protocol."""
    family = experiment.shift
    title = f"{titles.data(family)}, {titles.short(protocol.name, protocol.data)} protocol"
    groups = corrupted_sets(family)
    if not any(
        key.protocol == protocol.name and key.data in groups and key.task == "shift"
        for key in measured.summaries
    ):
        methods = ",".join(experiment.methods)
        command = missing.command(experiment.name, short, methods, missing.SEEDS)
        return Gallery(title, notes=(NOT_RUN,), command=command)
    draw = _dots if list(groups) == [family] else _severities
    return Gallery(title, tuple(draw(protocol.name, experiment, measured)))


def _dots(protocol: str, experiment: Experiment, measured: Measurements) -> Iterator[Picture]:
    """One picture a score: every corruption's figure."""
    family, drawn = experiment.shift, experiment.drawn
    (names,) = corrupted_sets(family).values()
    for score, metric in (pair for pair in FOUR if pair[1] == "aupr"):
        values = {
            method: {name.partition("/")[2]: summary for name, summary in found.items()}
            for method, found in _shift(protocol, drawn, names, score, metric, measured).items()
        }
        if values:
            label = _label(score, metric)
            caption = (
                f"{titles.data(family)}: {label}, each corruption; bars are one standard deviation."
            )
            data = figures.png(drawing.corruption_dots(values, label))
            yield Picture(f"{protocol}-{family}-{score}-{metric}", caption, data)


def _severities(protocol: str, experiment: Experiment, measured: Measurements) -> Iterator[Picture]:
    """The paper's figures: averages over corruptions against severity, and the grids of corruptions."""
    family, drawn = experiment.shift, experiment.drawn
    groups = corrupted_sets(family)
    steps = {name: int(name.rpartition("/")[2]) for name in groups}
    corruptions = dict.fromkeys(name.split("/")[1] for names in groups.values() for name in names)
    for score, metric in FOUR:
        lines = _shift(protocol, drawn, list(groups), score, metric, measured)
        if lines:
            label = _label(score, metric)
            averages = {m: {steps[k]: v for k, v in found.items()} for m, found in lines.items()}
            data = figures.png(drawing.severity_lines(averages, label))
            caption = f"{label}, mean over {len(corruptions)} corruptions; bands are one standard deviation."
            yield Picture(f"{protocol}-{family}-{score}-{metric}", caption, data)
    for score, metric in FOUR:
        panels = {}
        for corruption in corruptions:
            names = {f"{family}/{corruption}/{step}": step for step in steps.values()}
            found = _shift(protocol, drawn, list(names), score, metric, measured)
            panels[corruption] = {m: {names[k]: v for k, v in f.items()} for m, f in found.items()}
        if any(panels.values()):
            label = _label(score, metric)
            wide, narrow = (
                figures.png(drawing.corruption_grid(panels, label, columns))
                for columns in (WIDE, NARROW)
            )
            caption = f"{label}, each of {len(panels)} corruptions against its severity."
            yield Picture(f"{protocol}-{family}-grid-{score}-{metric}", caption, wide, narrow)


def _shift(
    protocol: str,
    methods: Sequence[str],
    names: Sequence[str],
    score: str,
    metric: str,
    measured: Measurements,
) -> dict[str, dict[str, Summary]]:
    """Figures by method and data set; methods without any are left out."""
    found = {}
    for method in (each for each in measured.methods(protocol) if each in methods):
        values = {
            name: summary
            for name in names
            if (summary := measured.summary(protocol, method, name, "shift", score, metric))
            and summary.n
        }
        if values:
            found[method] = values
    return found


def _label(score: str, metric: str) -> str:
    return f"{titles.METRICS[metric]} × 100 by {score} uncertainty"


def _file(name: str) -> str:
    """A name that may be part of a file's."""
    return name.replace("/", "-").replace("+", "-")
