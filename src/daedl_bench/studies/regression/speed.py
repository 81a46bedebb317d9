"""Time of a prediction by DAER relative to the bare network."""

import time
from collections.abc import Iterator
from functools import partial

import torch

import daedl
from daedl.evaluate import Measured
from daedl.networks import MLP
from daedl.outputs import evaluating
from daedl.spectral import remove_spectral_norm
from daedl_bench.studies._machine import best_times

FEATURES, ROWS, REPEATS = 64, 4096, 15
# Widths of the hidden layers: the demo's size, and a size at which the network takes most of the time.
NETWORKS = {"MLP 64-64": (64, 64), "MLP 1024-1024-64": (1024, 1024, 64)}


def ratios() -> Iterator[tuple[str, Measured]]:
    """Prediction of a batch / forward pass of its network, best of interleaved repeats in one process.

    CPU time, with one thread in `study regression speed`: other processes disturb it less than elapsed time.
    """
    inputs = torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(0))
    targets = inputs[:, 0] + 0.1 * inputs[:, 1].square()
    for name, hidden in NETWORKS.items():
        torch.manual_seed(0)
        model = daedl.Regressor(MLP(FEATURES, 1, hidden))
        data = inputs, targets
        daedl.fit(model, data, data, max_epochs=1, accelerator="cpu", progress=False)
        remove_spectral_norm(model.network)  # as the server and exported graphs do
        with evaluating(model.network), torch.no_grad():
            work = {
                "bare": partial(model.network, inputs),
                "whole": partial(model.predict, inputs, batch_size=ROWS),
            }
            times = best_times(work, REPEATS, time.process_time)
        yield name, Measured("speed", "", "prediction ratio", times["whole"] / times["bare"])
