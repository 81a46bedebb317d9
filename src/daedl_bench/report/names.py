"""Display names of methods, datasets, metrics and protocols."""

from daedl import figures

DATASETS = {
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
    "brier": "Brier score",
    "nll": "NLL",
    "ece": "ECE",
    "aurc": "AURC",
}
SMALLER_IS_BETTER = frozenset({"brier", "ece", "nll", "fpr95", "aurc"})


def method(label: str) -> str:
    """The method's display name."""
    return figures.TITLES.get(label, label)


def dataset(name: str) -> str:
    """The dataset's display name: "cifar10-c/fog/3" is "CIFAR-10-C, fog, severity 3"."""
    family, *rest = name.split("/")
    words = [f"severity {each}" if each.isdigit() else corruption(each) for each in rest]
    return ", ".join([DATASETS.get(family, family), *words])


def corruption(name: str) -> str:
    """The corruption's display name: "gaussian_noise" is "gaussian noise"."""
    return name.replace("_", " ")


def metric(name: str) -> str:
    """The metric's display name with an arrow towards better values."""
    return f"{METRICS.get(name, name)} {'↓' if name in SMALLER_IS_BETTER else '↑'}"


def protocol(name: str, known: str) -> str:
    """The protocol without the name of its dataset: "mnist-quick" is "quick protocol"."""
    return f"{name.removeprefix(f'{known}-')} protocol"


def seeds(count: int) -> str:
    """ "1 seed", "5 seeds"."""
    return f"{count} seed{'' if count == 1 else 's'}"
