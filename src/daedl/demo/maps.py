"""Maps of uncertainty over the plane of the two moons."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from torch import Tensor

from daedl.demo import moons
from daedl.figures import BLUE, ORANGE, RED, TITLES

# Training points drawn: enough to show the moons without hiding the map below.
_POINTS = 300


def moons_maps(result: moons.Result, stacked: bool = False) -> Figure:
    """Uncertainty over the plane, a panel a method: side by side, or `stacked` for narrow screens."""
    count = len(result.trained)
    size, grid = ((4.2, 9.6), (count, 1)) if stacked else ((12.0, 3.3), (1, count))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(*grid, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, (name, trained) in zip(panels, result.trained.items(), strict=True):
        mesh = _map(axes, moons.plane(trained), result.data)
        axes.set_title(TITLES.get(name, name), fontweight="bold")
    bar = figure.colorbar(
        mesh,
        ax=list(panels),
        location="bottom" if stacked else "right",
        shrink=1.0 if stacked else 0.85,
        pad=0.02,
    )
    bar.set_label("uncertainty (share of the largest)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside upper center", ncols=3, frameon=False, markerscale=2
    )
    return figure


def _map(axes: Axes, uncertainty: Tensor, data: moons.Moons) -> QuadMesh:
    """One panel: `uncertainty` (n, n) as colours, training points and others on top."""
    x, y = (
        np.linspace(*ends, side)
        for ends, side in zip((moons.X_RANGE, moons.Y_RANGE), uncertainty.T.shape, strict=True)
    )
    mesh = axes.pcolormesh(
        x,
        y,
        uncertainty.numpy(),
        cmap="viridis",
        vmin=0,
        vmax=1,
        shading="gouraud",
        rasterized=True,
    )
    points, targets = (part[:_POINTS].numpy() for part in data.train)
    dots = [(points[targets == 0], BLUE, "class 0"), (points[targets == 1], ORANGE, "class 1")]
    for where, colour, label in [*dots, (data.ood.numpy(), RED, "out of distribution")]:
        axes.scatter(
            where[:, 0],
            where[:, 1],
            s=11,
            color=colour,
            edgecolor="white",
            linewidth=0.35,
            label=label,
        )
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    return mesh
