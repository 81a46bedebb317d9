"""The corruptions of MNIST-C and CIFAR-10-C, to be made where the published files are missing."""

from daedl.bench.corruptions.apply import corrupt
from daedl.bench.corruptions.files import generate
from daedl.bench.corruptions.page import markdown
from daedl.bench.corruptions.pictures import contact_sheet
from daedl.bench.corruptions.table import CIFAR10_C, FAMILIES, MNIST_C, Corruption, Family

__all__ = [
    "CIFAR10_C",
    "FAMILIES",
    "MNIST_C",
    "Corruption",
    "Family",
    "contact_sheet",
    "corrupt",
    "generate",
    "markdown",
]
