"""What the report reads from the catalogue: current digests, settings in words, commands."""

from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from daedl.methods import METHODS, Method
from daedl_bench import two_moons
from daedl_bench.spec import Catalogue, Experiment, Protocol, cell_key, mispaired_key

# Suffix of a method whose density scores were shuffled, see benchmarks/pairing.py.
MISPAIRED = "-mispaired"
SEEDS = "0-4"  # five runs, as in the paper
# Kinds of methods, with a short name for the heading of a column.
KINDS = {
    "Applied to an ordinary softmax network: no retraining": "no retraining",
    "Own training, one pass at prediction": "own training, one pass",
    "Several passes at prediction": "several passes",
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
    """The kind of a method, one of `KINDS`."""
    post_hoc, own, several = KINDS
    if method.passes > 1:
        return several
    return post_hoc if method.training_method() == METHODS["softmax"]() else own


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
    catalogue: Catalogue, protocol: str, known: str, table: DataFrame, labels: list[str]
) -> str:
    """The command that runs the methods `labels` of one of the paper's tables, as Markdown.

    Of several experiments with the table's datasets the one with most of its methods is taken, so that
    one command runs them all, and then the one with the fewest other datasets.
    """
    data = {each.partition("/")[0] for each in table["data"]}
    fitting = [
        (experiment, short)
        for experiment in catalogue.experiments.values()
        for short, each in experiment.protocols.items()
        if each.name == protocol and experiment.test == known and data <= set(experiment.units)
    ]
    if not fitting or not set(labels) <= set(catalogue.methods):
        return "none: no method or experiment covers it yet"
    listed = set(table["label"])
    fitting.sort(key=lambda pair: (-len(listed & set(pair[0].methods)), len(pair[0].units)))
    experiment, short = fitting[0]
    return f"`{command(experiment.name, short, ','.join(labels))}`"


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
        _listed(protocol.training),
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
