"""Tables of CIFAR-10 in the documentation, from rows."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from daedl_bench import names
from daedl_bench.names import markdown
from daedl_bench.studies._tables import (
    Question,
    Source,
    by_question,
    number_of_seeds,
    with_seeds,
)
from daedl_bench.summary import Results

CPU, KNOWN = "cifar10-cpu", "cifar10"
ACCURACY = Question("accuracy", KNOWN, "classification", "accuracy", ("labels",))
MISCLASSIFICATION = Question(
    "misclassification AUPR, aleatoric", KNOWN, "misclassification", "aupr", ("aleatoric",)
)
BRIER = Question("Brier score (lower is better)", KNOWN, "classification", "brier", ("probs",))
ECE = Question("calibration error ECE (lower is better)", KNOWN, "calibration", "ece", ("probs",))
DETECTION = tuple(
    Question(f"{title}: {metric.upper()}", data, "ood", metric)
    for data, title in {"svhn": "SVHN", "cifar100": "CIFAR-100"}.items()
    for metric in ("aupr", "auroc")
)
FAR = tuple(
    Question(f"{names.dataset(data)}: AUROC", data, "ood", "auroc")
    for data in ("mnist", "fashion-mnist", "kmnist", "noise")
)
SHIFT = tuple(
    Question(f"CIFAR-10-C, severity {severity}: AUPR", f"cifar10-c/{severity}", "shift", "aupr")
    for severity in range(1, 6)
)
OURS = ("daedl", "daedl-depths", "daedl-diagonal", "softmax", "retrofit-depths")


def cifar(results: Results) -> str:
    """DAEDL in the paper's variant and with densities on all depths, and softmax with and without these."""
    questions = (ACCURACY, MISCLASSIFICATION, BRIER, ECE, *DETECTION, *FAR, *SHIFT)
    return by_question(results, questions, _columns(results, OURS), published=KNOWN)


def cifar_summary(results: Results) -> str:
    """Accuracy and detection, for the README."""
    chosen = _columns(results, ("daedl", "daedl-depths", "softmax", "retrofit-depths"))
    return by_question(results, (ACCURACY, *DETECTION), chosen, published=KNOWN)


def cifar_methods(results: Results) -> str:
    """Every method with rows, one line each."""
    questions = (ACCURACY, ECE, *DETECTION)
    lines = [
        [
            names.method(label),
            str(seeds),
            *(each.text(results, Source(CPU, label)) for each in questions),
        ]
        for label in results.catalogue.experiment("cifar10-ood").methods
        if (seeds := number_of_seeds(results, Source(CPU, label)))
    ]
    heads = ["", "seeds", "accuracy", "ECE", *(each.title for each in DETECTION)]
    return markdown(heads, lines)


def cifar_ready(results: Results) -> str:
    """The ready model, for its card."""
    auroc = tuple(each for each in DETECTION if each.metric == "auroc")
    columns = _columns(results, ("daedl-diagonal",))
    return by_question(results, (ACCURACY, BRIER, ECE, *auroc, *FAR), columns)


def _columns(results: Results, labels: tuple[str, ...]) -> Mapping[str, Source]:
    return with_seeds(results, {names.method(each): Source(CPU, each) for each in labels})


TABLES: Mapping[str, Callable[[Results], str]] = MappingProxyType(
    {
        each.__name__.replace("_", "-"): each
        for each in (cifar, cifar_summary, cifar_methods, cifar_ready)
    }
)
