"""Tabular cases: two moons, tables of scikit-learn, sentence embeddings, and synthetic tables."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from daedl import Classifier, DAEDLClassifier, fit, methods
from daedl.demo import moons
from daedl.networks import MLP
from daedl_bench.datasets import clinc
from daedl_bench.studies.panel.case import Case, Sets, Train, Trained

Array = NDArray[Any]
Convert = Callable[[Array], Tensor]
SHARE = 0.2  # of calibration and test samples each (chosen)
# A rejection rate of 2.5% for each of two scores needs 39 calibration samples; nearest neighbours need 50
# training samples, and wine has 130 in all.
LEAST_CALIBRATION, LEAST_TEST = 45, 30
FAR = 1000  # samples per set of far samples (chosen)


class Samples(NamedTuple):
    """Samples (N, F) and class indices (N,)."""

    inputs: Array
    targets: Array


@dataclass(frozen=True)
class Table:
    """Known samples in three parts, and near OOD samples by name."""

    train: Samples
    calibration: Samples
    test: Samples
    near: Mapping[str, Array]

    def sets(self, convert: Convert, seed: int) -> Sets:
        """The datasets as tensors, with far samples."""

        def labelled(samples: Samples) -> tuple[Tensor, Tensor]:
            return convert(samples.inputs), torch.tensor(samples.targets)

        def unknown(sets: Mapping[str, Array]) -> dict[str, Any]:
            return {
                name: (convert(each), torch.zeros(len(each), dtype=torch.long))
                for name, each in sets.items()
            }

        train, calibration, test = map(labelled, (self.train, self.calibration, self.test))
        far = far_samples(self.train.inputs, self.test.inputs, seed)
        return Sets(train, calibration, test, unknown(self.near), unknown(far))


def far_samples(train: Array, test: Array, seed: int) -> dict[str, Array]:
    """Test samples at ten times their distance from the mean; uniform samples around the box of the data."""
    random = np.random.default_rng(seed)
    center, low, high = train.mean(0), train.min(0), train.max(0)
    uniform = random.uniform(2 * low - high, 2 * high - low, (4 * FAR, train.shape[1]))
    outside = ((uniform < low) | (uniform > high)).any(1)
    return {
        "10 times as far": center + 10 * (test[:FAR] - center),
        "uniform in a box 3 times as wide": uniform[outside][:FAR],
    }


def split(
    inputs: Array, targets: Array, seed: int, near: Mapping[str, Array], share: float = SHARE
) -> Table:
    """Stratified parts: `share` of the samples for calibration, and as many for testing."""
    number = round(share * len(inputs))

    def divide(samples: Samples, size: int) -> tuple[Samples, Samples]:
        rest, part, rest_of, part_of = train_test_split(
            *samples, test_size=size, stratify=samples.targets, random_state=seed
        )
        return Samples(rest, rest_of), Samples(part, part_of)

    rest, test = divide(Samples(inputs, targets), max(LEAST_TEST, number))
    train, calibration = divide(rest, max(LEAST_CALIBRATION, number))
    return Table(train, calibration, test, near)


def without_classes(
    inputs: Array, targets: Array, first: int, seed: int, share: float = SHARE
) -> Table:
    """Classes from `first` on are near OOD samples."""
    known = targets < first
    near = {"classes left out": inputs[~known]}
    return split(inputs[known], targets[known], seed, near, share)


def with_estimator(table: Table, seed: int, method: str, **settings: Any) -> Trained:
    """`DAEDLClassifier` without settings but those of the method."""
    started = time.process_time()
    estimator = DAEDLClassifier(method, method_settings=settings or None, random_state=seed)
    estimator.fit(*table.train)
    seconds = time.process_time() - started
    model = estimator.model_
    scaler: Any = estimator.scaler_  # None for embeddings
    dtype = next(model.parameters()).dtype

    def convert(samples: Array) -> Tensor:
        scaled = samples if scaler is None else scaler.transform(samples)
        return torch.tensor(scaled, dtype=dtype)

    return Trained(model, seconds, table.sets(convert, seed))


def with_network(table: Table, seed: int, method: str, **settings: Any) -> Trained:
    """`Classifier(MLP(...))` and `fit` with 30 epochs, without other settings but those of the method."""

    def convert(samples: Array) -> Tensor:
        return torch.tensor(samples, dtype=torch.float32)

    sets = table.sets(convert, seed)
    started = time.process_time()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = MLP(table.train.inputs.shape[1], num_classes=2)
        model = Classifier(network, methods.build(method, **settings))
    inputs, targets = sets.train
    number = len(inputs) // 5  # for early stopping (chosen)
    held_out, rest = (inputs[:number], targets[:number]), (inputs[number:], targets[number:])
    fit(model, rest, held_out, max_epochs=30, seed=seed, progress=False)
    return Trained(model, time.process_time() - started, sets)


def two_moons(seed: int) -> Table:
    """500 training points; the near points are the ones of the demo."""

    def draw(number: int, part: int) -> Samples:
        # Seeds of the parts must not collide with those of other runs.
        return Samples(*datasets.make_moons(number, noise=0.1, random_state=1000 * part + seed))

    center, random = np.array(moons.OOD_CENTER), np.random.default_rng(seed)
    near = center + moons.OOD_DEVIATION * random.standard_normal((moons.OOD_SAMPLES, 2))
    return Table(draw(500, 1), draw(500, 2), draw(1000, 3), {"blob beside the moons": near})


def digits(seed: int) -> Table:
    """Digits 8 and 9 are near OOD samples."""
    inputs, targets = datasets.load_digits(return_X_y=True)
    return without_classes(inputs, targets, 8, seed)


def wine(seed: int) -> Table:
    """The third class is a near OOD set."""
    inputs, targets = datasets.load_wine(return_X_y=True)
    return without_classes(inputs, targets, 2, seed)


def breast_cancer(seed: int) -> Table:
    """Two classes, so that wine is the near OOD set: its columns, repeated, on the scale of these columns."""
    inputs, targets = datasets.load_breast_cancer(return_X_y=True)
    others = StandardScaler().fit_transform(datasets.load_wine().data)
    others = np.resize(others.T, (inputs.shape[1], len(others))).T
    return split(inputs, targets, seed, {"wine": inputs.mean(0) + inputs.std(0) * others})


def synthetic(seed: int) -> Table:
    """50,000 training samples of 20 features in four classes; a fifth class is a near OOD set."""
    inputs, targets = datasets.make_classification(
        75_000,
        20,
        n_informative=10,
        n_classes=5,
        n_clusters_per_class=2,
        flip_y=0.0,
        random_state=seed,
    )
    table = without_classes(inputs, targets, 4, seed, share=5000 / 60_000)
    near = {name: each[:5000] for name, each in table.near.items()}
    return Table(table.train, table.calibration, table.test, near)


def many_classes(seed: int) -> Table:
    """1,000 Gaussian clusters in 64 dimensions with 20 training samples each; 50 others are near OOD."""
    random = np.random.default_rng(seed)
    targets = np.repeat(np.arange(1050), 24)
    # A deviation at which the nearest centre is right for about 99.5% of samples.
    inputs = random.standard_normal((1050, 64))[targets]
    inputs += 1.25 * random.standard_normal(inputs.shape)
    return without_classes(inputs, targets, 1000, seed, share=2 / 24)


def clinc150(seed: int, data: Path | None) -> Table:
    """Sentence embeddings of 150 intents; out-of-scope sentences are near OOD samples."""
    del seed  # the parts are published
    found = clinc.embeddings(data)
    train, held_out, test = (Samples(*found[name]) for name in ("train", "val", "test"))
    return Table(train, held_out, test, {"out of scope": found["oos_test"][0]})


def _estimated(build: Callable[[int], Table], seed: int, data: Path | None) -> Train:
    del data  # generated, or shipped with scikit-learn
    return partial(with_estimator, build(seed), seed)


def _networked(build: Callable[[int], Table], seed: int, data: Path | None) -> Train:
    del data
    return partial(with_network, build(seed), seed)


def _embedded(seed: int, data: Path | None) -> Train:
    return partial(with_estimator, clinc150(seed, data), seed)


CASES: Mapping[str, Case] = {
    "moons": Case("two moons, 500 points", partial(_networked, two_moons)),
    "moons-estimator": Case("two moons, `DAEDLClassifier`", partial(_estimated, two_moons)),
    "digits": Case("digits, 8 classes", partial(_estimated, digits)),
    "wine": Case("wine, 2 classes", partial(_estimated, wine)),
    "breast-cancer": Case("breast cancer, 2 classes", partial(_estimated, breast_cancer)),
    "clinc150": Case("CLINC150 embeddings, 150 classes", _embedded),
    "synthetic": Case("synthetic table, 50,000 x 20", partial(_estimated, synthetic)),
    "clusters": Case("clusters, 1,000 classes", partial(_estimated, many_classes)),
}
