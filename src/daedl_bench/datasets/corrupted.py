"""MNIST-C and CIFAR-10-C in the published layout: .npy arrays, one folder or file for each corruption."""

import json
from pathlib import Path

from daedl.data.arrays import Pair, channels_last, read_npy, tensors

SEVERITIES = 5
# Beside the corruptions: which of them `daedl data corrupt` made, from which images and seed.
RECORD = "generated.json"


def was_made(home: Path, name: str) -> bool:
    """Whether the record in the folder of a set says that the corruption `name` was made, not published."""
    try:
        return name in json.loads((home / RECORD).read_text("utf-8"))["names"]
    except (OSError, ValueError, KeyError, TypeError):
        return False  # no record, or a damaged one, of which `daedl data corrupt` tells


def read(images_path: Path, labels_path: Path, severity: int | None = None) -> Pair:
    """Images (N, C, H, W), uint8, and labels (N,), int64, from (N, H, W, C) and (N,).

    With `severity` from 1 to 5 only that fifth of the file, in which the severities follow each other
    (CIFAR-10-C).
    """
    images, labels = read_npy(images_path), read_npy(labels_path)
    if severity is not None:
        if images.ndim == 0 or len(images) % SEVERITIES or labels.shape != (len(images),):
            raise ValueError(
                f"{images_path} has shape {images.shape} and {labels_path} {labels.shape}; expected "
                "five severities of equal size one after the other, with a label for each image: "
                "download or generate both again"
            )
        fifth = len(images) // SEVERITIES
        part = slice((severity - 1) * fifth, severity * fifth)
        images, labels = images[part], labels[part]
    return tensors(channels_last(images, images_path), labels, images_path, labels_path)
