"""Tables of CIFAR-10 in the documentation, from rows."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files

from daedl_bench import names
from daedl_bench.names import DASH
from daedl_bench.studies import ready
from daedl_bench.studies._tables import (
    Source,
    by_name,
    by_question,
    by_source,
    detection,
    every_source,
    known,
    with_seeds,
)
from daedl_bench.summary import Results

CPU, DATA = "cifar10-cpu", "cifar10"
KNOWN = known(DATA)
DETECTION = [
    detection(data, metric) for data in ("svhn", "cifar100") for metric in ("aupr", "auroc")
]
FAR = [detection(data, "auroc") for data in ("mnist", "fashion-mnist", "kmnist", "noise")]
SHIFT = [detection(f"cifar10-c/{severity}") for severity in range(1, 6)]
OURS = ("daedl", "daedl-depths", "daedl-diagonal", "softmax", "retrofit-depths")
TITLED = {"accuracy": KNOWN.accuracy, **{each.title: each for each in DETECTION}}


def cifar(results: Results) -> str:
    """DAEDL in the paper's variant and with densities on all depths, and softmax with and without these."""
    questions = (*KNOWN, *DETECTION, *FAR, *SHIFT)
    return by_question(results, questions, _columns(results, OURS), published=DATA)


def cifar_summary(results: Results) -> str:
    """Accuracy and detection, for the README."""
    chosen = _columns(results, ("daedl", "daedl-depths", "softmax", "retrofit-depths"))
    return by_question(results, TITLED.values(), chosen, published=DATA)


def cifar_methods(results: Results) -> str:
    """Every method with rows, one line each."""
    questions = {"accuracy": KNOWN.accuracy, "ECE": KNOWN.ece, **TITLED}
    return every_source(results, "cifar10-ood", CPU, questions)


def cifar_published(results: Results) -> str:
    """The highest published figures, then ours."""
    content = tomllib.loads((files("daedl_bench") / "published.toml").read_text("utf-8"))
    theirs = [
        [
            f"{each['name']}, {each['network']} ({each['source']})",
            f"{each['accuracy']:.2f}" if "accuracy" in each else DASH,
            *(each.get(ask.data, {}).get(ask.metric, DASH) for ask in DETECTION),
        ]
        for each in content["figure"]
    ]
    ours = {f"**{head}**": source for head, source in _columns(results, OURS).items()}
    return by_source(results, ours, TITLED, theirs)


def cifar_ready(results: Results) -> str:
    """The ready model, for its card: its own seed alone."""
    auroc = (each for each in DETECTION if each.metric == "auroc")
    own = replace(results, rows=tuple(row for row in results.rows if row.seed == ready.SEED))
    columns = {f"seed {ready.SEED}": Source(ready.PROTOCOL, ready.LABEL)}
    return by_question(own, (KNOWN.accuracy, KNOWN.brier, KNOWN.ece, *auroc, *FAR), columns)


def _columns(results: Results, labels: tuple[str, ...]) -> Mapping[str, Source]:
    return with_seeds(results, {names.method(each): Source(CPU, each) for each in labels})


TABLES = by_name(cifar, cifar_summary, cifar_methods, cifar_published, cifar_ready)
