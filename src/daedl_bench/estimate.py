"""Upper bounds of training times on this machine, from a few timed steps."""

import time

import msgspec
import torch
from torch import Tensor

from daedl.methods import Method
from daedl.networks import lay_out
from daedl_bench.spec import Catalogue, Experiment, Protocol, Trial

# A forward pass is this share of a training step, as the backward pass computes twice as much.
FORWARD = 1 / 3
REPEATS = 2  # timed steps after a warm-up step; the fastest counts (chosen)


def times(catalogue: Catalogue) -> dict[str, list[str]]:
    """The time of one seed of all methods: per experiment, one text per protocol."""
    seconds: dict[str, float] = {}  # of an epoch, per protocol
    found: dict[str, list[str]] = {}
    for name, experiment in catalogue.experiments.items():
        found[name] = []
        for short, protocol in experiment.protocols.items():
            if protocol.name not in seconds:
                method = catalogue.method(experiment.methods[0], protocol).training_method()
                seconds[protocol.name] = epoch_seconds(protocol, method)
            most = seconds[protocol.name] * epochs(catalogue, experiment, protocol)
            found[name].append(f"{short}: {duration(most)}")
    return found


def epoch_seconds(protocol: Protocol, method: Method) -> float:
    """Seconds of one epoch of training and validation, with the current number of threads."""
    size: int = protocol.training["batch_size"]
    train, val = protocol.split
    return (train + FORWARD * val) / size * _step(protocol, method, size)


def within(protocol: Protocol, method: Method, minutes: float) -> Protocol:
    """The protocol with as many epochs as fit into `minutes`, and a name that states their number."""
    number = int(60 * minutes / epoch_seconds(protocol, method.training_method()))
    if number < 1:
        raise ValueError(
            f"the budget is {minutes:g} minutes, which is less than one epoch of {protocol.name} on this "
            "machine; expected at least one: allow more, or choose another protocol"
        )
    training = {**protocol.training, "max_epochs": number}
    name = f"{protocol.name}-{number}-epochs"
    return msgspec.structs.replace(protocol, name=name, training=training)


def epochs(catalogue: Catalogue, experiment: Experiment, protocol: Protocol) -> int:
    """Largest number of epochs of one seed of all methods: those that share a network count once."""
    most: dict[str, int] = {}
    for label in experiment.methods:
        method = catalogue.method(label, protocol)
        phases = getattr(method, "member", method).training_method().phases()
        # None means the protocol's number of epochs.
        lengths = [each.max_epochs for each in phases]
        total = sum(protocol.training["max_epochs"] if each is None else each for each in lengths)
        most |= dict.fromkeys(Trial(protocol, method, 0).networks, total)
    return sum(most.values())


def _step(protocol: Protocol, method: Method, size: int) -> float:
    """Seconds of one training step on a batch of `size` random images."""
    classifier = protocol.classifier(method)
    network = classifier.network
    lay_out(network)
    optimizer = torch.optim.Adam(network.parameters())
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((size, *network.input_shape), generator=generator)
    targets = torch.arange(size) % network.num_classes
    mixed = protocol.training.get("precision") == "bf16-mixed"

    def step(images: Tensor, targets: Tensor) -> float:
        started = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            loss = method.training_loss(classifier.network, images, targets, 0)
        torch.autograd.backward(loss)
        optimizer.step()
        return time.perf_counter() - started

    classifier.train()
    step(images, targets)
    return min(step(images, targets) for _ in range(REPEATS))


def duration(seconds: float) -> str:
    """Seconds as text: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
