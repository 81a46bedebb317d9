"""Running experiments: each cell is one method with one seed; rows are kept as soon as they exist."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from daedl.bench import rows, tasks
from daedl.bench.data import ImageSet
from daedl.bench.rows import Measured, Row
from daedl.bench.spec import Catalogue, Experiment, cell_key, training_key
from daedl.bench.store import Store
from daedl.bench.trained import SILENT, Progress
from daedl.classifier import Classifier
from daedl.methods import Method
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl.training import History, fit

Load = Callable[[str, str], ImageSet]


@dataclass(frozen=True)
class Failure:
    """A cell that failed, and why; the others went on."""

    method: str
    seed: int
    error: Exception

    def __str__(self) -> str:
        return f"{self.method}, seed {self.seed}: {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True)
class Cell:
    """One method with one seed under the protocol of an experiment.

    Training is seeded and split by `seed`; what was trained or collected before is taken from `store`.
    """

    experiment: Experiment
    label: str
    method: Method
    seed: int
    load: Load
    store: Store
    progress: Progress = SILENT

    @property
    def key(self) -> str:
        """What identifies the cell's figures."""
        return cell_key(self.experiment.protocol, self.method, self.seed)

    @property
    def _training_key(self) -> str:
        return training_key(self.experiment.protocol, self.method, self.seed)

    @cached_property
    def _parts(self) -> tuple[ImageSet, ImageSet]:
        """Validation and training images."""
        protocol = self.experiment.protocol
        return self.load(protocol.data, "train").parted(protocol.validation, self.seed)

    @cached_property
    def _classifier(self) -> Classifier:
        return self.store.classifier(self._training_key, self._train)

    def _train(self) -> tuple[Classifier, History]:
        """Train as the method that shares its training does, without what comes after."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = self.experiment.protocol.build()
        # Convolutions on a CPU are a fifth faster so, with the same results.
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        classifier = Classifier(network, self.method.trained_as())
        options = dict(self.experiment.protocol.training)
        val, train = self._parts
        size = options.pop("batch_size")
        history = fit(
            classifier,
            train.batches(size, shuffle=True, seed=self.seed),
            val.batches(size),
            seed=self.seed,
            checkpoint=self.store.checkpoint(self._training_key),
            resume=True,
            accelerator="cpu",
            progress=self.progress.show,
            **options,
        )
        return classifier, history

    def _outputs(self, name: str, images: Callable[[], ImageSet]) -> tuple[Outputs, Tensor]:
        def collect() -> tuple[Outputs, Tensor]:
            return self._classifier.collect(images().batches(), name)

        return self.store.outputs(self._training_key, name, collect)

    def _predict(self, name: str, fitted: torch.nn.Module | None) -> tuple[Prediction, Tensor]:
        outputs, targets = self._outputs(name, lambda: self.load(name, "test"))
        return self.method.predict(outputs, fitted), targets

    def measure(self, wanted: Collection[str]) -> list[Row]:
        """Train or take from the cache, predict, and ask the questions about the sets `wanted`."""
        started = time.perf_counter()
        fitted = None
        if self.method.fits:
            fitted = self.method.fit(*self._outputs("train", lambda: self._parts[1]))
        experiment = self.experiment
        inside, targets = self._predict(experiment.test, fitted)
        found = {}
        if experiment.test in wanted:
            found[experiment.test] = tasks.classification(inside, targets)
        for name in (each for each in experiment.ood if each in wanted):
            found[name] = tasks.ood_detection(inside, self._predict(name, fitted)[0])
        seconds = time.perf_counter() - started
        return [self._row(each, data, seconds) for data, all_ in found.items() for each in all_]

    def _row(self, measured: Measured, data: str, seconds: float) -> Row:
        return rows.row(
            measured,
            experiment=self.experiment.name,
            method=self.label,
            data=data,
            seed=self.seed,
            seconds=seconds,
            spec=self.key,
        )


def run(
    catalogue: Catalogue,
    name: str,
    *,
    load: Load,
    store: Store,
    results: Path,
    methods: Sequence[str] | None = None,
    seeds: Iterable[int] = (0,),
    progress: Progress = SILENT,
) -> list[Failure]:
    """Measure every cell whose rows `results` doesn't hold yet; a failed one doesn't stop the others.

    A second identical run costs nothing; one with more unknown sets predicts these alone.
    """
    experiment = catalogue.experiment(name)
    held = rows.load(results) if results.exists() else []
    done = {(row.spec, row.method, row.data) for row in held}
    failures = []
    for seed in seeds:
        for label in methods or experiment.methods:
            method = catalogue.method(label)
            cell = Cell(experiment, label, method, seed, load, store, progress)
            missing = [
                data
                for data in (experiment.test, *experiment.ood)
                if (cell.key, label, data) not in done
            ]
            if not missing:
                continue
            progress.starts(f"{experiment.name} · {label} · seed {seed}")
            try:
                rows.append(results, cell.measure(missing))
            except Exception as error:
                failures.append(Failure(label, seed, error))
    return failures
