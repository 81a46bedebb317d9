"""Published image datasets by name: MNIST, CIFAR-10, SVHN, their corruptions, noise."""

from daedl_bench.datasets.files import data_root
from daedl_bench.datasets.generate import generate
from daedl_bench.datasets.load import corrupted_sets, load, present
from daedl_bench.datasets.noise import NOISES, noise
from daedl_bench.datasets.sources import sources

__all__ = [
    "NOISES",
    "corrupted_sets",
    "data_root",
    "generate",
    "load",
    "noise",
    "present",
    "sources",
]
