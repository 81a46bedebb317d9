"""Names for people to read: of methods, data sets, scores and metrics."""

from daedl import figures

SETS = {
    "mnist": "MNIST",
    "kmnist": "KMNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "mnist-c": "MNIST-C",
    "cifar10-c": "CIFAR-10-C",
    "noise": "uniform noise",
    "noise-grey": "uniform noise",
}
METRICS = {
    "aupr": "AUPR",
    "auroc": "AUROC",
    "fpr95": "FPR95",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "nll": "NLL",
    "ece": "ECE",
    "aurc": "AURC",
}
SMALLER_IS_BETTER = {"brier", "ece", "nll", "fpr95", "aurc"}


def method(label: str) -> str:
    """The method's name."""
    return figures.TITLES.get(label, label)


def data(name: str) -> str:
    """The data set's name; of "cifar10-c/3" with the severity, of "mnist-c/fog" with the corruption."""
    family, *rest = name.split("/")
    first = SETS.get(family, family)
    if not rest:
        return first
    words = [f"severity {each}" if each.isdigit() else corruption(each) for each in rest]
    return ", ".join([first, *words])


def corruption(name: str) -> str:
    """The corruption's name: "gaussian_noise" is "gaussian noise"."""
    return name.replace("_", " ")


def metric(name: str) -> str:
    """The metric's name, with an arrow towards better."""
    return f"{METRICS.get(name, name)} {'↓' if name in SMALLER_IS_BETTER else '↑'}"


def short(protocol: str, known: str) -> str:
    """The protocol's name without that of the known data: "quick" of "mnist-quick"."""
    return protocol.removeprefix(f"{known}-")


def seeds(numbers: set[int]) -> str:
    """Seeds as in "0–4" or "0, 2"; one alone is itself."""
    ordered = sorted(numbers)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}–{ordered[-1]}"
    return ", ".join(map(str, ordered))
