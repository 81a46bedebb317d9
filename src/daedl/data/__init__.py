"""Image datasets, augmentation and batches."""

from daedl.checks import DataWarning
from daedl.data.arrays import read_npz
from daedl.data.augment import Chain, Crop, Flip, Rotate, augmentation
from daedl.data.batches import Augmentation, Batches
from daedl.data.folder import read_folder, read_images
from daedl.data.images import ImageSet

__all__ = [
    "Augmentation",
    "Batches",
    "Chain",
    "Crop",
    "DataWarning",
    "Flip",
    "ImageSet",
    "Rotate",
    "augmentation",
    "read_folder",
    "read_images",
    "read_npz",
]
