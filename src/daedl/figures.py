"""Figures of reports, as separate `Figure` objects without matplotlib's global state."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from daedl import metrics
from daedl.methods import METHODS
from daedl.prediction import Prediction
from daedl.selective import Thresholds, accepts

# The palette of Okabe and Ito, distinguishable with colour vision deficiency.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#555555"
RED = "#E0202B"  # the paper's colour for OOD; contrasts with both ends of viridis
SKY, VERMILION, PURPLE, BLACK = "#56B4E9", "#D55E00", "#CC79A7", "#000000"
BROWN = "#8B5A2B"  # not in the palette; darker than its orange
TITLES = {
    **{name: method.title for name, method in METHODS.items()},
    # Configurations of methods, as the experiments label them.
    "daedl-loo": "DAEDL-LOO",
    "daedl-depths": "DAEDL, all depths",
    "daedl-diagonal": "DAEDL, all depths, diagonal",
    "retrofit-depths": "Softmax + density, all depths",
    "logitnorm-depths": "LogitNorm + density, all depths",
    "daedl-mispaired": "DAEDL, densities shuffled",
    "natpn-joint": "NatPN without fine-tuning",
    "ddu": "DDU without SN",
    "ddu-sn": "DDU",
    "ensemble": "Ensemble of 5",
    "exp": "Exp",
    "exp+de": "Exp + DE",
    "exp+de-mispaired": "Exp + DE, densities shuffled",
    "exp+sn": "Exp + SN",
    "exp+de+sn": "Exp + DE + SN",
}


class Style(NamedTuple):
    """Colour, marker and line of a method; colour is never the only cue."""

    colour: str
    marker: str
    line: Any = "-"


_SHORT, _LONG = (0, (1, 1)), (0, (6, 2))
STYLES = {
    "softmax": Style(BLUE, "o", "--"),
    "edl": Style(ORANGE, "s", "-."),
    "daedl": Style(GREEN, "^", "-"),
    "daedl-loo": Style(VERMILION, "v", _LONG),
    "daedl-depths": Style(VERMILION, "v", "-"),
    "i-edl": Style(PURPLE, "D", _SHORT),
    "edl+": Style(BROWN, "p", ":"),
    "exp": Style(BROWN, "p", ":"),
    "dropout": Style(SKY, "P", "-"),
    "postnet": Style(BLACK, "X", "--"),
    "kl-pn": Style(SKY, "<", "-."),
    "rkl-pn": Style(BLACK, ">", ":"),
    "ensemble": Style(GREY, "*", "-"),
    "ddu": Style(BROWN, "h", "-"),
    "exp+de": Style(PURPLE, "<", "-"),
    "exp+sn": Style(BLUE, ">", _LONG),
    "exp+de+sn": Style(GREEN, "^", "-"),
}
_OTHER = Style(GREY, "x", _SHORT)
# Colours and lines of a histogram: the in-distribution dataset, then the OOD datasets.
_HISTOGRAMS = (
    (BLUE, "-"),
    (RED, "--"),
    (GREY, ":"),
    (GREEN, "-."),
    (PURPLE, "--"),
    (ORANGE, "-"),
    (BLACK, ":"),
)
DOTS_PER_INCH = 160
_BINS = 10  # of a reliability diagram (chosen: fewer than for the ECE, to be legible)
# Bins of a reliability diagram with fewer samples are omitted: their accuracy is mostly noise (chosen).
_MIN_SAMPLES = 5


def style(method: str) -> Style:
    """Returns the style of the method with this label."""
    return STYLES.get(method, _OTHER)


def png(figure: Figure) -> bytes:
    """Returns `figure` as a PNG file."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()


def density_histogram(scores: Mapping[str, Tensor]) -> Figure:
    """Plots histograms of the density scores (N,) of up to seven datasets by name, in-distribution first."""
    figure = Figure(figsize=(5.0, 3.6), layout="constrained")
    axes = figure.subplots()
    bins = np.linspace(0, 1, 26)
    for (label, score), (colour, line) in zip(scores.items(), _HISTOGRAMS, strict=False):
        shared: dict[str, Any] = {
            "bins": bins,
            "weights": np.full(len(score), 1 / len(score)),
            "color": colour,
        }
        if len(scores) <= 3:
            axes.hist(score.numpy(), **shared, alpha=0.2)
        axes.hist(
            score.numpy(), **shared, histtype="step", linestyle=line, linewidth=1.6, label=label
        )
    axes.set(xlabel="density score s", ylabel="share of the dataset")
    legend(figure)
    bare(axes)
    return figure


