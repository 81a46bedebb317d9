"""Figures of the report: detection curves, corruptions, and the AUPR of every method.

Metrics over seeds come as a DataFrame with the columns method, mean and std.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from numpy.typing import NDArray
from pandas import DataFrame
from sklearn.metrics import precision_recall_curve, roc_curve
from torch import Tensor

from daedl import figures
from daedl_bench import names

Array = NDArray[np.float64]
# Precision is drawn from its value at this recall upwards (chosen): beyond it every curve falls to the
# share of in-distribution images.
RECALL = 0.98
FEW = 0.02  # below this recall precision is computed from a few images, and jumps


class Uncertainties(NamedTuple):
    """Uncertainties of in-distribution (N,) and of OOD samples (M,), and the name of the score."""

    inside: Tensor
    outside: Tensor
    score: str

    def truth(self) -> tuple[Array, Array]:
        """Ones for in-distribution and zeros for OOD samples, and the certainty of each."""
        positive = np.repeat([1.0, 0.0], [len(self.inside), len(self.outside)])
        scores = [self.inside.double().numpy(), self.outside.double().numpy()]
        return positive, -np.concatenate(scores)


def roc_curves(methods: Mapping[str, Uncertainties]) -> Figure:
    """True against false positive rate, one curve per method.

    The x axis is logarithmic and the y axis is cut, as good curves lie in a corner.
    """
    figure, axes = _panel()
    floor = min(1 / len(each.outside) for each in methods.values())
    # Between two thresholds the curve is a straight line, which a logarithmic axis bends.
    rates, lowest = np.geomspace(floor, 1, 500), 1.0
    for name, each in methods.items():
        false_rate, true_rate, _ = roc_curve(*each.truth())
        accepted = np.interp(rates, false_rate, true_rate)
        _curve(axes, name, each.score, rates, accepted)
        lowest = min(lowest, accepted[0])
    axes.set(xscale="log", xlim=(floor, 1), xlabel="false positive rate: OOD accepted (log scale)")
    _cut(axes, lowest, "true positive rate")
    figures.legend(figure)
    return figure


def precision_recall_curves(methods: Mapping[str, Uncertainties]) -> Figure:
    """Precision against recall of in-distribution samples, one curve per method; the y axis is cut.

    Curves are steps, whose area is the average precision of the tables.
    """
    figure, axes = _panel()
    lowest = 1.0
    for name, each in methods.items():
        precision, recall, _ = precision_recall_curve(*each.truth())
        _curve(axes, name, each.score, recall, precision, drawstyle="steps-post")
        rising = recall[::-1]
        shown = slice(np.searchsorted(rising, FEW), np.searchsorted(rising, RECALL) + 1)
        lowest = min(lowest, precision[::-1][shown].min())
    axes.set(xlim=(0, 1), xlabel="recall of in-distribution images")
    _cut(axes, lowest, "precision")
    figures.legend(figure)
    return figure


def severity_lines(
    found: DataFrame, label: str, columns: int = 1, panel: tuple[float, float] = (5.0, 3.0)
) -> Figure:
    """A metric times 100 against `severity`, one panel per `corruption`, `columns` panels per row.

    One line per method, with bands of one standard deviation; panels are `panel` inches large.
    """
    panels = list(found.sort_values("severity", kind="stable").groupby("corruption", sort=False))
    rows = -(-len(panels) // columns)
    size = panel[0] * columns, panel[1] * rows + 0.8
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    steps, spread = sorted(found["severity"].unique()), found["std"].fillna(0)
    low, high = 100 * (found["mean"] - spread).min(), 100 * (found["mean"] + spread).max()
    room = 0.05 * (high - low) or 1.0
    for place, (axes, (corruption, lines)) in enumerate(zip(grid, panels, strict=False)):
        # Explicit limits are many times faster than shared axes.
        axes.set(
            xlim=(steps[0] - 0.3, steps[-1] + 0.3),
            ylim=(low - room, high + room),
            autoscale_on=False,
            xticks=steps,
        )
        _bands(axes, lines)
        axes.set_title(names.corruption(str(corruption)), fontsize=10)
        axes.tick_params(labelleft=place % columns == 0)
        axes.grid(alpha=0.25)
        figures.bare(axes)
    for axes in grid[len(panels) :]:
        axes.remove()
    figure.supxlabel("severity", fontsize=10)
    figure.supylabel(label, fontsize=10)
    figures.legend(figure, 3 if columns == 1 else columns)
    return figure


def corruption_dots(found: DataFrame, label: str) -> Figure:
    """A metric times 100 of every `corruption`, one marker per method; the largest mean at the top."""
    order = list(found.groupby("corruption")["mean"].mean().sort_values(kind="stable").index)
    figure = Figure(figsize=(5.0, 0.9 + 0.36 * len(order)), layout="constrained")
    axes = figure.subplots()
    groups = list(found.groupby("method", sort=False))
    # Markers of a corruption are shifted, so that equal values do not hide each other.
    shifts = np.linspace(0.22, -0.22, len(groups)) if len(groups) > 1 else [0.0]
    for shift, (name, points) in zip(shifts, groups, strict=True):
        colour, marker, _ = figures.style(str(name))
        axes.errorbar(
            100 * points["mean"],
            [order.index(each) + shift for each in points["corruption"]],
            xerr=100 * points["std"].fillna(0),
            color=colour,
            marker=marker,
            markersize=6,
            markeredgecolor="white",
            markeredgewidth=0.4,
            linestyle="none",
            elinewidth=1,
            label=names.method(str(name)),
        )
    axes.set_yticks(range(len(order)), [names.corruption(name) for name in order])
    axes.set(xlabel=label, ylim=(-0.6, len(order) - 0.4))
    axes.grid(axis="both", alpha=0.25)
    figures.legend(figure)
    figures.bare(axes)
    return figure


def aupr_gaps(detection: DataFrame) -> Figure:
    """100 − AUPR, one line per method, the first at the top, one marker per OOD set.

    The axis is logarithmic, as the best methods differ by hundredths and the worst by tens.
    """
    figure = Figure(figsize=(6.0, 1.4 + 0.26 * len(detection)), layout="constrained")
    axes = figure.add_subplot()
    markers = ((figures.BLUE, "o"), (figures.VERMILION, "^"), (figures.GREEN, "s"))
    for (colour, marker), name in zip(markers, detection, strict=False):
        gaps = 100 * (1 - detection[name])
        axes.plot(gaps, range(len(gaps)), marker, color=colour, label=name, markersize=5)
    axes.set(
        xscale="log",
        xlabel="100 − AUPR (log scale; left is better)",
        yticks=range(len(detection)),
        yticklabels=[names.method(label) for label in detection.index],
    )
    # Plain numbers instead of powers of ten.
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
    axes.invert_yaxis()
    axes.grid(axis="both", linewidth=0.4, alpha=0.6)
    figures.legend(figure)
    return figure


def _panel() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.0, 3.8), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.25)
    figures.bare(axes)
    return figure, axes


def _cut(axes: Axes, lowest: float, label: str) -> None:
    """Start the y axis a little below `lowest`, and say so in its label."""
    bottom = np.floor((lowest - 0.1 * (1 - lowest)) * 100) / 100
    bottom = min(max(bottom, 0.0), 0.99)  # perfect curves have no range of their own
    axes.set(
        ylim=(bottom, 1 + 0.02 * (1 - bottom)), ylabel=f"{label} (axis starts at {bottom:.2f})"
    )


def _curve(axes: Axes, name: str, score: str, x: Array, y: Array, **options: Any) -> None:
    """One method's line with a few markers; the score is named unless it is the epistemic one."""
    colour, marker, line = figures.style(name)
    label = names.method(name) + ("" if score == "epistemic" else f" ({score})")
    options |= {"color": colour, "linestyle": line, "marker": marker, "label": label}
    axes.plot(x, y, linewidth=1.6, markersize=4.5, markevery=0.12, **options)


def _bands(axes: Axes, found: DataFrame) -> None:
    """One line per method over the severities, which are sorted."""
    for name, line in found.groupby("method"):
        colour, marker, style = figures.style(str(name))
        steps, mean = line["severity"].to_numpy(), 100 * line["mean"].to_numpy()
        std = 100 * line["std"].fillna(0).to_numpy()
        shared: dict[str, Any] = {"color": colour, "label": names.method(str(name))}
        axes.plot(
            steps, mean, marker=marker, markersize=4, linestyle=style, linewidth=1.4, **shared
        )
        axes.fill_between(steps, mean - std, mean + std, color=colour, alpha=0.15, linewidth=0)
