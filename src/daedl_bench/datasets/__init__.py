"""Published image datasets by name: MNIST, CIFAR-10, SVHN, their corruptions, noise."""

from daedl_bench.datasets.load import NOISES, available, corrupted_sets, load, present
from daedl_bench.datasets.noise import noise
from daedl_bench.datasets.root import data_root
from daedl_bench.datasets.sources import sources

__all__ = [
    "NOISES",
    "available",
    "corrupted_sets",
    "data_root",
    "load",
    "noise",
    "present",
    "sources",
]
