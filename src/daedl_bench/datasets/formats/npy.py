"""MNIST-C and CIFAR-10-C as published: one .npy array of images and one of labels."""

from collections.abc import Sequence
from pathlib import Path

from daedl.data.arrays import Array, channels_last, read_npy


def read(paths: Sequence[Path]) -> tuple[Array, Array]:
    """Images (N, H, W, C) and labels (N,), memory-mapped."""
    images_path, labels_path = paths
    return channels_last(read_npy(images_path), images_path), read_npy(labels_path)
