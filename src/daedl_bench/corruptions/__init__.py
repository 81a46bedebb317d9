"""The corruptions of MNIST-C and CIFAR-10-C, to generate the datasets where the files are not available."""

from daedl_bench.corruptions.apply import corrupt, possible, require_images
from daedl_bench.corruptions.families import FAMILIES, Family
from daedl_bench.corruptions.pictures import contact_sheet

__all__ = ["FAMILIES", "Family", "contact_sheet", "corrupt", "possible", "require_images"]
