"""Eight threads that share a model of each method must predict what one thread predicts."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

import daedl
from daedl import methods
from daedl.methods import regression
from daedl.model import Model
from daedl.networks import FeatureModule
from daedl_bench.robustness._place import Figure, Place

THREADS, ROUNDS = 8, 64
ROWS = range(1, 9)


def measure(place: Place) -> list[Figure]:
    """Every method, in train and in eval mode, with batch normalisation."""
    inputs = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    classes = torch.arange(300) % 3
    inputs += 4 * torch.eye(4)[classes]
    names = (*methods.METHODS, *regression.METHODS)
    work = [ROWS[number % len(ROWS)] for number in range(place.count(ROUNDS))]
    differing = moved = 0
    for name, training in product(names, (True, False)):
        model = _fitted(name, inputs, classes).train(training)
        state = {key: value.clone() for key, value in model.state_dict().items()}
        alone = {rows: _columns(model, inputs[:rows]) for rows in ROWS}
        with ThreadPoolExecutor(THREADS) as pool:
            shared = pool.map(lambda rows, m=model: _columns(m, inputs[:rows]), work)
            pairs = zip(shared, work, strict=True)
            differing += sum(not _equal(each, alone[rows]) for each, rows in pairs)
        after = model.state_dict()
        moved += not all(torch.equal(value, after[key]) for key, value in state.items())
        moved += model.network.training is not training
    return [
        Figure("methods", len(names)),
        Figure("predictions", 2 * len(names) * len(work)),
        Figure("predictions that differ from one thread", differing, 0),
        Figure("models with changed buffers or mode", moved, 0),
    ]


def _fitted(name: str, inputs: Tensor, classes: Tensor) -> Model[Any]:
    """A classifier of 3 classes or a regressor of 3 targets."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3)]
    network = FeatureModule(nn.Sequential(*layers), "2", (4,))
    if name in regression.METHODS:
        regressor = daedl.Regressor(network, name)
        data = inputs, inputs[:, :3] + classes[:, None]
        daedl.fit(regressor, [data], max_epochs=1, progress=False)
        return regressor
    method = methods.build(name, **({"epochs": 1} if name == "adats" else {}))
    return daedl.Classifier(network, method).fit_post_hoc((inputs, classes))


def _columns(model: Model[Any], inputs: Tensor) -> dict[str, Tensor]:
    columns: dict[str, Tensor] = model.predict(inputs).columns()
    return columns


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
