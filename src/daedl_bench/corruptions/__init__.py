"""The corruptions of MNIST-C and CIFAR-10-C, to generate the datasets where the files are not available."""

from daedl_bench.corruptions.apply import corrupt, require_images
from daedl_bench.corruptions.families import FAMILIES, Family
from daedl_bench.corruptions.pictures import contact_sheet
from daedl_bench.corruptions.weather import stands_in

__all__ = ["FAMILIES", "Family", "contact_sheet", "corrupt", "require_images", "stands_in"]
