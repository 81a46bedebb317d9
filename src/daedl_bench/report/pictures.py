"""Pictures of the report, from rows and from predictions of networks in the cache."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pandas import DataFrame
from torch import Tensor

from daedl import figures
from daedl.prediction import Prediction
from daedl_bench import names
from daedl_bench.cache import Cache
from daedl_bench.datasets import corrupted_sets
from daedl_bench.report import plots
from daedl_bench.spec import Catalogue, Experiment, Protocol, Trial
from daedl_bench.summary import Results
from daedl_bench.workspace import Load, Workspace

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
    workspace = Workspace(load, Cache(cache, reading=True))
    protocols = results.catalogue.protocols.values()
    return [_protocol_gallery(each, results, workspace) for each in protocols]


def of_corruptions(results: Results) -> list[Gallery]:
    """Metrics per corruption, from rows, for every experiment with corruptions and its protocols."""
    return [
        _corruption_gallery(experiment, short, protocol, results)
        for experiment in results.catalogue.experiments.values()
        for short, protocol in experiment.protocols.items()
        if experiment.shift
    ]


def _protocol_gallery(protocol: Protocol, results: Results, workspace: Workspace) -> Gallery:
    title = f"{names.dataset(protocol.data)}, {names.protocol(protocol.name, protocol.data)}"
    chosen = _ood_experiment(results.catalogue, protocol)
    if chosen is None:
        return Gallery(title, notes=["No experiment has OOD sets for it."])
    experiment, short = chosen
    seed, trials = _cached(protocol, experiment, results, workspace)
    predictions, targets, notes = _predict(trials, experiment, workspace)
    pictures = [] if targets is None else list(_draw(protocol.name, predictions, targets))
    title += f", seed {seed}" if trials else ""
    lacking = [label for label in experiment.drawn if label not in trials]
    if not lacking:
        return Gallery(title, pictures, notes)
    command = names.command(experiment.name, short, lacking, str(seed))
    if protocol.name not in results.protocols:
        return Gallery(title, pictures, [*notes, NOT_RUN, f"    {command}"])
    listed = ", ".join(map(names.method, lacking))
    notes += [
        f"Not drawn, as their networks are not in the folder --cache: {listed}. This command trains them:",
        f"    {command} --networks",
    ]
    return Gallery(title, pictures, notes)


def _ood_experiment(catalogue: Catalogue, protocol: Protocol) -> tuple[Experiment, str] | None:
    """The first experiment with OOD sets under `protocol`, and the protocol's short name in it."""
    for experiment in catalogue.experiments.values():
        for short, each in experiment.protocols.items():
            if experiment.ood and each == protocol:
                return experiment, short
    return None


def _cached(
    protocol: Protocol, experiment: Experiment, results: Results, workspace: Workspace
) -> tuple[int, dict[str, Trial]]:
    """The seed with the most trained networks in the cache, and its trained trials by method."""
    seeds = map(int, sorted(results.under(protocol.name)["seed"].unique()) or [0])
    trained = {
        seed: {
            label: trial
            for label in experiment.drawn
            for trial in [results.catalogue.trial(label, protocol, seed)]
            if workspace.is_trained(trial)
        }
        for seed in seeds
    }
    return max(trained.items(), key=lambda item: len(item[1]))


def _predict(
    trials: Mapping[str, Trial], experiment: Experiment, workspace: Workspace
) -> tuple[dict[str, dict[str, Prediction]], Tensor | None, list[str]]:
    """Predictions by dataset, the test set first, and method; the test targets; and notes on failures."""
    found: dict[str, dict[str, Prediction]] = {n: {} for n in (experiment.test, *experiment.ood)}
    targets, notes = None, []
    for label, trial in trials.items():
        predictor = None
        for name, predictions in found.items():
            try:
                predictor = predictor or workspace.prepare(trial)
                predictions[label], labels = predictor.predict(name)
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
        command = names.command(experiment.name, short, experiment.methods)
        return Gallery(title, notes=[NOT_RUN, f"    {command}"])
    stem = f"{protocol.name}-{family}"
    drawn = list(_draw_corruptions(stem, family, found))
    means = _shift(family, experiment.drawn, protocol.name, results, "uncertainty", ("mean",))
    drawn += _draw_growth(stem, means[means["severity"].notna()])
    return Gallery(title, sorted(drawn, key=lambda each: each.narrow is not None))


def _shift(
    family: str,
    drawn: Sequence[str],
    protocol: str,
    results: Results,
    task: str = "shift",
    metrics: Sequence[str] = METRICS,
) -> DataFrame:
    """Metrics of a task by corruption ("" for the mean over corruptions) and severity."""
    sets = [
        (name, "" if name == group else name.split("/")[1], severity)
        for group, members in corrupted_sets(family).items()
        for severity in [int(group.rpartition("/")[2]) if "/" in group else None]
        for name in (group, *members)
    ]
    found = results.summaries(protocol).query("n > 0")
    found = found[(found["task"] == task) & found["metric"].isin(metrics)]
    found = found[found["score"].isin(SCORES)]
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
        label = f"{metric.upper()} × 100 by {score} uncertainty"
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


def _draw_growth(stem: str, means: DataFrame) -> Iterator[Picture]:
    """Whether mean uncertainties grow with the severity, by rank correlation, one picture per score."""
    keys = ["method", "corruption"]
    for score, values in means.groupby("score", sort=False):
        found = DataFrame(
            [
                (*key, part["severity"].corr(part["mean"], method="spearman"), 0.0)
                for key, part in values.groupby(keys, sort=False)
            ],
            columns=[*keys, "mean", "std"],
        )
        averages = found.groupby("method", sort=False)["mean"].mean()
        shown = ", ".join(f"{names.method(str(m))} {100 * v:.0f}" for m, v in averages.items())
        label = "rank correlation × 100 with the severity"
        words = f"Mean {score} uncertainty: its {label}. Mean over corruptions: {shown}."
        yield Picture(
            f"{stem}-growth-{score}", words, figures.png(plots.corruption_dots(found, label))
        )


def _file(name: str) -> str:
    """A name that can be part of a file name."""
    return name.replace("/", "-").replace("+", "-")
