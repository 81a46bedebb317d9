"""A cell of an experiment: one method with one seed, trained, fitted and asked."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from daedl import evaluate as tasks
from daedl.classifier import Classifier
from daedl.data import Batches, ImageSet, augmentation
from daedl.demo.training import SILENT, Progress
from daedl.members import ensemble
from daedl.methods import Ensemble, FittedMembers, Method
from daedl.networks import lay_out
from daedl.networks.headed import stack_outputs
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl.training import History, fit
from daedl_bench import rows
from daedl_bench.datasets import corrupted_sets
from daedl_bench.rows import Measured, Row
from daedl_bench.spec import Protocol, cell_key, member_seeds, training_key
from daedl_bench.store import Store

Load = Callable[[str, str], ImageSet]


@dataclass(frozen=True)
class Cell:
    """One method with one seed under a protocol.

    Training is seeded and split by `seed`; what was trained or collected before is taken from `store`.
    An ensemble is made of cells of its own: the networks that its members have been trained to alone.
    """

    protocol: Protocol
    method: Method
    seed: int
    load: Load
    store: Store
    progress: Progress = SILENT

    @property
    def key(self) -> str:
        """What identifies the cell's figures."""
        return cell_key(self.protocol, self.method, self.seed)

    @property
    def _training_key(self) -> str:
        return training_key(self.protocol, self.method, self.seed)

    @cached_property
    def _members(self) -> "list[Cell]":
        """Of an ensemble, one cell each."""
        if not isinstance(self.method, Ensemble):
            return []
        seeds = member_seeds(self.method, self.seed)
        return [replace(self, method=self.method.member, seed=seed) for seed in seeds]

    @cached_property
    def _parts(self) -> tuple[ImageSet, ImageSet]:
        """Validation and training images."""
        train, val = self.protocol.split
        images = self.load(self.protocol.data, "train")
        if len(images) != train + val:
            raise ValueError(
                f"{self.protocol.data} has {len(images)} training images; expected {train + val}, which "
                f"protocol {self.protocol.name} splits into {train} and {val}: look at the data's files"
            )
        return images.parted(val, self.seed)

    @cached_property
    def _input_shape(self) -> tuple[int, ...]:
        return self.protocol.build().input_shape

    def _batches(self, images: ImageSet, size: int = 256) -> Batches:
        """Images in order, of the shape and the range that the network is trained on."""
        channels, side, _ = self._input_shape
        fitting = images.converted(channels, side)
        return fitting.batches(size, mean=self.protocol.mean, std=self.protocol.std)

    @cached_property
    def classifier(self) -> Classifier:
        """The trained classifier, before anything is fitted to its features."""
        if self._members:
            return ensemble([each.classifier for each in self._members])
        found = self.store.classifier(self._training_key, self._train)
        lay_out(found.network)
        return found

    @property
    def trained(self) -> bool:
        """Whether the network is in the store."""
        if self._members:
            return all(each.trained for each in self._members)
        return self.store.has(self._training_key)

    @property
    def history(self) -> History:
        """How training went; of an ensemble, one member after the other."""
        if self._members:
            epochs = [epoch for each in self._members for epoch in each.history.epochs]
            return History(tuple(epochs), len(epochs) - 1, stopped_early=False)
        self.classifier  # noqa: B018 (it trains)
        return self.store.history(self._training_key)

    def _train(self) -> tuple[Classifier, History]:
        """Train as the method that shares its training does, without what comes after."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            # The method draws weights too, where it puts a head behind the network.
            classifier = Classifier(self.protocol.build(), self.method.training_method())
        options = self.protocol.training_of(self.method)
        size = options.pop("batch_size")
        val, train = self._parts
        batches = train.batches(
            size,
            shuffle=True,
            seed=self.seed,
            mean=self.protocol.mean,
            std=self.protocol.std,
            augment=augmentation(self.protocol.augment),
        )
        history = fit(
            classifier,
            batches,
            self._batches(val, size),
            fit_data=batches.plain(),
            seed=self.seed,
            checkpoint=self.store.checkpoint(self._training_key),
            resume=True,
            accelerator="cpu",
            progress=self.progress.show,
            **options,
        )
        return classifier, history

    def _collected(self, name: str, images: Callable[[], ImageSet]) -> tuple[Outputs, Tensor]:
        def collect() -> tuple[Outputs, Tensor]:
            return self.classifier.collect(self._batches(images()), name)

        return self.store.outputs(self._training_key, name, collect)

    def outputs(self, name: str) -> tuple[Outputs, Tensor]:
        """The network's outputs for the test images of the data set `name`, and their labels (N,)."""
        if self._members:
            found = [each.outputs(name) for each in self._members]
            return stack_outputs([outputs for outputs, _ in found]), found[0][1]
        return self._collected(name, lambda: self._asked(name))

    def _asked(self, name: str) -> ImageSet:
        """The test images of the data set `name`."""
        images = self.load(name, "test")
        if name != self.protocol.data and images.num_classes > self.classifier.network.num_classes:
            # An unknown set, as CIFAR-100 is for CIFAR-10: its labels mean nothing to the network.
            return replace(images, labels=torch.zeros_like(images.labels), class_names=None)
        return images

    @property
    def _validation(self) -> tuple[Outputs, Tensor]:
        return self._collected("val", lambda: self._parts[0])

    @cached_property
    def _fit(self) -> tuple[torch.nn.Module | None, float]:
        if not self.method.needs_fit:
            return None, 0.0
        if self._members:
            fits, seconds = zip(*(each._fit for each in self._members), strict=True)
            return FittedMembers(fits), sum(seconds)
        if self.method.fit_split == "training":
            outputs, targets = self._collected("train", lambda: self._parts[1])
        else:
            outputs, targets = self._validation
        started = time.perf_counter()
        return self.method.fit(outputs, targets), time.perf_counter() - started

    @property
    def fitted(self) -> torch.nn.Module | None:
        """What the method fits to the outputs of the training or validation images, or None."""
        return self._fit[0]

    def prepare(self) -> None:
        """Train and fit, or see that it was done."""
        self.classifier, self.fitted  # noqa: B018 (they are made when first asked for)

    def predict(self, name: str) -> tuple[Prediction, Tensor]:
        """Predictions for the test images of the data set `name`, and their labels (N,)."""
        outputs, targets = self.outputs(name)
        return self.method.predict(outputs, self.fitted), targets

    def validated(self) -> tuple[Prediction, Tensor]:
        """Predictions for the validation images, and their labels (N,)."""
        outputs, targets = self._validation
        return self.method.predict(outputs, self.fitted), targets

    def row(
        self, measured: Measured, *, experiment: str, label: str, data: str, seconds: float = 0.0
    ) -> Row:
        """A figure of this cell as a row; `label` names the method."""
        return rows.row(
            measured,
            experiment=experiment,
            method=label,
            data=data,
            seed=self.seed,
            seconds=seconds,
            spec=self.key,
            protocol=self.protocol.name,
        )

    def classification(self, name: str) -> list[Measured]:
        """How good predictions for the test set `name` are, and what they cost."""
        epochs = self.history.epochs
        return [
            *tasks.classification(*self.predict(name)),
            Measured("cost", "training", "seconds", sum(each.seconds for each in epochs)),
            Measured("cost", "training", "epochs", len(epochs)),
            Measured("cost", "fit", "seconds", self._fit[1]),
        ]

    def ood_detection(self, test: str, other: str) -> list[Measured]:
        """How well test images of `test` are told from those of `other`."""
        return tasks.ood_detection(self.predict(test)[0], self.predict(other)[0])

    def shift_detection(self, test: str, family: str) -> Iterator[tuple[str, list[Measured]]]:
        """How well they are told from their corruptions: each, and the mean over those of a severity."""
        inside, _ = self.predict(test)
        for group, names in corrupted_sets(family).items():
            found = []
            for name in names:
                found.append(tasks.ood_detection(inside, self.predict(name)[0], "shift"))
                yield name, found[-1]
            yield group, tasks.averaged(found)
