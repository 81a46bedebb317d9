"""Experiments as data: protocols, methods with settings, and what is asked of them."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from daedl import methods
from daedl.methods import Method
from daedl.names import look_up
from daedl.networks import Network
from daedl.networks import build as build_network
from daedl.spectral import SpectralNorm


@dataclass(frozen=True)
class Protocol:
    """How a network is trained: data, how many images are held out, network, arguments of `fit`."""

    name: str
    title: str
    data: str
    validation: int
    network: Mapping[str, Any]
    training: Mapping[str, Any]

    def build(self) -> Network:
        """A new network."""
        arguments = dict(self.network)
        return build_network(arguments.pop("name"), **arguments)


@dataclass(frozen=True)
class Experiment:
    """What is measured: methods under a protocol on a test set, and against unknown sets."""

    name: str
    title: str
    protocol: Protocol
    methods: tuple[str, ...]
    test: str
    ood: tuple[str, ...]


@dataclass(frozen=True)
class Catalogue:
    """All protocols, methods with settings and experiments of a file."""

    protocols: Mapping[str, Protocol]
    methods: Mapping[str, Method]
    experiments: Mapping[str, Experiment]

    def experiment(self, name: str) -> Experiment:
        """The experiment of this name."""
        return look_up(self.experiments, name, "experiment")

    def method(self, name: str) -> Method:
        """The method of this name, with the settings that it has here."""
        return look_up(self.methods, name, "method of the experiments")


def catalogue(text: str | None = None) -> Catalogue:
    """Read TOML; by default the experiments that ship with the library."""
    if text is None:
        text = (files("daedl.bench") / "experiments.toml").read_text("utf-8")
    content = tomllib.loads(text)
    protocols = {name: Protocol(name, **entry) for name, entry in content["protocol"].items()}
    built = {name: _method(entry) for name, entry in content["method"].items()}
    experiments = {
        name: _experiment(name, entry, protocols, built)
        for name, entry in content["experiment"].items()
    }
    return Catalogue(protocols, built, experiments)


def _method(entry: Mapping[str, Any]) -> Method:
    arguments = dict(entry)
    # TOML has no null, and a method's own default differs from one method to the other.
    match arguments.get("spectral"):
        case "none":
            arguments["spectral"] = None
        case "default":
            arguments["spectral"] = SpectralNorm()
    return methods.build(arguments.pop("name"), **arguments)


def _experiment(
    name: str,
    entry: Mapping[str, Any],
    protocols: Mapping[str, Protocol],
    built: Mapping[str, Method],
) -> Experiment:
    for method in entry["methods"]:
        look_up(built, method, f"method of experiment {name!r}")
    return Experiment(
        name=name,
        title=entry["title"],
        protocol=look_up(protocols, entry["protocol"], f"protocol of experiment {name!r}"),
        methods=tuple(entry["methods"]),
        test=entry["test"],
        ood=tuple(entry["ood"]),
    )


def training_key(protocol: Protocol, method: Method, seed: int) -> str:
    """What identifies a trained network: protocol, the method that it is trained as, and seed."""
    shared = method.trained_as()
    return digest(
        {
            "data": protocol.data,
            "validation": protocol.validation,
            "network": protocol.network,
            "training": protocol.training,
            "method": [shared.name, shared.arguments()],
            "seed": seed,
        }
    )


def cell_key(protocol: Protocol, method: Method, seed: int) -> str:
    """What identifies a method's figures: the trained network, and the method's own settings."""
    return digest([training_key(protocol, method, seed), method.name, method.arguments()])


def digest(content: Any) -> str:
    """A short digest of JSON-able content."""
    text = json.dumps(content, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
