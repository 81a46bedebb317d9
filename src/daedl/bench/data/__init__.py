"""Images to learn from and to be puzzled by: data sets by name, one's own folders and arrays.

train = data.load("mnist", "train")
train, val = train.parted(48_000, seed=0)
daedl.fit(model, train.batches(64, shuffle=True), val.batches(), density=train.batches())
"""

from daedl.bench.data.arrays import read_npz
from daedl.bench.data.augment import Chain, Crop, Flip, Rotate, augmentation
from daedl.bench.data.batches import Augmentation, Batches
from daedl.bench.data.folder import read_folder, read_images
from daedl.bench.data.images import ImageSet
from daedl.bench.data.load import available, corrupted_sets, load, present
from daedl.bench.data.noise import noise
from daedl.bench.data.root import DataWarning, data_root

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
    "available",
    "corrupted_sets",
    "data_root",
    "load",
    "noise",
    "present",
    "read_folder",
    "read_images",
    "read_npz",
]
