"""The corruptions of MNIST-C and CIFAR-10-C, to generate the datasets where the files are not available."""

from daedl_bench.corruptions.apply import corrupt, require_images
from daedl_bench.corruptions.corruption import Corruption
from daedl_bench.corruptions.families import CIFAR10_C, FAMILIES, MNIST_C, Family
from daedl_bench.corruptions.page import markdown
from daedl_bench.corruptions.pictures import contact_sheet

__all__ = [
    "CIFAR10_C",
    "FAMILIES",
    "MNIST_C",
    "Corruption",
    "Family",
    "contact_sheet",
    "corrupt",
    "markdown",
    "require_images",
]
