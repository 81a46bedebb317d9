"""The report of `daedl evaluate`: accuracy, calibration, rejected and accepted images of a model."""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from scipy.stats import binomtest
from torch import Tensor

from daedl import figures, metrics
from daedl.classifier import Classifier
from daedl.data import ImageSet, Labelled
from daedl.prediction import Prediction
from daedl.report import html

# All chosen, so that a report with ten datasets fits a phone and stays below 1 MB.
MAX_MATRIX = 12  # classes of a confusion matrix; the most frequent confusions are listed above it
MAX_LINES = 12  # lines of a table before the others are folded
MAX_PAIRS = 20
KNOWN_IMAGES, OOD_IMAGES = 16, 8  # images of a contact sheet
PIXELATED = 64  # images below this size are enlarged without smoothing


@dataclass(frozen=True)
class Evaluated:
    """A dataset and its predictions; `images.labels` are ignored for OOD datasets."""

    name: str
    images: Labelled
    prediction: Prediction

    @property
    def accepted(self) -> Tensor | None:
        """Whether each image is accepted (N,); None without thresholds."""
        return None if self.prediction.thresholds is None else self.prediction.accept

    @property
    def share_accepted(self) -> float | None:
        """The share of images that is accepted."""
        return None if self.accepted is None else float(self.accepted.double().mean())

    @property
    def unexpected(self) -> tuple[str, Tensor]:
        """The score that measures best how unexpected an image is, with its name."""
        return list(self.prediction.scores().items())[-1]  # density, epistemic or aleatoric


class Tile(NamedTuple):
    """A headline figure with an explanation."""

    title: str
    value: str
    note: str


class ClassLine(NamedTuple):
    """Results for the images of one class."""

    name: str
    images: int
    accuracy: float
    accepted: float | None
    confused: str


class Shown(NamedTuple):
    """An image or text of a contact sheet; `target` is None for OOD data."""

    source: str
    text: str
    target: str | None
    label: str
    probability: float
    verdict: str


class Sheet(NamedTuple):
    """A contact sheet."""

    title: str
    images: list[Shown]


def render(name: str, model: Classifier, known: Evaluated, *unknown: Evaluated) -> str:
    """Returns the report on the model called `name` as one HTML file without external resources.

    Arguments:
        known: images of known classes with labels.
        unknown: OOD datasets.
    """
    names = known.images.names
    pairs = Counter(
        zip(known.images.labels.tolist(), known.prediction.labels.tolist(), strict=True)
    )
    thresholds = known.prediction.thresholds
    return html.render(
        "daedl.report",
        "evaluation.html.j2",
        name=name,
        facts=f"{type(model.network.plain).__name__} with {model.method.title}, {len(names)} classes",
        thresholds=None if thresholds is None else str(thresholds),
        tiles=list(_tiles(known, unknown)),
        known=known,
        unknown=[(each, _aurocs(known, each)) for each in unknown],
        wrong_accepted=_wrong_accepted(known),
        charts=list(_charts(model.method.name, known, unknown)),
        classes=_class_lines(names, pairs, known),
        matrix=_matrix(names, pairs) if len(names) <= MAX_MATRIX else [],
        confused=_confused(names, pairs),
        names=names,
        max_lines=MAX_LINES,
        sheets=[each for each in _sheets(names, known, unknown) if each.images],
        pixelated=isinstance(known.images, ImageSet) and min(known.images.shape[1:]) < PIXELATED,
        noun=known.images.noun,
        version=version("daedl"),
    )


def _tiles(known: Evaluated, unknown: Sequence[Evaluated]) -> Iterator[Tile]:
    prediction, targets = known.prediction, known.images.labels
    right = int((prediction.labels == targets).sum())
    interval = binomtest(right, len(targets)).proportion_ci(method="wilson")
    percent = "{:.1%}".format
    yield Tile(
        "accuracy",
        percent(right / len(targets)),
        f"95% interval {percent(interval.low)} to {percent(interval.high)}",
    )
    confidence = percent(float(prediction.probs.amax(-1).mean()))
    error = metrics.ece(prediction.probs, targets, prediction.labels)
    yield Tile("calibration error (ECE)", percent(error), f"mean confidence {confidence}")
    if (share := known.share_accepted) is not None:
        wrong = _wrong_accepted(known)
        note = "" if wrong is None else f"{percent(wrong)} of them wrong"
        yield Tile(f"{known.name} accepted", percent(share), note)
    for each in unknown:
        score, auroc = _decisive(_aurocs(known, each))
        if (share := each.share_accepted) is None:
            yield Tile(f"{each.name}: AUROC", f"{auroc:.3f}", f"by {score} uncertainty")
        else:
            yield Tile(f"{each.name} (OOD) accepted", percent(share), f"AUROC {auroc:.3f}")


def _aurocs(known: Evaluated, other: Evaluated) -> dict[str, float]:
    """AUROC of detecting OOD images by each score."""
    outside = other.prediction.scores()
    return {
        name: metrics.auroc(score, outside[name])
        for name, score in known.prediction.scores().items()
    }


