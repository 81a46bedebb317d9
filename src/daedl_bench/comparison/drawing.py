"""Figures of the comparison: curves of detection, and corruptions."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.metrics import precision_recall_curve, roc_curve
from torch import Tensor

from daedl import figures
from daedl_bench.comparison import titles
from daedl_bench.comparison.measured import Summary

Array = NDArray[np.float64]
SIZE = (5.0, 3.8)
# Of a precision-recall curve is shown what lies above its precision at this recall (chosen): beyond it
# every curve falls to the share of known images.
RECALL = 0.98
FEW = 0.02  # below this recall precision is that of a few images, and jumps


class Told(NamedTuple):
    """Uncertainties of known (N,) and of other samples (M,), and the score's name."""

    inside: Tensor
    outside: Tensor
    score: str

    def truth(self) -> tuple[Array, Array]:
        """Ones for the known samples and zeros for the others, and how certain each is."""
        known = np.repeat([1.0, 0.0], [len(self.inside), len(self.outside)])
        return known, -np.concatenate([self.inside.double().numpy(), self.outside.double().numpy()])


def roc_curves(told: Mapping[str, Told]) -> Figure:
    """Known samples accepted against others accepted, a curve a method.

    The lower axis is logarithmic and the left one is cut: good curves lie in a corner.
    """
    figure, axes = _panel()
    floor = min(1 / len(each.outside) for each in told.values())
    # Between two thresholds the curve is a straight line, which a logarithmic axis bends.
    rates, lowest = np.geomspace(floor, 1, 500), 1.0
    for name, each in told.items():
        false_rate, true_rate, _ = roc_curve(*each.truth())
        accepted = np.interp(rates, false_rate, true_rate)
        _curve(axes, name, each, rates, accepted)
        lowest = min(lowest, accepted[0])
    axes.set(
        xscale="log",
        xlim=(floor, 1),
        xlabel="others accepted (false positive rate, log scale)",
    )
    _cut(axes, lowest, "known accepted")
    figures.legend(figure)
    return figure


def precision_recall_curves(told: Mapping[str, Told]) -> Figure:
    """Precision against recall of known samples, a curve a method; the left axis is cut.

    Curves are steps, whose area is the average precision that the tables have.
    """
    figure, axes = _panel()
    lowest = 1.0
    for name, each in told.items():
        precision, recall, _ = precision_recall_curve(*each.truth())
        _curve(axes, name, each, recall, precision, drawstyle="steps-post")
        rising = recall[::-1]
        shown = slice(np.searchsorted(rising, FEW), np.searchsorted(rising, RECALL) + 1)
        lowest = min(lowest, precision[::-1][shown].min())
    axes.set(xlim=(0, 1), xlabel="recall of known images")
    _cut(axes, lowest, "precision")
    figures.legend(figure)
    return figure


def severity_lines(lines: Mapping[str, Mapping[int, Summary]], label: str) -> Figure:
    """A figure times 100 against severity, a line a method, with a band of one standard deviation."""
    figure, axes = _panel()
    for name, values in lines.items():
        _severities(axes, name, values)
    axes.set(xlabel="severity", ylabel=label, xticks=_ticks(lines.values()))
    figures.legend(figure)
    return figure


def corruption_grid(
    panels: Mapping[str, Mapping[str, Mapping[int, Summary]]], label: str, columns: int
) -> Figure:
    """`severity_lines` of every corruption, a small panel each, `columns` of them in a row."""
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(2.3 * columns, 1.9 * rows + 0.8), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    everything = [values for lines in panels.values() for values in lines.values()]
    limits = _limits(everything)
    for place, (axes, (corruption, lines)) in enumerate(zip(grid, panels.items(), strict=False)):
        # Limits set by hand are many times as fast as axes that share theirs.
        axes.set(xlim=limits[0], ylim=limits[1], autoscale_on=False, xticks=_ticks(everything))
        for name, values in lines.items():
            _severities(axes, name, values)
        axes.set_title(titles.corruption(corruption), fontsize=10)
        axes.tick_params(labelleft=place % columns == 0)
        axes.grid(alpha=0.25)
        figures.bare(axes)
    for axes in grid[len(panels) :]:
        axes.remove()
    figure.supxlabel("severity", fontsize=10)
    figure.supylabel(label, fontsize=10)
    figures.legend(figure, columns)
    return figure


