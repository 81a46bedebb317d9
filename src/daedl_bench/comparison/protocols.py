"""What was run, in words: protocols, methods with their settings, seeds and circumstances."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from daedl.methods import Method
from daedl_bench.comparison import titles
from daedl_bench.comparison.measured import Measurements
from daedl_bench.spec import MISPAIRED, Protocol

_TRAINING = {
    "max_epochs": "at most {} epochs",
    "batch_size": "batches of {}",
    "learning_rate": "learning rate {:g}",
    "schedule": "{} schedule of it",
    "lr_decay": "times {} an epoch",
    "patience": "stopped after {} epochs without a lower validation loss",
}


@dataclass(frozen=True)
class Run:
    """A protocol with rows.

    Attributes:
        methods: name, settings that differ from the method's own or the protocol's, and seeds.
        made: families of corruptions that were made here, in place of published ones.
    """

    name: str
    title: str
    settings: str
    methods: tuple[tuple[str, str, str], ...]
    commits: str
    threads: str
    versions: str
    made: str


def runs(measured: Measurements) -> list[Run]:
    """Every protocol with rows."""
    return [_run(name, measured) for name in measured.all_protocols]


def _run(name: str, measured: Measurements) -> Run:
    found = [row for (key, _), row in measured.rows.items() if key.protocol == name]
    protocol = measured.catalogue.protocols.get(name)
    methods = []
    for label in measured.methods(name):
        seeds = {seed for key, seed in measured.rows if key[:2] == (name, label)}
        settings = "not in the catalogue"
        if protocol and label in measured.catalogue.methods:
            settings = _settings(measured.catalogue.method(label, protocol), protocol)
        elif label.endswith(MISPAIRED):
            settings = f"{label.removesuffix(MISPAIRED)}, each image with the density of another"
        methods.append((titles.method(label), settings, titles.seeds(seeds)))
    return Run(
        name,
        _sentence(protocol.title if protocol else "not in the catalogue"),
        in_words(protocol) if protocol else "",
        tuple(methods),
        commits=", ".join(sorted({row.commit for row in found})),
        threads=", ".join(map(str, sorted({row.threads for row in found}))),
        versions=", ".join(sorted({f"daedl {row.daedl}, torch {row.torch}" for row in found})),
        made=", ".join(
            sorted({titles.data(row.data.partition("/")[0]) for row in found if row.made})
        ),
    )


def in_words(protocol: Protocol) -> str:
    """The protocol's settings as a sentence."""
    network = dict(protocol.network)
    train, val = protocol.split
    parts = [
        f"{network.pop('name')} ({_listed(network)})",
        f"{train:,} images for training and {val:,} for validation",
        *(
            _TRAINING.get(key, f"{key} {{}}").format(value)
            for key, value in protocol.training.items()
        ),
    ]
    if protocol.augment:
        parts.append(f"training images augmented by {', '.join(protocol.augment)}")
    if protocol.mean is not None:
        parts.append("pixels normalised by channel")
    return "; ".join(parts) + "."


def _settings(method: Method, protocol: Protocol) -> str:
    """What differs from the defaults of the method's class, and from the protocol's training."""
    changed = {
        name: getattr(method, name)
        for name, default in method.defaults().items()
        if getattr(method, name) != default
    }
    training = protocol.training_of(method)
    changed |= {
        key.replace("_", " "): value
        for key, value in training.items()
        if value != protocol.training[key]
    }
    return f"{method.name}, {_listed(changed)}" if changed else method.name


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())
