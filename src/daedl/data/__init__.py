"""Datasets of images and texts, augmentation and batches."""

from daedl.checks import DataWarning
from daedl.data.arrays import read_npz
from daedl.data.augment import Chain, Crop, Flip, Rotate, augmentation
from daedl.data.batches import Augmentation, Batch, Batches
from daedl.data.folder import read_folder, read_images
from daedl.data.images import ImageSet
from daedl.data.kind import InputKind
from daedl.data.labelled import Labelled
from daedl.data.preprocess import Preprocess
from daedl.data.texts import TextPreprocess, TextSet, read_text_set

__all__ = [
    "Augmentation",
    "Batch",
    "Batches",
    "Chain",
    "Crop",
    "DataWarning",
    "Flip",
    "ImageSet",
    "InputKind",
    "Labelled",
    "Preprocess",
    "Rotate",
    "TextPreprocess",
    "TextSet",
    "augmentation",
    "read_folder",
    "read_images",
    "read_npz",
    "read_text_set",
]
