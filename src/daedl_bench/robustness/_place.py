"""Shared by the parts of the campaign: a folder, a scale, small images and a model of them."""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import daedl
from daedl.methods import Method
from daedl.networks import ConvNet

SIZE, CLASSES = 8, 3


class Figure(NamedTuple):
    """A measured value, which must be at most `limit` if there is one."""

    name: str
    value: float
    limit: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Place:
    """A folder for the files of a part, and the share of the campaign to run."""

    folder: Path
    scale: float = 1.0

    def count(self, number: int) -> int:
        """`number`, scaled; at least 2."""
        return max(2, round(self.scale * number))

    def draw(self) -> Random:
        """A source of random numbers."""
        return Random(0)

    def model(self, method: str | Method = "daedl", hidden: tuple[int, ...] = (16,)) -> Path:
        """The file of a fitted and calibrated model of `stripes`."""
        torch.manual_seed(0)
        network = ConvNet(1, CLASSES, SIZE, channels=4, hidden=hidden)
        classifier = daedl.Classifier(network, method)
        classifier.fit_post_hoc(stripes(120)).calibrate(stripes(90, seed=1))
        path = self.folder / "model.daedl"
        classifier.eval().save(path)
        return path

    def archive(self, number: int = 120) -> Path:
        """A .npz file with `stripes`."""
        images, labels = stripes(number)
        path = self.folder / "images.npz"
        np.savez(path, images=images[:, 0].numpy(), labels=labels.numpy())
        return path


def stripes(number: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noisy images (N, 1, 8, 8), uint8, with a bright stripe whose position is the class, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % CLASSES
    images = torch.randint(0, 60, (number, 1, SIZE, SIZE), generator=generator)
    for label in range(CLASSES):
        images[labels == label, :, 2 * label : 2 * label + 3] += 180
    return images.to(torch.uint8), labels
