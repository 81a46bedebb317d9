"""Maps of uncertainty over the plane of the two moons."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from torch import Tensor

from daedl.demo import moons
from daedl.figures import BLUE, ORANGE, RED, TITLES

# Training points per panel (chosen): they show the moons without hiding the map.
_POINTS = 300


def moons_maps(result: moons.Result, stacked: bool = False) -> Figure:
    """Uncertainty over the plane, one panel per method; `stacked` in one column for narrow screens."""
    count = len(result.trained)
    size, shape = ((4.2, 9.6), (count, 1)) if stacked else ((12.0, 3.3), (1, count))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(*shape, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, (name, trained) in zip(panels, result.trained.items(), strict=True):
        mesh = _map(axes, moons.plane(trained), result.data)
        axes.set_title(TITLES.get(name, name), fontweight="bold")
    location, shrink = ("bottom", 1.0) if stacked else ("right", 0.85)
    bar = figure.colorbar(mesh, ax=list(panels), location=location, shrink=shrink, pad=0.02)
    bar.set_label("uncertainty (fraction of maximum)")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=3, frameon=False, markerscale=2)
    return figure


def _map(axes: Axes, uncertainty: Tensor, data: moons.Moons) -> QuadMesh:
    """One panel: `uncertainty` (n, n) as colours, with training points and the OOD cluster."""
    x, y = (np.linspace(*ends, len(uncertainty)) for ends in (moons.X_RANGE, moons.Y_RANGE))
    colours: dict[str, Any] = {"cmap": "viridis", "vmin": 0, "vmax": 1}
    mesh = axes.pcolormesh(x, y, uncertainty.numpy(), shading="gouraud", rasterized=True, **colours)
    points, targets = (part[:_POINTS].numpy() for part in data.train)
    for where, colour, label in (
        (points[targets == 0], BLUE, "class 0"),
        (points[targets == 1], ORANGE, "class 1"),
        (data.ood.numpy(), RED, "out of distribution"),
    ):
        dots: dict[str, Any] = {"s": 11, "color": colour, "edgecolor": "white", "linewidth": 0.35}
        axes.scatter(where[:, 0], where[:, 1], label=label, **dots)
    axes.set(aspect="equal", xticks=[], yticks=[])
    return mesh