def _decisive(by_score: dict[str, float]) -> tuple[str, float]:
    """Returns the entry of the score that thresholds reject OOD images by."""
    name = "epistemic" if "epistemic" in by_score else "aleatoric"
    return name, by_score[name]


def _wrong_accepted(known: Evaluated) -> float | None:
    """Error rate of the accepted images; None if there are none."""
    if known.accepted is None or not known.accepted.any():
        return None
    wrong = known.prediction.labels != known.images.labels
    return float(wrong[known.accepted].double().mean())


def _charts(
    method: str, known: Evaluated, unknown: Sequence[Evaluated]
) -> Iterator[tuple[str, str]]:
    """Yields figures as data URLs with a caption."""
    prediction, targets = known.prediction, known.images.labels
    limits = {} if prediction.thresholds is None else prediction.thresholds.limits
    for name in prediction.scores():
        scores = {each.name: each.prediction.scores()[name] for each in (known, *unknown)}
        limit = limits.get(name)
        line = "" if limit is None else f" The dashed line is the threshold, {limit:.4g}."
        yield (
            _source(figures.score_histograms(scores, name, limit)),
            f"Share of images by {name} uncertainty.{line} The outermost bars include values beyond them.",
        )
    figure = figures.risk_coverage(prediction, targets, prediction.thresholds)
    yield (
        _source(figure),
        f"Risk and coverage: error rate on {known.name} if only the most certain images are accepted.",
    )
    yield (
        _source(figures.reliability_diagram({method: prediction}, targets)),
        "Reliability: on the dashed line confidence equals accuracy, above it the model is underconfident. "
        "Marker size is the share of images; bins with fewer than five are omitted.",
    )


def _source(figure: Figure) -> str:
    with warnings.catch_warnings():  # names in scripts that the font lacks are shown as boxes
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        return html.inline(figures.png(figure))


def _class_lines(
    names: Sequence[str], pairs: Counter[tuple[int, int]], known: Evaluated
) -> list[ClassLine]:
    """Returns one line per class with images, least accurate first."""
    targets = known.images.labels
    images = Counter(targets.tolist())
    accepted = None if known.accepted is None else Counter(targets[known.accepted].tolist())
    worst: dict[int, int] = {}
    for (target, label), _ in pairs.most_common():
        if label != target:
            worst.setdefault(target, label)
    lines = [
        ClassLine(
            name=names[target],
            images=count,
            accuracy=pairs[target, target] / count,
            accepted=None if accepted is None else accepted[target] / count,
            confused=names[worst[target]] if target in worst else "",
        )
        for target, count in sorted(images.items())
    ]
    return sorted(lines, key=lambda line: line.accuracy)


def _matrix(
    names: Sequence[str], pairs: Counter[tuple[int, int]]
) -> list[tuple[str, list[tuple[int, float]]]]:
    """Returns one row per class: its name, and count and share of each predicted class."""
    rows = []
    for target, name in enumerate(names):
        counts = [pairs[target, label] for label in range(len(names))]
        total = max(1, sum(counts))
        rows.append((name, [(count, count / total) for count in counts]))
    return rows


def _confused(names: Sequence[str], pairs: Counter[tuple[int, int]]) -> list[tuple[str, str, int]]:
    """Returns the most frequent confusions: class, predicted class, images."""
    wrong = Counter({pair: count for pair, count in pairs.items() if pair[0] != pair[1]})
    return [(names[a], names[b], count) for (a, b), count in wrong.most_common(MAX_PAIRS)]


def _sheets(
    names: Sequence[str], known: Evaluated, unknown: Sequence[Evaluated]
) -> Iterator[Sheet]:
    wrong = (known.prediction.labels != known.images.labels).nonzero().squeeze(1)
    order = wrong[known.prediction.aleatoric[wrong].argsort()][:KNOWN_IMAGES]
    yield Sheet("Most confident errors", _shown(names, known, order, True))
    score, values = known.unexpected
    order = values.argsort(descending=True)[:KNOWN_IMAGES]
    yield Sheet(
        f"{known.images.noun.capitalize()} of {known.name} with the largest {score} uncertainty",
        _shown(names, known, order, True),
    )
    for each in unknown:
        score, values = each.unexpected
        order = values.argsort()[:OOD_IMAGES]
        title = f"{each.images.noun.capitalize()} of {each.name} (OOD) with the smallest {score} uncertainty"
        yield Sheet(title, _shown(names, each, order, False))


def _shown(names: Sequence[str], data: Evaluated, order: Tensor, labelled: bool) -> list[Shown]:
    if len(order) == 0:
        return []
    chosen, records = data.images.subset(order), data.prediction[order].records()
    return [
        Shown(
            source="" if isinstance(image, str) else html.thumbnail(image),
            text=image if isinstance(image, str) else "",
            target=names[target] if labelled else None,
            label=names[record["label"]],
            probability=record["probability"],
            verdict=_verdict(record),
        )
        for image, target, record in zip(chosen.shown, chosen.labels.tolist(), records, strict=True)
    ]


def _verdict(record: dict[str, Any]) -> str:
    if "accept" not in record:
        return ""
    return "accepted" if record["accept"] else f"rejected: {record['reason']}"
