"""Running experiments: each cell is one method with one seed; rows are kept as soon as they exist."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from daedl.bench import figures, moons, rows, tasks
from daedl.bench.data import Batches, ImageSet, augmentation, corrupted_sets
from daedl.bench.rows import Measured, Row
from daedl.bench.spec import (
    Catalogue,
    Experiment,
    Protocol,
    cell_key,
    member_seeds,
    training_key,
)
from daedl.bench.store import Store
from daedl.bench.trained import SILENT, Progress
from daedl.classifier import Classifier
from daedl.members import ensemble
from daedl.methods import Ensemble, Fits, Method
from daedl.networks.headed import side_by_side
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl.storage import write_atomically
from daedl.training import History, fit

Load = Callable[[str, str], ImageSet]
Found = dict[str, list[Measured]]  # by the name of the data set


@dataclass(frozen=True)
class Failure:
    """What failed, where, and why; everything else went on."""

    where: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.where}: {type(self.error).__name__}: {self.error}"


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
        fast(found.network)
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
            network = self.protocol.build()
        fast(network)
        classifier = Classifier(network, self.method.trained_as())
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
            density=batches.plain(),
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
            return side_by_side([outputs for outputs, _ in found]), found[0][1]
        return self._collected(name, lambda: self.load(name, "test"))

    @cached_property
    def _fit(self) -> tuple[torch.nn.Module | None, float]:
        if not self.method.fits:
            return None, 0.0
        if self._members:
            fits, seconds = zip(*(each._fit for each in self._members), strict=True)
            return Fits(fits), sum(seconds)
        if self.method.fitted_to == "training":
            outputs, targets = self._collected("train", lambda: self._parts[1])
        else:
            outputs, targets = self._collected("val", lambda: self._parts[0])
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
            found = {
                name: tasks.ood_detection(inside, self.predict(name)[0], "shift") for name in names
            }
            yield from found.items()
            yield group, tasks.averaged(list(found.values()))


def fast(network: torch.nn.Module) -> None:
    """Lay out the weights so that convolutions on a CPU are about a fifth faster, with the same results."""
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def run(
    catalogue: Catalogue,
    name: str,
    *,
    load: Load,
    store: Store,
    results: Path,
    protocol: str | None = None,
    methods: Sequence[str] | None = None,
    seeds: Iterable[int] = (0,),
    progress: Progress = SILENT,
) -> list[Failure]:
    """Measure what `results` doesn't hold yet; what fails doesn't stop the rest.

    A second identical run costs nothing; one with more unknown sets predicts these alone. A data set
    that can't be had is left out, and known before anything is trained.
    """
    rows.commit()  # that of the code which is running, whatever is committed meanwhile
    experiment = catalogue.experiment(name)
    if experiment.kind == "moons":
        return _run_moons(results, seeds, progress, bool(methods or protocol))
    chosen = experiment.protocol(protocol)
    labels = {label: catalogue.method(label, chosen) for label in methods or experiment.methods}
    held = rows.load(results) if results.exists() else []
    done = _done(held)
    todo = [
        (label, method, seed, missing)
        for seed in dict.fromkeys(seeds)
        for label, method in labels.items()
        if (missing := _missing(experiment, label, cell_key(chosen, method, seed), done))
    ]
    wanted = dict.fromkeys(unit for *_, missing in todo for unit in missing)
    failures = list(_unobtainable(wanted, load))
    for failure in failures:
        progress.starts(f"left out, as it can't be had: {failure.where}")
    lost = {failure.where for failure in failures}
    for label, method, seed, missing in todo:
        units = [unit for unit in missing if unit not in lost]
        if not units:
            continue
        where = f"{label}, seed {seed}"
        progress.starts(f"{experiment.name} · {chosen.name} · {where}")
        cell = Cell(chosen, method, seed, load, store, progress)
        try:
            cell.prepare()
        except Exception as error:
            failures.append(Failure(where, error))
            continue
        # Another run may have measured some of it, while this one waited for its network.
        done = _done(rows.load(results)) if results.exists() else set()
        for unit in units:
            if (cell.key, label, _last(unit)) in done:
                continue
            try:
                rows.append(results, list(measure(experiment, label, cell, unit)))
            except Exception as error:
                failures.append(Failure(f"{where}, {unit}", error))
    return failures


def _done(held: Iterable[Row]) -> set[tuple[str, str, str]]:
    return {(row.spec, row.method, row.data) for row in held}


def _missing(
    experiment: Experiment, label: str, key: str, done: Collection[tuple[str, str, str]]
) -> list[str]:
    """The units of a cell that have no rows yet."""
    return [unit for unit in experiment.units if (key, label, _last(unit)) not in done]


def _run_moons(
    results: Path, seeds: Iterable[int], progress: Progress, restricted: bool
) -> list[Failure]:
    """Rows of all three methods for each seed, and the figure of the first one beside them."""
    if restricted:
        raise ValueError(
            "methods or a protocol were chosen for two moons; expected neither, as it trains three "
            "methods in one way: leave them out"
        )
    held = {(row.spec, row.seed) for row in rows.load(results)} if results.exists() else set()
    spec, failures = moons.Settings().key(), []
    picture = results.with_suffix(".png")
    drawn = picture.exists() and spec in {each for each, _ in held}
    for seed in dict.fromkeys(seeds):
        if (spec, seed) in held and drawn:
            continue
        try:
            found = moons.run(seed, progress=progress)
            if not drawn:  # first, so that rows without a picture tell that it is missing
                write_atomically(picture, figures.png(figures.moons_maps(found)))
                drawn = True
            if (spec, seed) not in held:
                rows.append(results, found.rows())
        except Exception as error:
            failures.append(Failure(f"seed {seed}", error))
    measured = [row for row in rows.load(results) if row.spec == spec] if results.exists() else []
    claims = moons.checks(measured) if measured else {}
    unmet = [claim for claim, holds in claims.items() if not holds]
    return failures + [Failure(claim, ValueError("not borne out by the rows")) for claim in unmet]


def _last(unit: str) -> str:
    """The data set whose rows are the last of `unit`: once they are there, all are."""
    groups = corrupted_sets(unit)
    return list(groups)[-1] if groups else unit


def _unobtainable(units: Iterable[str], load: Load) -> Iterator[Failure]:
    """Those that can't be loaded, each with the reason."""
    for unit in units:
        groups = list(corrupted_sets(unit).values())
        try:
            for name in groups[0] if groups else [unit]:
                load(name, "test")
        except Exception as error:
            yield Failure(unit, error)


def measure(experiment: Experiment, label: str, cell: Cell, unit: str) -> Iterator[Row]:
    """The rows of one unit of an experiment, see `Experiment.units`; `label` names the method."""
    started = time.perf_counter()
    found: Found
    if unit == experiment.test:
        found = {unit: cell.classification(unit)}
    elif unit == experiment.shift:
        found = dict(cell.shift_detection(experiment.test, unit))
    else:
        found = {unit: cell.ood_detection(experiment.test, unit)}
    seconds = time.perf_counter() - started
    for data, all_of_it in found.items():
        for measured in all_of_it:
            yield rows.row(
                measured,
                experiment=experiment.name,
                method=label,
                data=data,
                seed=cell.seed,
                seconds=seconds,
                spec=cell.key,
                protocol=cell.protocol.name,
            )
