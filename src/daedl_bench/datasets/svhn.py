"""SVHN as published: MATLAB files with cropped digits."""

import struct
import zlib
from pathlib import Path

import numpy as np

from daedl.data.arrays import Pair, tensors
from daedl_bench.datasets.matlab import read_mat


def read(path: Path) -> Pair:
    """Images (N, 3, 32, 32), uint8, and labels (N,), int64.

    The file holds `X` (32, 32, 3, N) and `y` (N, 1), where 10 stands for the digit 0.
    """
    try:
        content = read_mat(path)
    except (ValueError, struct.error, zlib.error) as error:
        raise ValueError(
            f"{path} is damaged, or no MATLAB file that can be read ({error}); expected SVHN's cropped "
            "digits: copy or download it again"
        ) from error
    if "X" not in content or "y" not in content or content["X"].ndim != 4:
        raise ValueError(
            f"{path} lacks X (32, 32, 3, N) or y (N, 1); expected SVHN's cropped digits (format 2): "
            "download train_32x32.mat or test_32x32.mat"
        )
    images, labels = content["X"].transpose(3, 0, 1, 2), content["y"]
    if labels.dtype.kind in "iu" and labels.size and (labels.min() < 1 or labels.max() > 10):
        raise ValueError(
            f"labels in {path} range from {labels.min()} to {labels.max()}; expected 1 to 10, with 10 "
            "for the digit 0: look for the labels of another set"
        )
    return tensors(images, np.where(labels == 10, 0, labels), path, path)
