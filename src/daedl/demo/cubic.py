"""The cubic toy of deep evidential regression: y = x³ with noise, intervals of every method in panels."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.optim import Adam

from daedl.demo.training import SILENT, Progress
from daedl.figures import BLUE, GREY, RED, bare
from daedl.methods import regression
from daedl.networks import MLP
from daedl.regression_prediction import RegressionPrediction
from daedl.regressor import Regressor
from daedl.training import fit

# Amini et al. (2020): training inputs in ±4, noise of deviation 3, shown in ±7.
TRAINED, SHOWN, NOISE = 4.0, 7.0, 3.0
SAMPLES, HELD_OUT = 1000, 250
HIDDEN = (64, 64)
LEARNING_RATE, BATCH_SIZE, MAX_EPOCHS = 5e-3, 64, 60
LIMIT = 1.5 * SHOWN**3 / 2  # of the vertical axis (chosen)
# Bands of one to three deviations would hide the difference between methods; one interval is shown.
LEVEL = 0.95


@dataclass(frozen=True)
class Result:
    """Training data (N, 1), (N,), the inputs of the curves, and predictions there by title of the method."""

    inputs: Tensor
    targets: Tensor
    grid: Tensor
    predictions: Mapping[str, RegressionPrediction]


def run(seed: int = 0, max_epochs: int = MAX_EPOCHS, progress: Progress = SILENT) -> Result:
    """Trains every method on the same data."""
    generator = torch.Generator().manual_seed(seed)
    inputs = TRAINED * (2 * torch.rand(SAMPLES + HELD_OUT, 1, generator=generator) - 1)
    noise = NOISE * torch.randn(SAMPLES + HELD_OUT, generator=generator)
    targets = inputs[:, 0] ** 3 + noise
    train, val = (inputs[:SAMPLES], targets[:SAMPLES]), (inputs[SAMPLES:], targets[SAMPLES:])
    grid = torch.linspace(-SHOWN, SHOWN, 281)[:, None]
    predictions = {}
    for name, method in regression.METHODS.items():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Regressor(MLP(1, 1, HIDDEN), name)
        progress.starts(f"cubic · {method.title}")
        fit(
            model,
            train,
            val,
            max_epochs=max_epochs,
            batch_size=BATCH_SIZE,
            learning_rate=LEARNING_RATE,
            schedule="one-cycle",
            optimizer=partial(Adam, lr=LEARNING_RATE, fused=True),
            patience=max_epochs,
            gradient_clip=5.0,
            seed=seed,
            accelerator="cpu",
            progress=False,
        )
        predictions[method.title] = model.predict(grid)
    return Result(*train, grid, predictions)


def panels(result: Result, columns: int = 4) -> Figure:
    """One panel per method: truth, mean, 95% interval; the training range is between grey lines."""
    rows = -(-len(result.predictions) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.3 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    x = result.grid[:, 0].numpy()
    for panel, (title, p) in zip(axes, result.predictions.items(), strict=False):
        low, high = (np.clip(each.numpy(), -1e6, 1e6) for each in p.interval(LEVEL))
        panel.fill_between(x, low, high, color=BLUE, alpha=0.3, linewidth=0)
        panel.plot(x, p.mean.numpy(), color=BLUE)
        panel.plot(x, x**3, color=RED, linestyle="--", linewidth=1)
        panel.plot(result.inputs[::10, 0], result.targets[::10], ".", color=GREY, markersize=2)
        for edge in (-TRAINED, TRAINED):
            panel.axvline(edge, color=GREY, linewidth=0.8)
        panel.set_title(title)
        panel.set_ylim(-LIMIT, LIMIT)
        bare(panel)
    for panel in axes[len(result.predictions) :]:
        panel.set_axis_off()
    return figure
