"""Settings of protocols and methods in words."""

from collections.abc import Mapping
from typing import Any

from daedl_bench.spec import MISPAIRED, Catalogue, Protocol


def of_protocol(protocol: Protocol | None) -> str:
    """The protocol's title and settings as sentences."""
    if protocol is None:
        return "Not in the catalogue."
    network = dict(protocol.network)
    train, val = protocol.split
    parts = [
        f"{network.pop('name')} ({_listed(network)})",
        f"{train:,} images for training and {val:,} for validation",
        _listed(protocol.training),
    ]
    if protocol.augment:
        parts.append(f"training images augmented by {', '.join(protocol.augment)}")
    if protocol.mean is not None:
        parts.append("pixels normalised per channel")
    return f"{protocol.title[:1].upper()}{protocol.title[1:]}. {'; '.join(parts)}."


def of_method(catalogue: Catalogue, label: str, name: str) -> str:
    """The method, and settings that differ from its defaults or from the training of protocol `name`."""
    protocol = catalogue.protocols.get(name)
    if label.endswith(MISPAIRED):
        return f"{label.removesuffix(MISPAIRED)}, each image with the density of another image"
    if protocol is None or label not in catalogue.methods:
        return "not in the catalogue"
    method = catalogue.method(label, protocol)
    defaults, training = method.defaults(), protocol.training_of(method)
    changed = {
        key: getattr(method, key) for key in defaults if getattr(method, key) != defaults[key]
    }
    changed |= {
        key.replace("_", " "): value
        for key, value in training.items()
        if value != protocol.training[key]
    }
    return f"{method.name}, {_listed(changed)}" if changed else method.name


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())
