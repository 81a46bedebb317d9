"""Image datasets, augmentation and batches."""

from daedl.checks import DataWarning
from daedl.data.arrays import read_npz
from daedl.data.augment import Chain, Crop, Flip, Rotate, augmentation
from daedl.data.batches import Augmentation, Batch, Batches
from daedl.data.folder import read_folder, read_images
from daedl.data.images import ImageSet
from daedl.data.preprocess import Preprocess

__all__ = [
    "Augmentation",
    "Batch",
    "Batches",
    "Chain",
    "Crop",
    "DataWarning",
    "Flip",
    "ImageSet",
    "Preprocess",
    "Rotate",
    "augmentation",
    "read_folder",
    "read_images",
    "read_npz",
]
