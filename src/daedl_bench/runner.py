"""Running experiments: each cell is one method with one seed; rows are kept as soon as they exist."""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from daedl import figures
from daedl.demo import maps, moons
from daedl.demo.training import SILENT, Progress
from daedl.methods import Method
from daedl.storage import write_atomically
from daedl_bench import rows, two_moons
from daedl_bench.cell import Cell, Load
from daedl_bench.datasets import corrupted_sets
from daedl_bench.rows import Measured, Row
from daedl_bench.spec import (
    Catalogue,
    Experiment,
    Protocol,
    cell_key,
    training_keys,
)
from daedl_bench.store import Store

Found = Iterable[tuple[str, list[Measured]]]  # with the name of the data set


@dataclass(frozen=True)
class Failure:
    """What failed, where, and why; everything else went on."""

    where: str
    error: Exception

    def __str__(self) -> str:
        return f"{self.where}: {type(self.error).__name__}: {self.error}"


class Failures(list[Failure]):
    """All of a run; each is told as it comes, because the end may be hours away."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def add(self, where: str, error: Exception) -> None:
        """Keep it without its traceback, which would hold on to a cell's tensors."""
        self.append(Failure(where, error.with_traceback(None)))
        self._progress.fails(str(self[-1]))


class Todo(NamedTuple):
    """A cell, and which units of the experiment it lacks rows of; none if its network alone is wanted."""

    label: str
    method: Method
    seed: int
    units: list[str]


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
    networks: bool = False,
    progress: Progress = SILENT,
) -> list[Failure]:
    """Measure what `results` doesn't hold yet; what fails doesn't stop the rest.

    A second identical run costs nothing; one with more unknown sets predicts these alone. A data set
    that can't be had is left out, and told before anything is trained; without the known test images,
    which all others are compared with, nothing is. Without the training images all goes on that was
    trained before. With `networks` those that the store lacks are trained although all their rows exist.
    """
    rows.commit()  # that of the code which is running, whatever is committed meanwhile
    experiment = catalogue.experiment(name)
    if experiment.kind == "moons":
        settings = two_moons.settings_of(catalogue)
        return _run_moons(settings, results, seeds, progress, bool(methods or protocol))
    chosen = experiment.protocol(protocol)
    labels = {label: catalogue.method(label, chosen) for label in methods or experiment.methods}
    held = rows.load(results) if results.exists() else []
    done = _done(held)
    todo = [
        Todo(label, method, seed, missing)
        for seed in dict.fromkeys(seeds)
        for label, method in labels.items()
        if (missing := _missing(experiment, label, cell_key(chosen, method, seed), done))
        or (networks and not _trained(chosen, method, seed, store))
    ]
    failures = Failures(progress)
    todo, made = _obtainable(todo, experiment, chosen, load, store, failures)
    for label, method, seed, units in todo:
        where = f"{label}, seed {seed}"
        progress.starts(f"{experiment.name} · {chosen.name} · {where}")
        cell = Cell(chosen, method, seed, load, store, progress)
        try:
            cell.prepare()
        except Exception as error:
            failures.add(where, error)
            continue
        # Another run may have measured some of it, while this one waited for its network.
        done = _done(rows.load(results)) if results.exists() else set()
        for unit in units:
            wanted = _missing_sets(unit, label, cell.key, done)
            if not wanted:
                continue
            try:
                for data, found in measure(experiment, label, cell, unit):
                    if data in wanted:
                        rows.append(results, [replace(row, made=unit in made) for row in found])
            except Exception as error:
                failures.add(f"{where}, {unit}", error)
    return failures


def _done(held: Iterable[Row]) -> set[tuple[str, str, str]]:
    return {(row.spec, row.method, row.data) for row in held}


def _missing(
    experiment: Experiment, label: str, key: str, done: Collection[tuple[str, str, str]]
) -> list[str]:
    """The units of a cell that lack rows."""
    return [unit for unit in experiment.units if _missing_sets(unit, label, key, done)]


