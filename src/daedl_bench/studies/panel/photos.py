"""Image cases: folders of CIFAR-10 photos with the commands, and MNIST under the `brief` protocol."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from daedl import methods
from daedl.cli.images import load_model, read_known, read_unknown
from daedl.data import ImageSet
from daedl.data.loaders import Data
from daedl.training.feature_cache import FeatureCache
from daedl.training.frozen import features_of, head_of
from daedl_bench import datasets, options
from daedl_bench.datasets.noise import noise
from daedl_bench.spec import Trial, catalogue
from daedl_bench.studies.panel.case import Case, Sets, Train, Trained

# Images per class, as in a small collection of photos (chosen).
TRAIN, HELD_OUT, TEST = 600, 200, 150
UNKNOWN = 300  # images per OOD set (chosen, so that a pass through a backbone takes seconds)
BACKBONE = "efficientnet-lite0"
FOUR = ("airplane", "automobile", "cat", "ship")  # as in the README
KNOWN = ("train", "held_out", "test")
NEAR, FAR = ("near",), ("noise", "flat", "inverted", "coloured-digits")


@dataclass(frozen=True)
class Photos:
    """Folders of PNG files: train, held_out and test with one subfolder per class, and the OOD sets."""

    folder: Path
    seed: int
    backbone: bool

    def train(self, method: str, **settings: Any) -> Trained:
        """`daedl train` with a method and a seed, and no settings but backbone and those of the method."""
        data, backbone = self.folder / "train", self._backbone() if self.backbone else ()
        chosen = [part for k, v in settings.items() for part in ("--set", f"{k}={json.dumps(v)}")]
        with TemporaryDirectory() as place:
            path = Path(place) / "model.daedl"
            seconds = _train(
                data, path, "--method", method, "--seed", str(self.seed), *backbone, *chosen
            )
            model = load_model(path)
        store = FeatureCache(self.features, model) if self.backbone else None

        def read(name: str) -> Data:
            known = name in KNOWN
            images = (read_known if known else read_unknown)(str(self.folder / name), model)
            # Every image passes through the backbone once, whatever the number of methods and seeds.
            return images if store is None else features_of(model, images, store, name)

        train, held_out, test = map(read, KNOWN)
        near, far = ({name: read(name) for name in names} for names in (NEAR, FAR))
        classifier = head_of(model) if self.backbone else model
        return Trained(classifier, seconds, Sets(train, held_out, test, near, far))

    @property
    def features(self) -> Path:
        """Folder of cached features of the backbone."""
        return self.folder / "features"

    def _backbone(self) -> tuple[str, ...]:
        """Options of the backbone; its features are computed here, so that no method is charged for them."""
        options, cache = ("--backbone", BACKBONE), self.features
        if not cache.exists():
            unfinished = cache.with_name("features.unfinished")
            with TemporaryDirectory() as place:
                first = (*options, "--cache", str(unfinished), "--epochs", "1")
                _train(self.folder / "train", Path(place) / "model.daedl", *first)
            unfinished.rename(cache)
        return (*options, "--cache", str(cache))


def _train(data: Path, out: Path, *arguments: str) -> float:
    """CPU seconds of the command."""
    command = [sys.executable, "-m", "daedl", "train", "--data", str(data), "--out", str(out)]
    one_core = {**os.environ, "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(
        [*command, "--threads", "1", *arguments],
        env=one_core,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {run.stderr.strip() or run.stdout}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def photos(classes: Sequence[str], backbone: bool, seed: int, data: Path | None) -> Train:
    """Photos of these classes of CIFAR-10, or of all if none are named, written once below the data root."""
    root = datasets.data_root(data)
    folder = root / "cache" / "-".join(("panel-photos", *classes))
    if not folder.exists():
        # A folder is complete or absent: it is renamed at the end.
        partial_folder = folder.with_name(f"{folder.name}.{os.getpid()}")
        shutil.rmtree(partial_folder, ignore_errors=True)
        write_photos(partial_folder, classes, root)
        partial_folder.rename(folder)
    return Photos(folder, seed, backbone).train


def write_photos(folder: Path, classes: Sequence[str], root: Path) -> None:
    """Write all sets; the near OOD set is the other classes of CIFAR-10, or CIFAR-100 if there are none."""
    train, test = (
        datasets.load("cifar10", each, root, download=False) for each in ("train", "test")
    )
    names = test.class_names or ()
    numbers = torch.tensor([names.index(name) for name in classes or names])
    for number in numbers.tolist():
        name, images = names[number], train.images[train.labels == number]
        _write(folder / "train" / name, images[:TRAIN])
        _write(folder / "held_out" / name, images[TRAIN : TRAIN + HELD_OUT])
        _write(folder / "test" / name, test.images[test.labels == number][:TEST])
    known = torch.isin(test.labels, numbers)
    others = test.images[~known]
    if not len(others):
        others = datasets.load("cifar100", "test", root, download=False).images
    _write(folder / "near", others[:UNKNOWN])
    digits = datasets.load("mnist", "test", root, download=False).converted(1, test.shape[1])
    far = {**far_images(test.images[known]), "coloured-digits": coloured(digits.images)}
    for name, images in far.items():
        _write(folder / name, images)


def far_images(test: Tensor) -> dict[str, Tensor]:
    """Far OOD images like `test` (N, C, H, W): noise, images of one colour, inverted test images."""
    _, channels, height, width = test.shape
    colours = torch.randint(256, (UNKNOWN, channels, 1, 1), generator=_generator())
    return {
        "noise": noise((channels, height, width), UNKNOWN).images,
        "flat": colours.expand(-1, -1, height, width).byte(),
        "inverted": 255 - test[:UNKNOWN],
    }


def coloured(digits: Tensor) -> Tensor:
    """Digits (N, 1, H, W) in one random colour on another, (N, 3, H, W)."""
    ink, paper = torch.randint(256, (2, UNKNOWN, 3, 1, 1), generator=_generator())
    strokes = digits[:UNKNOWN].float() / 255
    images: Tensor = strokes * ink + (1 - strokes) * paper
    return images.round().byte()


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _write(folder: Path, images: Tensor) -> None:
    folder.mkdir(parents=True)
    for number, image in enumerate(images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number:04}.png")


def mnist(seed: int, data: Path | None) -> Train:
    """MNIST under the `brief` protocol, whose networks come from the cache of the experiments."""
    space, protocol = options.workspace(data, None), catalogue().protocols["mnist-brief"]

    test = space.load("mnist", "test")
    near = {"kmnist": unlabelled("kmnist", space.load("kmnist", "test").images)}
    far = {"fashion-mnist": space.load("fashion-mnist", "test").images, **far_images(test.images)}

    def train(method: str, **settings: Any) -> Trained:
        predictor = space.prepare(Trial(protocol, methods.build(method, **settings), seed))
        held_out, known = space.split(predictor.trial)
        outside = {name: unlabelled(name, images) for name, images in far.items()}
        seconds = sum(each.value for each in predictor.costs() if each.metric == "seconds")
        return Trained(predictor.classifier, seconds, Sets(known, held_out, test, near, outside))

    return train


def unlabelled(name: str, images: Tensor) -> ImageSet:
    """Images as an OOD set."""
    return ImageSet(images, torch.zeros(len(images), dtype=torch.long), name, "test")


CASES: Mapping[str, Case] = {
    "photos-4-backbone": Case("photos, 4 classes, backbone", partial(photos, FOUR, True)),
    "photos-10-backbone": Case("photos, 10 classes, backbone", partial(photos, (), True)),
    "photos-4": Case("photos, 4 classes, from scratch", partial(photos, FOUR, False)),
    "photos-10": Case("photos, 10 classes, from scratch", partial(photos, (), False)),
    "mnist": Case("MNIST, `brief`", mnist),
}
