"""Runs experiments: one trial per method and seed; rows are written as soon as they are computed."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from daedl import evaluate
from daedl.engines import LOCAL, connect
from daedl.evaluate import Measured
from daedl.prediction import Prediction
from daedl_bench import estimate, results
from daedl_bench.datasets import corrupted_sets
from daedl_bench.failures import Failure, Failures
from daedl_bench.results import Row
from daedl_bench.spec import Catalogue, Experiment, Trial
from daedl_bench.workspace import Load, Predictor, Workspace

Done = Collection[tuple[str, str, str]]  # key, label and dataset of rows that exist


class Job(NamedTuple):
    """A trial, and the units of the experiment without rows; none if only its network is wanted."""

    label: str
    trial: Trial
    units: list[str]

    def __str__(self) -> str:
        return f"{self.label}, seed {self.trial.seed}"


def run(
    catalogue: Catalogue,
    name: str,
    workspace: Workspace,
    path: Path,
    *,
    protocol: str | None = None,
    methods: Sequence[str] | None = None,
    seeds: Iterable[int] = (0,),
    networks: bool = False,
    budget: float | None = None,
    engine: str = LOCAL,
    workers: int | None = None,
) -> list[Failure]:
    """Measure the rows of an experiment that are missing in the file `path`; a failure doesn't stop the rest.

    A repeated run computes nothing; a run with additional OOD datasets predicts only these. A dataset
    that cannot be loaded is reported before training and skipped; without the test images nothing is
    measured, as every OOD dataset is compared with them. Without the training images only
    trials whose networks are in the cache run. With `networks`, networks that the cache lacks are
    trained although all their rows exist. `budget` is the time of one training in minutes; the number of
    epochs follows from the measured speed. `engine` and `workers` are those of `daedl.engines.connect`:
    with "ray", jobs that need different networks run at the same time, on machines that share the folders.
    """
    results.commit()  # before training, as the checkout may change meanwhile
    experiment, failures = catalogue.experiment(name), Failures(workspace.progress)
    chosen, done = experiment.protocol(protocol), _done(path)
    if budget is not None:
        first = catalogue.method((methods or experiment.methods)[0], chosen)
        chosen = estimate.within(chosen, first, budget)
    jobs = [
        Job(label, trial, units)
        for seed in dict.fromkeys(seeds)
        for label in methods or experiment.methods
        for trial in [catalogue.trial(label, chosen, seed)]
        if (units := [each for each in experiment.units if _missing(each, label, trial.key, done)])
        or (networks and not workspace.is_trained(trial))
    ]
    jobs, generated = _loadable(jobs, experiment, workspace, failures)
    measure = partial(_Measure, workspace, path.absolute(), experiment, generated)
    with connect(engine, workers) as connected:
        for failed in connected.map(measure, _cells(jobs)):
            failures.extend(failed)
    return failures


def _cells(jobs: Iterable[Job]) -> list[list[Job]]:
    """Jobs that share a network together, as only one process at a time trains it."""
    cells: dict[str, list[Job]] = {}
    for job in jobs:
        cells.setdefault(min(job.trial.networks), []).append(job)
    return list(cells.values())


class _Measure:
    """Trains and measures jobs in the process of an engine."""

    def __init__(
        self, workspace: Workspace, path: Path, experiment: Experiment, generated: set[str]
    ) -> None:
        self.workspace, self.path = workspace, path
        self.experiment, self.generated = experiment, generated
        results.commit()  # as in `run`

    def __call__(self, jobs: Iterable[Job]) -> list[Failure]:
        failures = Failures(self.workspace.progress)
        for job in jobs:
            protocol = job.trial.protocol.name
            self.workspace.progress.starts(f"{self.experiment.name} · {protocol} · {job}")
            try:
                predictor = self.workspace.prepare(job.trial)
            except Exception as error:
                failures.add(str(job), error)
                continue
            for unit in job.units:
                made = unit in self.generated
                try:
                    append_missing(
                        self.path, self.experiment, job.label, predictor, unit, made=made
                    )
                except Exception as error:
                    failures.add(f"{job}, {unit}", error)
        return list(failures)


def append_missing(
    path: Path,
    experiment: Experiment,
    label: str,
    predictor: Predictor,
    unit: str,
    /,
    **changes: Any,
) -> None:
    """Measure the datasets of a unit, see `Experiment.units`, without rows in the file `path`.

    The rows of a dataset are appended before the next is predicted.

    Arguments:
        label: names the method.
        changes: fields of `Row` that replace the ones of the experiment and the trial.
    """
    # Read here, as another process may have measured some of it while this one waited for its network.
    wanted = _missing(unit, label, changes.get("spec", predictor.trial.key), _done(path))
    if not wanted:
        return
    fields = {"experiment": experiment.name, **changes}
    started = time.perf_counter()
    for data, measured in _measured(experiment, predictor, unit):
        if data in wanted:
            seconds = time.perf_counter() - started
            rows = trial_rows(measured, predictor.trial, label, data, seconds, **fields)
            results.append(path, rows)
        started = time.perf_counter()


def measure_once(
    path: Path,
    workspace: Workspace,
    trial: Trial,
    label: str,
    measure: Callable[[Predictor], Iterable[tuple[str, list[Measured]]]],
    experiment: str,
) -> list[Row]:
    """The rows of a trial in a study, from the file `path`; missing rows are measured and appended.

    Arguments:
        measure: returns figures by dataset.
        experiment: names the study.
    """
    rows = [row for row in results.load(path) if row.spec == trial.key]
    if not rows:
        workspace.progress.starts(f"{trial.protocol.name} · {label}, seed {trial.seed}")
        predictor = workspace.prepare(trial)
        for data, measured in measure(predictor):
            rows += trial_rows(measured, trial, label, data, experiment=experiment)
        results.append(path, rows)
    return rows


def trial_rows(
    measured: Iterable[Measured],
    trial: Trial,
    label: str,
    data: str,
    seconds: float = 0.0,
    **fields: Any,
) -> list[Row]:
    """Figures of a trial as rows; `fields` of `Row` replace the ones of the trial."""
    own = {"seed": trial.seed, "spec": trial.key, "protocol": trial.protocol.name}
    return results.rows(measured, seconds=seconds, method=label, data=data, **(own | fields))


def _measured(
    experiment: Experiment, predictor: Predictor, unit: str
) -> Iterator[tuple[str, list[Measured]]]:
    """Figures by dataset; of corruptions each, then the mean over every severity.

    If only the first test images were corrupted, the same images are the in-distribution ones, so that AUPR
    has the prevalence of the published sets.
    """
    inside, targets = predictor.predict(experiment.test)
    if unit == experiment.test:
        measured = evaluate.classification(inside, targets)
        yield unit, [*measured, *_mean_scores(inside), *predictor.costs()]
    elif unit != experiment.shift:
        yield unit, evaluate.ood_detection(inside, predictor.predict(unit)[0])
    for group, names in corrupted_sets(unit).items():
        each = []
        for name in names:
            outside = predictor.predict(name)[0]
            each.append(evaluate.ood_detection(inside[: len(outside)], outside, "shift"))
            yield name, [*each[-1], *_mean_scores(outside)]
        yield group, evaluate.averaged(each)


def _mean_scores(prediction: Prediction) -> list[Measured]:
    """The mean of every uncertainty score, which should grow with the severity of a corruption."""
    return [
        Measured("uncertainty", name, "mean", float(score.double().mean()))
        for name, score in prediction.scores().items()
    ]


def _done(path: Path) -> Done:
    return {(row.spec, row.method, row.data) for row in results.load(path)}


def _missing(unit: str, label: str, key: str, done: Done) -> set[str]:
    """The datasets of a unit without rows; a mean is computed again with any of its parts."""
    missing: set[str] = set()
    for group, names in (corrupted_sets(unit) or {unit: []}).items():
        if lost := {name for name in (*names, group) if (key, label, name) not in done}:
            missing |= lost | {group}
    return missing


def _loadable(
    jobs: list[Job], experiment: Experiment, workspace: Workspace, failures: Failures
) -> tuple[list[Job], set[str]]:
    """The jobs whose datasets can be loaded, and the units with images that were generated here."""
    lost, generated = set(), set()
    for unit in dict.fromkeys(unit for job in jobs for unit in job.units):
        try:
            if _was_generated(unit, workspace.load):
                generated.add(unit)
        except Exception as error:
            failures.add(unit, error)
            lost.add(unit)
    if experiment.test in lost:
        return [], generated
    wanted = [
        job._replace(units=units)
        for job in jobs
        if (units := [unit for unit in job.units if unit not in lost]) or not job.units
    ]
    trained = [job for job in wanted if workspace.is_trained(job.trial)]
    if wanted != trained:
        data = wanted[0].trial.protocol.data
        try:
            workspace.load(data, "train")
        except Exception as error:
            failures.add(f"training images of {data}", error)
            return trained, generated
    return wanted, generated


def _was_generated(unit: str, load: Load) -> bool:
    """Whether any image was generated here, not published; loads every dataset of the unit."""
    groups = list(corrupted_sets(unit).values())
    return True in [load(name, "test").made for name in (groups[0] if groups else [unit])]
