"""Two moons: the paper's first figure, uncertainty over a plane with two classes of points."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from sklearn.datasets import make_moons
from torch import Tensor

from daedl import evaluate
from daedl.demo.training import SILENT, Progress, Samples, Trained, Training, train_methods
from daedl.evaluate import Measured
from daedl.methods import DAEDL, EDL, Method, Softmax
from daedl.networks import MLP
from daedl.prediction import Prediction

# Plotted range and OOD cluster of the SNGP tutorial (Liu et al., 2020), which the paper follows.
X_RANGE, Y_RANGE = (-3.5, 3.5), (-2.5, 2.5)
OOD_CENTER, OOD_DEVIATION, OOD_SAMPLES = (2.5, -1.75), 0.1, 100
# Minimum distance of a "far" point from all training points: five noise deviations (chosen).
FAR = 0.5


@dataclass(frozen=True)
class Settings:
    """Data, network and training.

    Attributes:
        methods: one panel of the figure per method; all share `training`.
        samples: training points; validation and test have half as many each.
        noise: standard deviation of the points around their moon.
        hidden: widths of the network's hidden layers.
    """

    methods: tuple[Method, ...] = (Softmax(), EDL(), DAEDL())
    samples: int = 1000
    noise: float = 0.1
    hidden: tuple[int, ...] = (128, 128, 128)
    training: Training = Training(max_epochs=60, batch_size=64, patience=20)  # noqa: RUF009 (frozen)


@dataclass(frozen=True)
class Moons:
    """Points (N, 2) with classes (N,), and the OOD cluster (M, 2)."""

    train: Samples
    val: Samples
    test: Samples
    ood: Tensor

    def far(self) -> Tensor:
        """Points (M, 2) of the plane that are far from all training points."""
        points = grid(100).reshape(-1, 2)
        return points[torch.cdist(points, self.train[0]).amin(-1) > FAR]


@dataclass(frozen=True)
class Result:
    """One seed: the data, and the trained classifiers by method name."""

    seed: int
    settings: Settings
    data: Moons
    trained: Mapping[str, Trained]

    def measure(self) -> dict[str, dict[str, list[Measured]]]:
        """Returns all figures by method name and dataset: test points, OOD cluster, far points."""
        points, targets = self.data.test
        measured = {}
        for name, trained in self.trained.items():
            predict = trained.classifier.predict
            inside, outside = predict(points), predict(self.data.ood)
            measured[name] = {
                "test": [*evaluate.classification(inside, targets), _mean_variance(inside)],
                "cluster": [*evaluate.ood_detection(inside, outside), _mean_variance(outside)],
                "far": [_mean_variance(predict(self.data.far()))],
            }
        return measured


def load(seed: int, settings: Settings) -> Moons:
    """Draw training, validation, test and OOD points from independent streams of `seed`."""
    half = settings.samples // 2
    *streams, ood_stream = np.random.SeedSequence(seed).generate_state(4)
    train, val, test = (
        _moons(count, settings.noise, int(stream))
        for count, stream in zip((settings.samples, half, half), streams, strict=True)
    )
    ood = np.random.default_rng(ood_stream).normal(OOD_CENTER, OOD_DEVIATION, (OOD_SAMPLES, 2))
    return Moons(train, val, test, torch.tensor(ood, dtype=torch.float32))


def run(seed: int, settings: Settings, progress: Progress = SILENT) -> Result:
    """Train all methods on points drawn with `seed`."""
    data = load(seed, settings)
    plan = dict.fromkeys(settings.methods, settings.training)
    network = partial(MLP, 2, 2, settings.hidden)
    trained = train_methods("two moons", plan, network, data.train, data.val, seed, progress)
    return Result(seed, settings, data, trained)


def variance(prediction: Prediction) -> Tensor:
    """Uncertainty of the figure (B,): predictive variance as a fraction of its maximum.

        Σ_c m_c (1 − m_c) / (1 − 1/C)

    with m the expected probabilities (B, C); 1 where they are uniform.
    """
    m = prediction.probs
    return (m * (1 - m)).sum(-1) / (1 - 1 / m.shape[-1])


def plane(trained: Trained, points: int = 200) -> Tensor:
    """`variance` over the plane, (points, points): rows along y, columns along x."""
    return variance(trained.classifier.predict(grid(points).reshape(-1, 2))).reshape(points, points)


def grid(points: int) -> Tensor:
    """Coordinates of the plane (points, points, 2): rows along y, columns along x."""
    x, y = (torch.linspace(*ends, points) for ends in (X_RANGE, Y_RANGE))
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)


def _moons(count: int, noise: float, stream: int) -> Samples:
    points, targets = make_moons(count, noise=noise, random_state=stream)
    return torch.tensor(points, dtype=torch.float32), torch.tensor(targets)


def _mean_variance(prediction: Prediction) -> Measured:
    return Measured("uncertainty", "variance", "mean", float(variance(prediction).mean()))
