"""The nine UCI sets with the official splits on which the literature compares."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

# In the order in which they are measured, small sets first, with the names of the folders.
SETS = {
    "yacht": "yacht",
    "boston": "bostonHousing",
    "energy": "energy",
    "concrete": "concrete",
    "wine": "wine-quality-red",
    "kin8nm": "kin8nm",
    "power": "power-plant",
    "naval": "naval-propulsion-plant",
    "protein": "protein-tertiary-structure",
}
LEFT_OUT = 0.1  # of the samples, with the largest first principal component


@dataclass(frozen=True)
class Part:
    """Features (N, F) and targets (N,), float64."""

    features: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, rows: Tensor) -> "Part":
        return Part(self.features[rows], self.targets[rows])

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        """The two tensors, as `daedl.fit` takes them."""
        return self.features, self.targets


def folder(root: Path, name: str) -> Path:
    """Where the set `name` is stored."""
    path = root / "uci" / SETS[name]
    if not (path / "data.txt").exists():
        raise FileNotFoundError(
            f"{path / 'data.txt'} does not exist; expected the UCI sets with their official splits: set "
            "DAEDL_DATA to the folder that contains uci/"
        )
    return path


def num_splits(root: Path, name: str) -> int:
    """Number of official splits: 20, for protein 5."""
    return len(list(folder(root, name).glob("index_train_*.txt")))


def split(root: Path, name: str, number: int) -> tuple[Part, Part]:
    """Training and test part of an official split."""
    path = folder(root, name)
    rows = np.loadtxt(path / "data.txt")
    features = np.loadtxt(path / "index_features.txt").astype(int)
    target = int(np.loadtxt(path / "index_target.txt"))
    whole = Part(torch.tensor(rows[:, features]), torch.tensor(rows[:, target]))
    indices = (np.loadtxt(path / f"index_{part}_{number}.txt") for part in ("train", "test"))
    train, test = (whole[torch.tensor(each.astype(int))] for each in indices)
    return train, test


def validation(train: Part, seed: int, share: float = 0.2) -> tuple[Part, Part]:
    """A random part of the training part without and with `share` of the samples."""
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    held_out = int(share * len(train))
    return train[order[held_out:]], train[order[:held_out]]


def extrapolation(train: Part, test: Part) -> tuple[Part, Part]:
    """The split's samples without, and with, the largest first principal component of the features.

    Both parts of the split are joined; the component is that of standardised features.
    """
    whole = Part(
        torch.cat((train.features, test.features)), torch.cat((train.targets, test.targets))
    )
    centred = whole.features - whole.features.mean(0)
    standardised = centred / centred.std(0).clamp_min(1e-12)
    component = torch.linalg.svd(standardised, full_matrices=False).Vh[0]
    # Signs of singular vectors are arbitrary: the largest weight is positive.
    component = component * component[component.abs().argmax()].sign()
    order = (standardised @ component).argsort()
    left_out = int(LEFT_OUT * len(whole))
    return whole[order[:-left_out]], whole[order[-left_out:]]


def alike(train: Part, other: Tensor) -> Tensor:
    """Features of another set, scaled like those of `train`; columns are repeated or left out."""
    columns = torch.arange(train.features.shape[1]) % other.shape[1]
    chosen = other[:, columns]
    chosen = (chosen - chosen.mean(0)) / chosen.std(0).clamp_min(1e-12)
    return chosen * train.features.std(0) + train.features.mean(0)


def noise(train: Part, number: int, seed: int) -> Tensor:
    """Uniform noise over three times the range of the training features."""
    generator = torch.Generator().manual_seed(seed)
    low, high = train.features.min(0).values, train.features.max(0).values
    unit = torch.rand(number, train.features.shape[1], generator=generator, dtype=torch.float64)
    return low - (high - low) + 3 * (high - low) * unit