def _missing_sets(
    unit: str, label: str, key: str, done: Collection[tuple[str, str, str]]
) -> set[str]:
    """The data sets of a unit whose rows a cell lacks; a mean is as old as the oldest of its parts."""
    found: set[str] = set()
    for group, names in (corrupted_sets(unit) or {unit: []}).items():
        if lost := {name for name in (*names, group) if (key, label, name) not in done}:
            found |= lost | {group}
    return found


def _run_moons(
    settings: moons.Settings,
    results: Path,
    seeds: Iterable[int],
    progress: Progress,
    restricted: bool,
) -> list[Failure]:
    """Rows of all methods for each seed, and the figure of the first one beside them."""
    if restricted:
        raise ValueError(
            "methods or a protocol were chosen for two moons; expected neither, as it trains its "
            "methods in one way: leave them out"
        )
    held = {(row.spec, row.seed) for row in rows.load(results)} if results.exists() else set()
    spec, failures = two_moons.key(settings), Failures(progress)
    picture = results.with_suffix(".png")
    drawn = picture.exists() and spec in {each for each, _ in held}
    for seed in dict.fromkeys(seeds):
        if (spec, seed) in held and drawn:
            continue
        try:
            found = moons.run(seed, settings, progress)
            if not drawn:  # first, so that rows without a picture tell that it is missing
                write_atomically(picture, figures.png(maps.moons_maps(found)))
                drawn = True
            if (spec, seed) not in held:
                rows.append(results, two_moons.rows_of(found))
        except Exception as error:
            failures.add(f"seed {seed}", error)
    measured = [row for row in rows.load(results) if row.spec == spec] if results.exists() else []
    claims = two_moons.checks(measured) if measured else {}
    for claim in (claim for claim, holds in claims.items() if not holds):
        failures.add(claim, ValueError("not borne out by the rows"))
    return failures


def _obtainable(
    todo: list[Todo],
    experiment: Experiment,
    protocol: Protocol,
    load: Load,
    store: Store,
    failures: Failures,
) -> tuple[list[Todo], set[str]]:
    """What can be done with the data that can be had, and units that were made here, not published.

    `failures` gets what can't be done.
    """
    lost, made = set(), set()
    for unit in dict.fromkeys(unit for each in todo for unit in each.units):
        try:
            if _was_made(unit, load):
                made.add(unit)
        except Exception as error:
            failures.add(unit, error)
            lost.add(unit)
    if experiment.test in lost:
        return [], made
    wanted = [
        each._replace(units=units)
        for each in todo
        if (units := [unit for unit in each.units if unit not in lost]) or not each.units
    ]
    trained = [each for each in wanted if _trained(protocol, each.method, each.seed, store)]
    if wanted != trained:
        try:
            load(protocol.data, "train")
        except Exception as error:
            failures.add(f"training images of {protocol.data}", error)
            return trained, made
    return wanted, made


def _trained(protocol: Protocol, method: Method, seed: int, store: Store) -> bool:
    """Whether the store has all networks of a cell."""
    return all(map(store.has, training_keys(protocol, method, seed)))


def _was_made(unit: str, load: Load) -> bool:
    """Whether any of its images were made here. All are loaded, and raise if they can't be."""
    groups = list(corrupted_sets(unit).values())
    return True in [load(name, "test").made for name in (groups[0] if groups else [unit])]


def measure(
    experiment: Experiment, label: str, cell: Cell, unit: str
) -> Iterator[tuple[str, list[Row]]]:
    """The rows of one unit of an experiment, see `Experiment.units`, data set by data set.

    They come as they are measured; `label` names the method.
    """
    started = time.perf_counter()
    for data, found in _found(experiment, cell, unit):
        seconds = time.perf_counter() - started
        circumstances = {"experiment": experiment.name, "label": label, "data": data}
        yield data, [cell.row(each, seconds=seconds, **circumstances) for each in found]
        started = time.perf_counter()


def _found(experiment: Experiment, cell: Cell, unit: str) -> Found:
    if unit == experiment.test:
        return [(unit, cell.classification(unit))]
    if unit == experiment.shift:
        return cell.shift_detection(experiment.test, unit)
    return [(unit, cell.ood_detection(experiment.test, unit))]
