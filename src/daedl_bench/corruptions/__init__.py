"""The corruptions of MNIST-C and CIFAR-10-C, to be made where the published files are missing."""

from daedl_bench.corruptions.apply import corrupt
from daedl_bench.corruptions.files import generate
from daedl_bench.corruptions.page import markdown
from daedl_bench.corruptions.pictures import contact_sheet
from daedl_bench.corruptions.table import (
    CIFAR10_C,
    FAMILIES,
    MNIST_C,
    Corruption,
    Family,
)

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
