"""Experiments as data: protocols, methods with their settings, and the keys that identify figures."""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, Literal, TypeVar

import msgspec

from daedl import methods
from daedl.classifier import Classifier
from daedl.data import Preprocess
from daedl.methods import METHODS, Ensemble, Method
from daedl.names import look_up
from daedl.networks import Network
from daedl.networks import build as build_network
from daedl.networks.depths import LAST
from daedl.spectral import SpectralNorm
from daedl.training import OneCycle, sgd

Entries = Mapping[str, Mapping[str, Any]]
Table = TypeVar("Table", bound=msgspec.Struct)
# Suffix of the label of a method whose images have densities of other images (studies/pairing.py).
MISPAIRED = "-mispaired"


class Protocol(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a network is trained.

    Attributes:
        data: name of the dataset whose training images are split.
        split: number of images for training and for validation.
        network: name and arguments of the network.
        training: arguments of `daedl.fit`.
        augment: names of augmentations of the training images; the density is fitted without them.
        mean, std: per channel, for normalising all images; without them pixels are in [0, 1].
        rates: learning rates of methods that need another one, by the method that trains.
        optimizer: "adam"; or "sgd", with Nesterov momentum and a linear one-cycle schedule.
        reduction: of losses over a batch, for methods whose published code sums; "" for as published. SGD
            needs one scale for all methods.
    """

    name: str
    title: str
    data: str
    split: tuple[int, int]
    network: dict[str, Any]
    training: dict[str, Any]
    augment: tuple[str, ...] = ()
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    rates: dict[str, float] = {}
    optimizer: Literal["adam", "sgd"] = "adam"
    reduction: Literal["", "mean", "sum"] = ""

    def fit_options(self, method: Method) -> dict[str, Any]:
        """Arguments of `fit` for `method`, with the optimiser."""
        options = self.training_of(method)
        if self.optimizer == "sgd":
            options |= {"optimizer": sgd(options["learning_rate"]), "schedule": OneCycle()}
        return options

    def training_of(self, method: Method) -> dict[str, Any]:
        """Arguments of `fit` for `method`; an ensemble is trained as its members are."""
        trained = method.member if isinstance(method, Ensemble) else method
        rate = self.rates.get(trained.training_method().name)
        return {**self.training, **({} if rate is None else {"learning_rate": rate})}

    def classifier(
        self, method: Method, network: Network | None = None, **features: Any
    ) -> Classifier:
        """A classifier with a new network, or with `network`, that normalises images as the protocol says.

        Arguments:
            features: `features` and `pooling` of the new network; by default the paper's block.
        """
        # The paper's features, whatever the default of the network is; not part of keys.
        arguments = {"features": LAST, **self.network, **features}
        network = network or build_network(arguments.pop("name"), **arguments)
        channels, *size = network.input_shape
        preprocess = Preprocess(channels, (size[0], size[1]), mean=self.mean, std=self.std)
        return Classifier(network, method, preprocess=preprocess)


class Experiment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is measured: methods on a test set, against OOD datasets and corruptions.

    Attributes:
        protocols: by the short name that the command line takes; the first is the default.
        methods: labels of the methods; by default every method of the library, and `variants`.
        variants: labels of methods with settings of their own, listed behind the method they vary.
        test: the in-distribution dataset.
        ood: OOD datasets.
        shift: family of corruptions of the in-distribution dataset, or "".
        pictures: methods whose curves a report draws; by default all.
    """

    name: str
    title: str
    protocols: dict[str, Protocol] = {}
    methods: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    test: str = ""
    ood: tuple[str, ...] = ()
    shift: str = ""
    pictures: tuple[str, ...] = ()

    @property
    def drawn(self) -> tuple[str, ...]:
        """Methods whose curves are drawn."""
        return self.pictures or self.methods

    def protocol(self, name: str | None = None) -> Protocol:
        """The protocol of this short name, by default the first."""
        if name is None:
            return next(iter(self.protocols.values()))
        return look_up(self.protocols, name, f"protocol of experiment {self.name!r}")

    @property
    def units(self) -> tuple[str, ...]:
        """Names that are measured one by one: the test set, every OOD dataset, all corruptions."""
        return (self.test, *self.ood, *([self.shift] if self.shift else ()))


@dataclass(frozen=True)
class Trial:
    """One method with one seed under a protocol; its keys identify networks and figures.

    Attributes:
        features: `features` and `pooling` of the network, if not the paper's block alone. They end with that
            block, and do not change the weights.
    """

    protocol: Protocol
    method: Method
    seed: int
    features: Mapping[str, Any] = field(default_factory=dict)

    @property
    def network_key(self) -> str:
        """Identifies a trained network: protocol, the method that it is trained with, and seed."""
        protocol, trained = self.protocol, self.method.training_method()
        # Only where it is not the default, so that keys of earlier rows remain.
        optimizer = {} if protocol.optimizer == "adam" else {"optimizer": protocol.optimizer}
        return digest(
            {
                **optimizer,
                "data": protocol.data,
                "split": protocol.split,
                "augment": protocol.augment,
                "mean": protocol.mean,
                "std": protocol.std,
                "network": protocol.network,
                "training": protocol.training_of(self.method),
                "method": [trained.name, trained.arguments()],
                "seed": self.seed,
            }
        )

    @property
    def key(self) -> str:
        """Identifies the figures: the trained network, and the settings of the method."""
        features = [dict(self.features)] if self.features else []
        return digest([self.network_key, self.method.name, self.method.arguments(), *features])

    @property
    def view(self) -> str:
        """Names the features in the cache; "" for the paper's block."""
        return f"{digest(dict(self.features))}-" if self.features else ""

    @property
    def members(self) -> tuple["Trial", ...]:
        """The trials of an ensemble's members, with seeds that no other ensemble of its size has."""
        if not isinstance(self.method, Ensemble):
            return ()
        size, member = self.method.size, self.method.member
        seeds = range(size * self.seed, size * (self.seed + 1))
        return tuple(replace(self, method=member, seed=seed) for seed in seeds)

    @property
    def networks(self) -> frozenset[str]:
        """Keys of the trained networks that the trial needs."""
        return frozenset(each.network_key for each in self.members or (self,))


@dataclass(frozen=True)
class Catalogue:
    """Protocols, methods by label, and experiments.

    `methods` are built without regard to a dataset; `method` applies the settings published for one.
    """

    protocols: Mapping[str, Protocol]
    methods: Mapping[str, Method]
    experiments: Mapping[str, Experiment]
    entries: Entries

    def experiment(self, name: str) -> Experiment:
        """The experiment of this name."""
        return look_up(self.experiments, name, "experiment")

    def method(self, label: str, protocol: Protocol | None = None) -> Method:
        """The method of this label, with the settings that were published for the protocol's data."""
        entry = look_up(self.entries, label, "method of the experiments")
        method = _method(entry, "" if protocol is None else protocol.data)
        return _reduced(method, protocol.reduction) if protocol and protocol.reduction else method

    def trial(self, label: str, protocol: Protocol, seed: int) -> Trial:
        """The method of this label under `protocol`."""
        features = self.entries.get(label, {}).get("network", {})
        return Trial(protocol, self.method(label, protocol), seed, features)

    def key(self, protocol: str, label: str, seed: int) -> str | None:
        """The key of figures, by the names that a row has; None for names that are not listed here."""
        paired = label.removesuffix(MISPAIRED)
        if protocol not in self.protocols or paired not in self.methods:
            return None
        key = self.trial(paired, self.protocols[protocol], seed).key
        return key if paired == label else mispaired_key(key)

    def canonical(self, label: str) -> str:
        """The first label of the same method: "daedl" for "exp+de+sn"."""
        method = self.methods.get(label)
        return next((first for first, each in self.methods.items() if each == method), label)


def catalogue(text: str | None = None) -> Catalogue:
    """Read TOML with tables `protocol`, `method` and `experiment`; by default the folder experiments/."""
    shipped = (each for each in (files(__package__) / "experiments").iterdir() if text is None)
    texts = [text or "", *(each.read_text("utf-8") for each in sorted(shipped, key=str))]
    tables: dict[str, dict[str, Any]] = {"protocol": {}, "method": {}, "experiment": {}}
    for kind, entries in ((k, v) for each in texts for k, v in tomllib.loads(each).items()):
        look_up(tables, kind, "kind of table").update(entries)
    entries = {name: {"name": name} for name in METHODS} | tables["method"]
    built = {label: _method(entry, "") for label, entry in entries.items()}
    protocols = {
        name: _checked(Protocol, name, entry) for name, entry in tables["protocol"].items()
    }
    experiments = {
        name: _experiment(name, entry, protocols, built)
        for name, entry in tables["experiment"].items()
    }
    # Comparisons of many methods come before ablations.
    largest = sorted(experiments.values(), key=lambda each: -len(each.methods))
    return Catalogue(protocols, built, {each.name: each for each in largest}, entries)


def _method(entry: Mapping[str, Any], data: str) -> Method:
    arguments = {key: value for key, value in entry.items() if key != "network"}
    # TOML has no null, and methods have different defaults.
    match arguments.get("spectral"):
        case "none":
            arguments["spectral"] = None
        case "default":
            arguments["spectral"] = SpectralNorm()
        case dict(settings):
            arguments["spectral"] = SpectralNorm(**settings)
    return methods.build_for(data, arguments.pop("name"), **arguments)


def _reduced(method: Method, reduction: Literal["mean", "sum"]) -> Method:
    """The method with another reduction of its loss over a batch, if that is one of its settings."""
    if isinstance(method, Ensemble):
        return replace(method, member=_reduced(method.member, reduction))
    is_setting = "reduction" in method.arguments()
    return replace(method, reduction=reduction) if is_setting else method


def _experiment(
    name: str,
    entry: Mapping[str, Any],
    protocols: Mapping[str, Protocol],
    built: Mapping[str, Method],
) -> Experiment:
    variants = entry.get("variants", ())
    for label in (*entry.get("methods", ()), *variants, *entry.get("pictures", ())):
        look_up(built, label, f"method of experiment {name!r}")
    chosen = {
        short: look_up(protocols, full, f"protocol of experiment {name!r}")
        for short, full in entry.get("protocols", {}).items()
    }
    every = _with_variants({label: built[label].name for label in variants})
    return _checked(Experiment, name, {"methods": every, **entry, "protocols": chosen})


def _with_variants(variants: Mapping[str, str]) -> Iterable[str]:
    """Every method of the library, each followed by its variants."""
    return [
        label
        for name in METHODS
        for label in (name, *(each for each, base in variants.items() if base == name))
    ]


def _checked(kind: type[Table], name: str, entry: Mapping[str, Any]) -> Table:
    """An entry of the TOML as a record, with types and names of its settings validated."""
    where = f"{kind.__name__.lower()} {name!r}"
    for setting in entry:
        look_up(dict.fromkeys(kind.__struct_fields__), setting, f"setting of {where}")
    try:
        return msgspec.convert({**entry, "name": name}, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}; expected the fields of {kind.__name__}") from error


def mispaired_key(key: str) -> str:
    """Identifies figures of a trial with densities of other images, see `studies/pairing.py`."""
    return digest([key, "mispaired"])


def digest(content: Any) -> str:
    """A short digest of JSON-able content."""
    text = json.dumps(content, sort_keys=True, default=dict)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
