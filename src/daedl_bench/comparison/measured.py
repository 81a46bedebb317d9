"""What was measured: rows of all experiments, one a figure and seed, and their summaries over seeds."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from daedl_bench import results, two_moons
from daedl_bench.results import Row
from daedl_bench.spec import Catalogue


class Key(NamedTuple):
    """What a figure is of, whatever the seed; `method` is the first label of equal methods."""

    protocol: str
    method: str
    data: str
    task: str
    score: str
    metric: str


@dataclass(frozen=True)
class Summary:
    """A figure over `n` seeds.

    Attributes:
        mean: over the seeds with a defined value; NaN if there are none.
        deviation: standard deviation with n − 1 in the denominator; None of fewer than two.
        n: seeds with a defined value.
    """

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Summary":
        """The summary of one value a seed; None stands for an undefined one."""
        defined = [value for value in values if value is not None]
        return cls(
            mean=fmean(defined) if defined else math.nan,
            deviation=stdev(defined) if len(defined) > 1 else None,
            n=len(defined),
        )


@dataclass(frozen=True)
class Measurements:
    """Rows of the catalogue's experiments, and the catalogue that says what they mean.

    Attributes:
        found: all rows, in the order in which they were written; what other commands measured, such as
            the choice of a setting, is left out.
    """

    catalogue: Catalogue
    found: tuple[Row, ...]

    @cached_property
    def rows(self) -> dict[tuple[Key, int], Row]:
        """One row a figure and seed.

        Experiments share networks, so that a figure may be found twice; then the later row counts.
        """
        return {(self._key(row), row.seed): row for row in self._asked if not self._is_stale(row)}

    @property
    def stale(self) -> int:
        """Rows that were left out: measured with other settings than the catalogue's."""
        return sum(map(self._is_stale, self._asked)) + sum(map(self._is_of_other_moons, self.found))

    @cached_property
    def _asked(self) -> list[Row]:
        experiments = self.catalogue.experiments
        return [row for row in self.found if row.protocol and row.experiment in experiments]

    def _is_stale(self, row: Row) -> bool:
        """Whether it was measured with other settings than those that the report states.

        A row that doesn't say with which, or whose protocol or method isn't in the catalogue, is kept.
        """
        present = self._specs.get((row.protocol, row.method, row.seed))
        return row.spec != "" and present is not None and row.spec != present

    @cached_property
    def summaries(self) -> Mapping[Key, Summary]:
        """Every figure over its seeds."""
        values = defaultdict(list)
        for (key, _), row in self.rows.items():
            values[key].append(row.value)
        return {key: Summary.of(each) for key, each in values.items()}

    @property
    def moons_rows(self) -> list[Row]:
        """Rows of the two moons, which have no protocol."""
        return [
            row
            for row in self.found
            if row.experiment == two_moons.NAME and not self._is_of_other_moons(row)
        ]

    @cached_property
    def moons(self) -> Mapping[tuple[str, str], Summary]:
        """Mean uncertainty on the two moons, by method and data."""
        latest = {
            (row.method, row.data, row.seed): row.value
            for row in self.moons_rows
            if row.task == "uncertainty"
        }
        values = defaultdict(list)
        for (method, data, _), value in latest.items():
            values[method, data].append(value)
        return {key: Summary.of(each) for key, each in values.items()}

    def summary(
        self, protocol: str, method: str, data: str, task: str, score: str, metric: str
    ) -> Summary | None:
        """The figure, or None if it wasn't measured."""
        key = Key(protocol, self.canonical(method), data, task, score, metric)
        return self.summaries.get(key)

    def was_run(self, protocol: str, method: str, data: str, task: str) -> bool:
        """Whether any score of the method was asked this question."""
        return (protocol, self.canonical(method), data, task) in self._questions

    def protocols(self, known: str) -> list[str]:
        """Protocols with rows that train on the data set `known`; the catalogue's first."""
        return [name for name in self.all_protocols if self.known(name) == known]

    @cached_property
    def all_protocols(self) -> list[str]:
        """Protocols with rows; the catalogue's first, in its order."""
        present = dict.fromkeys(key.protocol for key, _ in self.rows)
        return _ordered(present, self.catalogue.protocols)

    def known(self, protocol: str) -> str:
        """The data set that `protocol` trains on; "" if nothing tells."""
        if protocol in self.catalogue.protocols:
            return self.catalogue.protocols[protocol].data
        of_protocol = (key for key in self.summaries if key.protocol == protocol)
        return next((key.data for key in of_protocol if key.task == "classification"), "")

    def methods(self, protocol: str) -> list[str]:
        """Labels of methods with rows under `protocol`, in the catalogue's order; of equal ones the first."""
        present = dict.fromkeys(key.method for key, _ in self.rows if key.protocol == protocol)
        return _ordered(present, self.catalogue.methods)

    def canonical(self, method: str) -> str:
        """The first label in the catalogue that means the same: "daedl" for "exp+de+sn"."""
        return self._labels.get(method, method)

    @cached_property
    def _labels(self) -> dict[str, str]:
        methods = self.catalogue.methods
        return {
            label: next(first for first, other in methods.items() if other == method)
            for label, method in methods.items()
        }

    @cached_property
    def _questions(self) -> set[tuple[str, ...]]:
        return {key[:4] for key in self.summaries}

    def _key(self, row: Row) -> Key:
        method = self.canonical(row.method)
        return Key(row.protocol, method, row.data, row.task, row.score, row.metric)

    def _is_of_other_moons(self, row: Row) -> bool:
        """Whether a row of the two moons was measured with other settings."""
        return row.experiment == two_moons.NAME and row.spec not in ("", self._moons_spec)

    @cached_property
    def _moons_spec(self) -> str:
        """The digest of the two moons' settings as they are now."""
        return two_moons.key(two_moons.settings_of(self.catalogue))

    @cached_property
    def _specs(self) -> dict[tuple[str, str, int], str]:
        """The digest of the settings as they are now, of every cell with rows."""
        keys = {
            trial: self.catalogue.key(*trial)
            for trial in {(row.protocol, row.method, row.seed) for row in self.found}
        }
        return {trial: key for trial, key in keys.items() if key is not None}


def load(folder: Path, catalogue: Catalogue) -> Measurements:
    """The rows of every *.jsonl file in `folder`."""
    return Measurements(catalogue, tuple(results.load_folder(folder)))


def _ordered(present: Iterable[str], order: Iterable[str]) -> list[str]:
    """`present` in the given order, those that it doesn't name last."""
    place = {name: number for number, name in enumerate(order)}
    return sorted(present, key=lambda name: place.get(name, len(place)))
