"""Pictures of the report, from rows and from predictions of networks in the cache."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pandas import DataFrame
from torch import Tensor

from daedl import figures
from daedl.prediction import Prediction
from daedl_bench.cell import Cell, Load
from daedl_bench.datasets import corrupted_sets
from daedl_bench.report import names, plots, specs
from daedl_bench.report.summary import Results
from daedl_bench.spec import Experiment, Protocol
from daedl_bench.store import Store

SCORES, METRICS = ("aleatoric", "epistemic"), ("aupr", "auroc")  # of the paper's figures
NOT_RUN = "Not run. This command runs it:"
WIDE, NARROW = 5, 2  # panels per row in the grid of corruptions
PANEL = 2.3, 1.9  # inches (chosen)


@dataclass(frozen=True)
class Picture:
    """A PNG file; `narrow` replaces it on narrow screens, where it would be too small to read."""

    name: str
    caption: str
    data: bytes
    narrow: bytes | None = None


@dataclass(frozen=True)
class Gallery:
    """Pictures under a heading, and notes in Markdown on pictures that are missing."""

    title: str
    pictures: Sequence[Picture] = ()
    notes: Sequence[str] = ()


def of_networks(results: Results, cache: Path, load: Load) -> list[Gallery]:
    """Curves, density scores and reliability for every protocol, from networks in the folder `cache`.

    Nothing is trained: a gallery names the networks that are missing and the command that trains them.
    """
    protocols = results.catalogue.protocols.values()
    return [_protocol_gallery(each, results, cache, load) for each in protocols]


def of_corruptions(results: Results) -> list[Gallery]:
    """Metrics per corruption, from rows, for every experiment with corruptions and its protocols."""
    return [
        _corruption_gallery(experiment, short, protocol, results)
        for experiment in results.catalogue.experiments.values()
        for short, protocol in experiment.protocols.items()
        if experiment.shift
    ]


def _protocol_gallery(protocol: Protocol, results: Results, cache: Path, load: Load) -> Gallery:
    title = f"{names.dataset(protocol.data)}, {names.protocol(protocol.name, protocol.data)}"
    chosen = specs.ood_experiment(results.catalogue, protocol)
    if chosen is None:
        return Gallery(title, notes=["No experiment has OOD sets for it."])
    experiment, short = chosen
    seed, cells = _cached(protocol, experiment, results, cache, load)
    predictions, targets, notes = _predict(cells, experiment)
    pictures = [] if targets is None else list(_draw(protocol.name, predictions, targets))
    title += f", seed {seed}" if cells else ""
    lacking = [label for label in experiment.drawn if label not in cells]
    if not lacking:
        return Gallery(title, pictures, notes)
    command = specs.command(experiment.name, short, ",".join(lacking), str(seed))
    if protocol.name not in results.protocols:
        return Gallery(title, pictures, [*notes, NOT_RUN, f"    {command}"])
    listed = ", ".join(map(names.method, lacking))
    notes += [
        f"Not drawn, as their networks are not in the folder --cache: {listed}. This command trains them:",
        f"    {command} --networks",
    ]
    return Gallery(title, pictures, notes)


def _cached(
    protocol: Protocol, experiment: Experiment, results: Results, cache: Path, load: Load
) -> tuple[int, dict[str, Cell]]:
    """The seed with the most trained networks in the cache, and its trained cells by method."""
    store = Store(cache, reading=True)
    methods = {label: results.catalogue.method(label, protocol) for label in experiment.drawn}
    seeds = results.under(protocol.name)["seed"].unique()
    trained: dict[int, dict[str, Cell]] = {}
    for seed in map(int, sorted(seeds) or [0]):
        cells = {label: Cell(protocol, each, seed, load, store) for label, each in methods.items()}
        trained[seed] = {label: cell for label, cell in cells.items() if cell.trained}
    return max(trained.items(), key=lambda item: len(item[1]))


def _predict(
    cells: Mapping[str, Cell], experiment: Experiment
) -> tuple[dict[str, dict[str, Prediction]], Tensor | None, list[str]]:
    """Predictions by dataset, the test set first, and method; the test targets; and notes on failures."""
    found: dict[str, dict[str, Prediction]] = {n: {} for n in (experiment.test, *experiment.ood)}
    targets, notes = None, []
    for label, cell in cells.items():
        for name, predictions in found.items():
            try:
                predictions[label], labels = cell.predict(name)
            except (OSError, ValueError) as error:
                missing = "its outputs are not in the cache, and its images not in the data folder"
                reason = missing if isinstance(error, FileNotFoundError) else str(error)
                notes.append(
                    f"{names.method(label)} on {names.dataset(name)} is left out: {reason}."
                )
                if name == experiment.test:
                    break
            else:
                targets = labels if name == experiment.test else targets
    return found, targets, notes


def _draw(
    stem: str, predictions: Mapping[str, Mapping[str, Prediction]], targets: Tensor
) -> Iterator[Picture]:
    """Curves per OOD set, density scores per method, and the reliability diagram."""
    (test, inside), *others = predictions.items()
    known = names.dataset(test)
    for name, outside in others:
        if not outside:
            continue
        methods = {label: _uncertainties(inside[label], each) for label, each in outside.items()}
        what = f"{known} test images against {names.dataset(name)}"
        cut = "the y axis starts where its label says"
        for kind, draw, words in (
            ("roc", plots.roc_curves, f"ROC: {what}. The x axis is logarithmic; {cut}."),
            ("pr", plots.precision_recall_curves, f"Precision and recall: {what}; {cut}."),
        ):
            yield Picture(f"{stem}-{kind}-{_file(name)}", words, figures.png(draw(methods)))
    for label in inside:
        sets = {f"{known} test": inside[label]}
        sets |= {names.dataset(name): each[label] for name, each in others if label in each}
        scores = {
            n: each.density_score for n, each in sets.items() if each.density_score is not None
        }
        if scores:
            caption = f"Density scores s of {names.method(label)}, which multiply the logits."
            data = figures.png(figures.density_histogram(scores))
            yield Picture(f"{stem}-density-{_file(label)}", caption, data)
    caption = (
        f"Reliability on {known} test images: calibrated confidences lie on the dashed line. Large markers "
        "are bins of many images; bins of fewer than five are left out."
    )
    data = figures.png(figures.reliability_diagram(inside, targets))
    yield Picture(f"{stem}-reliability", caption, data)


def _uncertainties(inside: Prediction, outside: Prediction) -> plots.Uncertainties:
    """Epistemic uncertainties, or aleatoric ones of a method without."""
    if inside.epistemic is None or outside.epistemic is None:
        return plots.Uncertainties(inside.aleatoric, outside.aleatoric, "aleatoric")
    return plots.Uncertainties(inside.epistemic, outside.epistemic, "epistemic")


def _corruption_gallery(
    experiment: Experiment, short: str, protocol: Protocol, results: Results
) -> Gallery:
    """The pictures of one family of corruptions under one protocol."""
    family = experiment.shift
    title = f"{names.dataset(family)}, {names.protocol(protocol.name, protocol.data)}"
    found = _shift(family, experiment.drawn, protocol.name, results)
    if found.empty:
        command = specs.command(experiment.name, short, ",".join(experiment.methods))
        return Gallery(title, notes=[NOT_RUN, f"    {command}"])
    drawn = _draw_corruptions(f"{protocol.name}-{family}", family, found)
    return Gallery(title, sorted(drawn, key=lambda each: each.narrow is not None))


def _shift(family: str, drawn: Sequence[str], protocol: str, results: Results) -> DataFrame:
    """Metrics of shift detection by corruption ("" for the mean over corruptions) and severity."""
    sets = [
        (name, "" if name == group else name.split("/")[1], severity)
        for group, members in corrupted_sets(family).items()
        for severity in [int(group.rpartition("/")[2]) if "/" in group else None]
        for name in (group, *members)
    ]
    found = results.summaries(protocol).query("task == 'shift' and n > 0")
    found = found[found["score"].isin(SCORES) & found["metric"].isin(METRICS)]
    methods = [each for each in results.methods(protocol) if each in drawn]
    labels = DataFrame({"method": methods}, dtype=str)
    columns = DataFrame(sets, columns=["data", "corruption", "severity"])
    return labels.merge(columns, how="cross").merge(found, on=["method", "data"])


def _draw_corruptions(stem: str, family: str, found: DataFrame) -> Iterator[Picture]:
    """The AUPR of every corruption, for each score; for several severities the paper's figures.

    These are means over corruptions against severity, and grids with one panel per corruption.
    """
    several = found["severity"].notna().any()
    for key, values in found.groupby(["score", "metric"], sort=False):
        score, metric = map(str, key)
        name = f"{score}-{metric}"
        label = f"{names.METRICS[metric]} × 100 by {score} uncertainty"
        means, singles = (part for _, part in values.groupby(values["corruption"] != ""))
        count = singles["corruption"].nunique()
        if several:
            words = f"{label}, mean over {count} corruptions; bands are one standard deviation."
            yield Picture(f"{stem}-{name}", words, figures.png(plots.severity_lines(means, label)))
            words = f"{label}, each of {count} corruptions against its severity."
            wide, narrow = (
                figures.png(plots.severity_lines(singles, label, columns, PANEL))
                for columns in (WIDE, NARROW)
            )
            yield Picture(f"{stem}-grid-{name}", words, wide, narrow)
        elif metric == "aupr":
            words = f"{names.dataset(family)}: {label}, each corruption; bars are one standard deviation."
            yield Picture(
                f"{stem}-{name}", words, figures.png(plots.corruption_dots(singles, label))
            )


def _file(name: str) -> str:
    """A name that can be part of a file name."""
    return name.replace("/", "-").replace("+", "-")
