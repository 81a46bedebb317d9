"""Experiments as data: protocols, methods with settings, and what is asked of them."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

from daedl import methods
from daedl.methods import Ensemble, Method
from daedl.names import look_up
from daedl.networks import Network
from daedl.networks import build as build_network
from daedl.spectral import SpectralNorm


@dataclass(frozen=True)
class Protocol:
    """How a network is trained.

    Attributes:
        data: name of the data set, whose training images are split.
        split: images for training, and for validation.
        network: name and arguments of the network.
        training: arguments of `fit`.
        rates: learning rates of methods that need another one, by the method that trains.
        augment: names of augmentations of the training images; the density sees images as they are.
        mean, std: of each channel, by which all images are normalised; else pixels are in [0, 1].
    """

    name: str
    title: str
    data: str
    split: tuple[int, int]
    network: Mapping[str, Any]
    training: Mapping[str, Any]
    augment: tuple[str, ...] = ()
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    rates: Mapping[str, float] = field(default_factory=dict)

    def training_of(self, method: Method) -> dict[str, Any]:
        """Arguments of `fit` for `method`."""
        # An ensemble is trained as its members are.
        trained = method.member if isinstance(method, Ensemble) else method
        rate = self.rates.get(trained.training_method().name)
        return {**self.training, **({} if rate is None else {"learning_rate": rate})}

    def build(self) -> Network:
        """A new network."""
        arguments = dict(self.network)
        return build_network(arguments.pop("name"), **arguments)


@dataclass(frozen=True)
class Experiment:
    """What is measured: methods on a test set, against unknown sets and against corruptions of it.

    Attributes:
        protocols: by the short name that the command line takes; the first is the default.
        test: the known data, whose test images are asked about.
        ood: unknown data sets.
        shift: family of corruptions of the known data, or "".
        pictures: methods whose curves a report draws, as all would hide each other; none means all.
        kind: "images"; or "moons", which has points of its own: of the others only `methods` counts there.
        settings: of the moons, see `moons.Settings`.
    """

    name: str
    title: str
    protocols: Mapping[str, Protocol] = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    test: str = ""
    ood: tuple[str, ...] = ()
    shift: str = ""
    pictures: tuple[str, ...] = ()
    kind: Literal["images", "moons"] = "images"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def drawn(self) -> tuple[str, ...]:
        """Methods whose curves are drawn."""
        return self.pictures or self.methods

    def protocol(self, name: str | None = None) -> Protocol:
        """The protocol of this short name, or the default one."""
        if name is None:
            return next(iter(self.protocols.values()))
        return look_up(self.protocols, name, f"protocol of experiment {self.name!r}")

    @property
    def units(self) -> tuple[str, ...]:
        """What is measured in one go each: the test set, every unknown set, all corruptions."""
        return (self.test, *self.ood, *([self.shift] if self.shift else ()))


@dataclass(frozen=True)
class Catalogue:
    """All protocols, methods with settings and experiments of a file.

    `methods` have their defaults where the file has no settings; `method` takes in a protocol too.
    """

    protocols: Mapping[str, Protocol]
    methods: Mapping[str, Method]
    experiments: Mapping[str, Experiment]
    entries: Mapping[str, Mapping[str, Any]]

    def experiment(self, name: str) -> Experiment:
        """The experiment of this name."""
        return look_up(self.experiments, name, "experiment")

    def method(self, name: str, protocol: Protocol | None = None) -> Method:
        """The method of this name, with the settings that were published for the protocol's data."""
        entry = look_up(self.entries, name, "method of the experiments")
        return _method(entry, "" if protocol is None else protocol.data)


def catalogue(text: str | None = None) -> Catalogue:
    """Read TOML; by default the experiments that ship with the library."""
    if text is None:
        text = (files("daedl_bench") / "experiments.toml").read_text("utf-8")
    content = tomllib.loads(text)
    protocols = {
        name: Protocol(name, **_frozen(entry)) for name, entry in content["protocol"].items()
    }
    entries = content["method"]
    built = {name: _method(entry, "") for name, entry in entries.items()}
    experiments = {
        name: _experiment(name, entry, protocols, built)
        for name, entry in content["experiment"].items()
    }
    return Catalogue(protocols, built, experiments, entries)


def _method(entry: Mapping[str, Any], data: str) -> Method:
    arguments = dict(entry)
    # TOML has no null, and a method's own default differs from one method to the other.
    match arguments.get("spectral"):
        case "none":
            arguments["spectral"] = None
        case "default":
            arguments["spectral"] = SpectralNorm()
        case dict(settings):
            arguments["spectral"] = SpectralNorm(**settings)
    return methods.build_for(data, arguments.pop("name"), **arguments)


def _experiment(
    name: str,
    entry: Mapping[str, Any],
    protocols: Mapping[str, Protocol],
    built: Mapping[str, Method],
) -> Experiment:
    for method in (*entry.get("methods", ()), *entry.get("pictures", ())):
        look_up(built, method, f"method of experiment {name!r}")
    chosen = {
        short: look_up(protocols, full, f"protocol of experiment {name!r}")
        for short, full in entry.get("protocols", {}).items()
    }
    return Experiment(name, **_frozen(entry) | {"protocols": chosen})


def _frozen(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(each) if isinstance(each, list) else each for key, each in entry.items()}


def training_key(protocol: Protocol, method: Method, seed: int) -> str:
    """What identifies a trained network: protocol, the method that it is trained as, and seed."""
    shared = method.training_method()
    return digest(
        {
            "data": protocol.data,
            "split": protocol.split,
            "augment": protocol.augment,
            "mean": protocol.mean,
            "std": protocol.std,
            "network": protocol.network,
            "training": protocol.training_of(method),
            "method": [shared.name, shared.arguments()],
            "seed": seed,
        }
    )


def member_seeds(method: Ensemble, seed: int) -> range:
    """The seeds of an ensemble's members, which no other ensemble of its size has."""
    return range(method.size * seed, method.size * (seed + 1))


def training_keys(protocol: Protocol, method: Method, seed: int) -> set[str]:
    """The trained networks that a method needs: one, or those of an ensemble's members."""
    if isinstance(method, Ensemble):
        seeds = member_seeds(method, seed)
        return {training_key(protocol, method.member, each) for each in seeds}
    return {training_key(protocol, method, seed)}


def cell_key(protocol: Protocol, method: Method, seed: int) -> str:
    """What identifies a method's figures: the trained network, and the method's own settings."""
    return digest([training_key(protocol, method, seed), method.name, method.arguments()])


def mispaired_key(key: str) -> str:
    """The same of a cell's figures with densities of other images, see benchmarks/pairing.py."""
    return digest([key, "mispaired"])


def digest(content: Any) -> str:
    """A short digest of JSON-able content."""
    text = json.dumps(content, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