def corruption_dots(values: Mapping[str, Mapping[str, Summary]], label: str) -> Figure:
    """A figure times 100 for every corruption, a dot a method; the largest mean over methods on top."""
    found: dict[str, list[float]] = {}
    for each in values.values():
        for corruption, summary in each.items():
            found.setdefault(corruption, []).append(summary.mean)
    order = sorted(found, key=lambda corruption: fmean(found[corruption]))
    figure = Figure(figsize=(5.0, 0.9 + 0.36 * len(order)), layout="constrained")
    axes = figure.subplots()
    # Methods lie a little above each other, so that equal ones don't hide each other.
    shifts = np.linspace(0.22, -0.22, len(values)) if len(values) > 1 else [0.0]
    for shift, (name, each) in zip(shifts, values.items(), strict=True):
        places = [place for place, corruption in enumerate(order) if corruption in each]
        points = [each[order[place]] for place in places]
        colour, marker, _ = figures.style(name)
        axes.errorbar(
            [100 * summary.mean for summary in points],
            [place + shift for place in places],
            xerr=[100 * (summary.deviation or 0.0) for summary in points],
            color=colour,
            marker=marker,
            markersize=6,
            markeredgecolor="white",
            markeredgewidth=0.4,
            linestyle="none",
            elinewidth=1,
            label=titles.method(name),
        )
    axes.set_yticks(range(len(order)), [titles.corruption(name) for name in order])
    axes.set(xlabel=label, ylim=(-0.6, len(order) - 0.4))
    axes.grid(axis="both", alpha=0.25)
    figures.legend(figure)
    figures.bare(axes)
    return figure


def _panel() -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.25)
    figures.bare(axes)
    return figure, axes


def _cut(axes: Axes, lowest: float, label: str) -> None:
    """Begin the left axis a little below `lowest`, and say so in its label."""
    bottom = np.floor((lowest - 0.1 * (1 - lowest)) * 100) / 100
    bottom = min(max(bottom, 0.0), 0.99)  # perfect curves leave no range of their own
    axes.set(
        ylim=(bottom, 1 + 0.02 * (1 - bottom)), ylabel=f"{label} (axis starts at {bottom:.2f})"
    )


def _curve(axes: Axes, name: str, told: Told, x: Array, y: Array, **options: Any) -> None:
    """A method's line with a few markers."""
    colour, marker, line = figures.style(name)
    label = titles.method(name)
    if told.score != "epistemic":
        label += f" ({told.score})"
    axes.plot(
        x,
        y,
        color=colour,
        linestyle=line,
        linewidth=1.6,
        marker=marker,
        markersize=4.5,
        markevery=0.12,
        label=label,
        **options,
    )


def _severities(axes: Axes, name: str, values: Mapping[int, Summary]) -> None:
    """One method's line over the severities."""
    colour, marker, line = figures.style(name)
    steps = sorted(values)
    means = np.array([100 * values[step].mean for step in steps])
    spread = np.array([100 * (values[step].deviation or 0.0) for step in steps])
    axes.plot(
        steps,
        means,
        color=colour,
        marker=marker,
        markersize=4,
        linestyle=line,
        linewidth=1.4,
        label=titles.method(name),
    )
    axes.fill_between(steps, means - spread, means + spread, color=colour, alpha=0.15, linewidth=0)


def _ticks(lines: Iterable[Mapping[int, Summary]]) -> Sequence[int]:
    return sorted({step for values in lines for step in values})


def _limits(
    lines: Sequence[Mapping[int, Summary]],
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Of both axes: all lines with their bands, and a little room about them."""
    found = [each for values in lines for each in values.values()]
    low = min(100 * (each.mean - (each.deviation or 0.0)) for each in found)
    high = max(100 * (each.mean + (each.deviation or 0.0)) for each in found)
    room = 0.05 * (high - low) or 1.0
    steps = _ticks(lines)
    return (steps[0] - 0.3, steps[-1] + 0.3), (low - room, high + room)


def missing_dots(values: Mapping[str, Mapping[str, Summary]]) -> Figure:
    """What is missing to an AUPR of 100, a line a method, the first on top, and a mark an unknown set.

    The axis is logarithmic, as the best differ by hundredths and the worst by tens.
    """
    figure = Figure(figsize=(6.0, 1.4 + 0.26 * len(values)), layout="constrained")
    axes = figure.add_subplot()
    sets = dict.fromkeys(name for found in values.values() for name in found)
    marks = ((figures.BLUE, "o"), (figures.VERMILION, "^"), (figures.GREEN, "s"))
    for (colour, marker), name in zip(marks, sets, strict=False):
        places = [place for place, found in enumerate(values.values()) if name in found]
        left = [100 * (1 - found[name].mean) for found in values.values() if name in found]
        axes.plot(left, places, marker, color=colour, label=name, markersize=5)
    axes.set(
        xscale="log",
        xlabel="missing to an AUPR of 100 (log scale; left is better)",
        yticks=range(len(values)),
        yticklabels=[titles.method(label) for label in values],
    )
    axes.invert_yaxis()
    axes.grid(axis="both", linewidth=0.4, alpha=0.6)
    figures.legend(figure)
    return figure
