"""How long an experiment takes on this machine: a few steps are timed, the rest is counting."""

import time
from dataclasses import replace

import torch
from torch import Tensor

from daedl.classifier import Classifier
from daedl.demo import moons as two_moons
from daedl.methods import Method
from daedl.networks import lay_out
from daedl_bench.spec import Catalogue, Experiment, Protocol, training_keys

# A forward pass is this share of a training step, whose backward pass computes twice as much.
FORWARD = 1 / 3
REPEATS = 2  # timed steps after one that warms up; the fastest counts (chosen)


def an_epoch(protocol: Protocol, method: Method) -> float:
    """Seconds of one epoch of training and validation, with the threads that torch has now."""
    size: int = protocol.training["batch_size"]
    train, val = protocol.split
    return (train + FORWARD * val) / size * _step(protocol, method, size)


def epochs(catalogue: Catalogue, experiment: Experiment, protocol: Protocol) -> int:
    """Epochs at most of one seed of all methods: those that share a training count once."""
    found: dict[str, int] = {}
    for label in experiment.methods:
        method = catalogue.method(label, protocol)
        phases = getattr(method, "member", method).training_method().phases()
        # None stands for as many as the protocol has; 0 for none.
        lengths = [each.max_epochs for each in phases]
        most = [protocol.training["max_epochs"] if each is None else each for each in lengths]
        found |= dict.fromkeys(training_keys(protocol, method, 0), sum(most))
    return sum(found.values())


def moons(settings: two_moons.Settings) -> float:
    """Seconds of one seed of the two moons, at most: as many times an epoch as it has."""
    one = replace(settings, training=replace(settings.training, max_epochs=1))
    started = time.perf_counter()
    two_moons.run(0, one)
    return settings.training.max_epochs * (time.perf_counter() - started)


def _step(protocol: Protocol, method: Method, size: int) -> float:
    """Seconds of one training step on a batch of `size` made-up images."""
    network = protocol.build()
    lay_out(network)
    classifier = Classifier(network, method)
    optimizer = torch.optim.Adam(network.parameters())
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((size, *network.input_shape), generator=generator)
    targets = torch.arange(size) % network.num_classes

    def step(images: Tensor, targets: Tensor) -> float:
        started = time.perf_counter()
        optimizer.zero_grad()
        torch.autograd.backward(method.training_loss(classifier.network, images, targets, 0))
        optimizer.step()
        return time.perf_counter() - started

    classifier.train()
    step(images, targets)
    return min(step(images, targets) for _ in range(REPEATS))


def told(seconds: float) -> str:
    """Seconds for people to read: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
