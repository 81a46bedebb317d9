"""What the report reads from the catalogue: current digests, settings in words, commands."""

from collections.abc import Mapping
from typing import Any

from daedl.methods import METHODS, Method
from daedl_bench import two_moons
from daedl_bench.spec import Catalogue, Experiment, Protocol, cell_key, mispaired_key

# Suffix of a method whose density scores were shuffled, see benchmarks/pairing.py.
MISPAIRED = "-mispaired"
SEEDS = "0-4"  # five runs, as in the paper
POST_HOC = "Applied to an ordinary softmax network: no retraining"
OWN = "Own training, one pass at prediction"
SEVERAL = "Several passes at prediction"
_TRAINING = {
    "max_epochs": "at most {} epochs",
    "batch_size": "batches of {}",
    "learning_rate": "learning rate {:g}",
    "schedule": "{} schedule",
    "lr_decay": "multiplied by {} per epoch",
    "patience": "stopped after {} epochs without a lower validation loss",
}


def current_digest(
    catalogue: Catalogue, experiment: str, protocol: str, label: str, seed: int
) -> str | None:
    """The digest of a cell's settings in the catalogue; None if it does not contain the cell."""
    if experiment == two_moons.NAME:
        return two_moons.key(two_moons.settings_of(catalogue))
    paired = label.removesuffix(MISPAIRED)
    if protocol not in catalogue.protocols or paired not in catalogue.methods:
        return None
    chosen = catalogue.protocols[protocol]
    key = cell_key(chosen, catalogue.method(paired, chosen), seed)
    return key if paired == label else mispaired_key(key)


def kind(method: Method) -> str:
    """`POST_HOC`, `OWN` or `SEVERAL`."""
    if method.passes > 1:
        return SEVERAL
    return POST_HOC if method.training_method() == METHODS["softmax"]() else OWN


def compared_methods(catalogue: Catalogue) -> set[str]:
    """Labels of methods to choose from: those of OOD experiments, without parts of an ablation."""
    return {
        label
        for each in catalogue.experiments.values()
        if each.ood and "ablation" not in each.name
        for label in each.methods
    }


def command(experiment: str, protocol: str, methods: str, seeds: str = SEEDS) -> str:
    """The command that runs `methods` of an experiment."""
    return (
        f"python -m daedl_bench run {experiment} --protocol {protocol} --methods {methods} "
        f"--seeds {seeds}"
    )


def table_command(
    catalogue: Catalogue, protocol: str, known: str, data: set[str], methods: list[str]
) -> tuple[str, str] | None:
    """Experiment and short protocol that evaluate all of `data`; None if there is no such experiment.

    Of several the one with most of the table's `methods`, so that one command runs them all, and then
    the one with the fewest other datasets.
    """
    fitting = [
        (experiment, short)
        for experiment in catalogue.experiments.values()
        for short, each in experiment.protocols.items()
        if each.name == protocol and experiment.test == known and data <= set(experiment.units)
    ]
    fitting.sort(key=lambda pair: (-len({*methods} & {*pair[0].methods}), len(pair[0].units)))
    return (fitting[0][0].name, fitting[0][1]) if fitting else None


def ood_experiment(catalogue: Catalogue, protocol: Protocol) -> tuple[Experiment, str] | None:
    """The first experiment with OOD sets under `protocol`, and the protocol's short name in it."""
    for experiment in catalogue.experiments.values():
        for short, each in experiment.protocols.items():
            if experiment.ood and each == protocol:
                return experiment, short
    return None


def protocol_settings(protocol: Protocol | None) -> str:
    """The protocol's title and settings as sentences."""
    if protocol is None:
        return "Not in the catalogue."
    network = dict(protocol.network)
    train, val = protocol.split
    parts = [
        f"{network.pop('name')} ({_listed(network)})",
        f"{train:,} images for training and {val:,} for validation",
        *(
            _TRAINING.get(key, f"{key} {{}}").format(each)
            for key, each in protocol.training.items()
        ),
    ]
    if protocol.augment:
        parts.append(f"training images augmented by {', '.join(protocol.augment)}")
    if protocol.mean is not None:
        parts.append("pixels normalised per channel")
    return f"{protocol.title[:1].upper()}{protocol.title[1:]}. {'; '.join(parts)}."


def method_settings(catalogue: Catalogue, label: str, name: str) -> str:
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
