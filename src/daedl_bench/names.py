"""Display names of methods, datasets, metrics and protocols; tables in Markdown; commands."""

from collections.abc import Iterable, Sequence

from daedl import figures, metrics

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
LOWER_IS_BETTER = frozenset(
    name for (_, name), each in metrics.METRICS.items() if each.lower_is_better
)
DASH, NOT_RUN = "–", "not run"


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


def metric(task: str, name: str) -> str:
    """The metric's display name with an arrow towards better values; shift is detected as OOD is."""
    return metrics.title("ood" if task == "shift" else task, name)


def protocol(name: str, known: str) -> str:
    """The protocol without the name of its dataset: "mnist-quick" is "quick protocol"."""
    return f"{name.removeprefix(f'{known}-')} protocol"


def seeds(count: int) -> str:
    """ "1 seed", "5 seeds"."""
    return f"{count} seed{'' if count == 1 else 's'}"


def command(experiment: str, protocol: str, methods: Iterable[str], seeds: str = "0-4") -> str:
    """The command that runs `methods` of an experiment; by default five seeds, as in the paper."""
    chosen = f"--protocol {protocol} --methods {','.join(methods)} --seeds {seeds}"
    return f"python -m daedl_bench run {experiment} {chosen}"


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]], left: int | None = None) -> str:
    """A table in Markdown, with the first `left` columns left-aligned; by default all of them."""
    left = len(head) if left is None else left
    rule = f"|{'---|' * left}{'---:|' * (len(head) - left)}"
    first, *rest = (_line(cells) for cells in (head, *lines))
    return "\n".join([first, rule, *rest])


def _line(cells: Sequence[str]) -> str:
    return (
        "".join(f"| {cell.replace('|', chr(92) + '|')} " if cell else "| " for cell in cells) + "|"
    )
