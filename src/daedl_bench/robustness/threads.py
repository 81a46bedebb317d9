"""Eight threads that share a classifier of each method must predict what one thread predicts."""

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

import daedl
from daedl import methods
from daedl.networks import FeatureModule
from daedl_bench.robustness._place import Figure, Place

THREADS, ROUNDS = 8, 64
ROWS = range(1, 9)


def measure(place: Place) -> list[Figure]:
    """Every method, in train and in eval mode, with batch normalisation."""
    inputs = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(300) % 3
    inputs += 4 * torch.eye(4)[targets]
    differing = moved = predictions = 0
    for name in methods.METHODS:
        method = methods.build(name, **({"epochs": 1} if name == "adats" else {}))
        for training in (True, False):
            torch.manual_seed(0)
            layers = [nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3)]
            network = FeatureModule(nn.Sequential(*layers), "2", (4,))
            classifier = daedl.Classifier(network, method)
            classifier.fit_post_hoc((inputs, targets)).train(training)
            state = {key: value.clone() for key, value in classifier.state_dict().items()}
            alone = {rows: classifier.predict(inputs[:rows]) for rows in ROWS}
            work = [ROWS[number % len(ROWS)] for number in range(place.count(ROUNDS))]
            with ThreadPoolExecutor(THREADS) as pool:
                shared = pool.map(lambda rows, c=classifier: c.predict(inputs[:rows]), work)
                differing += sum(a != alone[rows] for a, rows in zip(shared, work, strict=True))
            predictions += len(work)
            after = classifier.state_dict()
            moved += not all(torch.equal(value, after[key]) for key, value in state.items())
            moved += classifier.network.training is not training
    return [
        Figure("methods", len(methods.METHODS)),
        Figure("predictions", predictions),
        Figure("predictions that differ from one thread", differing, 0),
        Figure("classifiers with changed buffers or mode", moved, 0),
    ]