def score_histograms(scores: Mapping[str, Tensor], name: str, limit: float | None) -> Figure:
    """Plots histograms of one uncertainty score (N,), one panel per dataset, in-distribution first.

    Arguments:
        name: of the score.
        limit: largest accepted value, drawn as a line; None for none.
    """
    figure = Figure(figsize=(4.2, 0.7 + 0.75 * len(scores)), layout="constrained")
    panels = figure.subplots(len(scores), sharex=True, squeeze=False)[:, 0]
    values = [score.double().numpy() for score in scores.values()]
    low, high = _span(values, limit)
    for axes, title, each, colour in zip(
        panels, scores, values, [BLUE, *[VERMILION] * len(scores)], strict=False
    ):
        weights = np.full(len(each), 1 / len(each))
        axes.hist(
            np.clip(each, low, high), np.linspace(low, high, 41), weights=weights, color=colour
        )
        if limit is not None:
            axes.axvline(limit, color=BLACK, linestyle="--", linewidth=1.2)
            axes.set_title(
                f"{np.mean(each <= limit):.1%} within the threshold", loc="right", fontsize=9
            )
        axes.set_title(title, loc="left", fontsize=9, parse_math=False)
        axes.set(yticks=[])
        axes.spines["left"].set_visible(False)
        bare(axes)
    panels[-1].set_xlabel(f"{name} uncertainty (right: more uncertain)")
    return figure


def _span(values: Sequence[NDArray[np.float64]], limit: float | None) -> tuple[float, float]:
    """Returns the plotted range: of `values[0]` and `limit`, extended towards all other values.

    OOD scores may be many orders of magnitude away, so the range is extended by at most its own length.
    """
    known = values[0] if limit is None else np.append(values[0], limit)
    low, high = float(known.min()), float(known.max())
    length = high - low or 1.0  # constant scores
    joined = np.concatenate([known, *values])
    return max(low - length, float(joined.min())), min(high + length, float(joined.max()))


def reliability_diagram(predictions: Mapping[str, Prediction], targets: Tensor) -> Figure:
    """Plots accuracy against confidence, one line per method, from predictions by name and targets (N,)."""
    figure = Figure(figsize=(5.0, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
    for name, each in predictions.items():
        diagram = metrics.reliability(each.probs, targets, each.labels, _BINS)
        enough = diagram.share * len(targets) >= _MIN_SAMPLES
        confidence, accuracy, share = (values[enough] for values in diagram)
        colour, marker, _ = style(name)
        error = metrics.ece(each.probs, targets, each.labels)
        label = f"{TITLES.get(name, name)}, ECE {100 * error:.1f}"
        axes.plot([], [], color=colour, marker=marker, label=label)
        axes.plot(confidence, accuracy, color=colour, linewidth=1, alpha=0.7)
        shared: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "alpha": 0.8,
            "edgecolor": "white",
        }
        axes.scatter(confidence, accuracy, s=25 + 160 * share, linewidth=0.5, **shared)
    axes.set(xlabel="mean confidence in the bin", ylabel="accuracy", xlim=(0, 1.04), ylim=(0, 1.06))
    legend(figure, columns=2)  # labels are long
    bare(axes)
    return figure


def risk_coverage(
    prediction: Prediction, targets: Tensor, thresholds: Thresholds | None = None
) -> Figure:
    """Plots the error rate of accepted predictions against coverage, from targets (N,).

    With `thresholds`, marks their target, and their effect on `prediction`.
    """
    figure = Figure(figsize=(5.0, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, colour, line in (("epistemic", GREEN, "-"), ("aleatoric", BLUE, "--")):
        if name in prediction.scores():
            score = prediction.scores()[name]
            coverage, risk = metrics.risk_coverage(score, prediction.labels, targets)
            axes.plot(coverage, risk, color=colour, linestyle=line, label=f"by {name} uncertainty")
    if thresholds is not None:
        if (guide := thresholds.target.guide_line()) is not None:
            draw = axes.axvline if guide.axis == "coverage" else axes.axhline
            draw(guide.value, color=GREY, linestyle=":", label=guide.label)
        accepted = accepts(thresholds.limits, prediction.scores())
        chosen = float(accepted.double().mean())
        error = float((prediction.labels != targets)[accepted].double().mean())
        label = f"chosen: {chosen:.1%} accepted, {error:.2%} wrong"
        axes.plot([chosen], [error], "*", markersize=13, color=VERMILION, label=label)
    axes.set(
        xlabel="coverage (share accepted)", ylabel="error rate of accepted images", xlim=(0, 1.02)
    )
    axes.set_ylim(bottom=0)
    legend(figure, columns=2)
    bare(axes)
    return figure


def legend(figure: Figure, columns: int = 3) -> None:
    """Adds the legend of the first panel above all panels."""
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=columns,
        frameon=False,
        fontsize=8.5,
    )


def bare(axes: Axes) -> None:
    """Removes the upper and right spines."""
    axes.spines[["top", "right"]].set_visible(False)
