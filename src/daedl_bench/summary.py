"""Means over seeds: which rows count, and their mean and standard deviation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pandas import DataFrame, Series

from daedl_bench import results
from daedl_bench.names import DASH
from daedl_bench.results import FIGURE, Row
from daedl_bench.spec import Catalogue
from daedl_bench.studies import two_moons


class Summary(NamedTuple):
    """A metric over `n` seeds; `std` has n − 1 in the denominator and is NaN for fewer than two seeds."""

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: "Series[float]") -> "Summary":
        """Of the defined values."""
        return cls(values.mean(), values.std(), int(values.count()))

    def text(self, scale: float = 100, digits: int = 2, count: bool = False) -> str:
        """ "99.85 ± 0.03", without the deviation for a single seed; with `count` "99.85 ± 0.03 (5)"."""
        if np.isnan(self.mean):
            return "undefined"
        shown = f"{scale * self.mean:,.{digits}f}"
        if not np.isnan(self.std):
            shown += f" ± {scale * self.std:,.{digits}f}"
        return f"{shown} ({self.n})" if count else shown


@dataclass(frozen=True)
class Results:
    """All rows of a folder, and the catalogue that specifies the experiments."""

    catalogue: Catalogue
    rows: tuple[Row, ...]

    @classmethod
    def load(cls, folder: Path, catalogue: Catalogue) -> "Results":
        """Read the rows of every *.jsonl file in `folder`."""
        return cls(catalogue, tuple(results.load_folder(folder)))

    @cached_property
    def every_row(self) -> DataFrame:
        """All rows, of experiments and of studies."""
        return results.frame(self.rows)

    @cached_property
    def frame(self) -> DataFrame:
        """One row per metric and seed, measured under the catalogue's current settings.

        Experiments share networks, so that the same metric can be measured twice: the later row counts.
        Equal methods share the first of their labels in the catalogue.
        """
        found = self._specified
        found = found[~found["stale"]].drop(columns="stale")
        labels = {label: self.catalogue.canonical(label) for label in found["method"].unique()}
        found["method"] = found["method"].map(labels).astype(str)
        return found.drop_duplicates([*FIGURE, "seed"], keep="last")

    @property
    def stale(self) -> int:
        """The number of rows that were measured with other settings than the catalogue's."""
        return int(self._specified["stale"].sum())

    @cached_property
    def _specified(self) -> DataFrame:
        """Rows of the catalogue's experiments and of two moons; rows of other studies are left out.

        A row is stale if its key differs from the current one. Rows without a key, and rows whose
        protocol or method is not in the catalogue, are kept.
        """
        found = self.every_row
        moons = found["experiment"] == two_moons.NAME
        listed = found["experiment"].isin(list(self.catalogue.experiments)) & (
            found["protocol"] != ""
        )
        found = found[listed | moons].copy()
        trial = found[["experiment", "protocol", "method", "seed"]]
        keys = {
            each: self._key(*each)
            for each in trial.drop_duplicates().itertuples(index=False, name=None)
        }
        current = [keys[each] for each in trial.itertuples(index=False, name=None)]
        pairs = zip(current, found["spec"], strict=True)
        stale = [key is not None and spec not in ("", key) for key, spec in pairs]
        found["stale"] = np.array(stale, dtype=bool)
        return found

    def _key(self, experiment: str, protocol: str, label: str, seed: int) -> str | None:
        """The current key of a trial; None if the catalogue does not contain it."""
        if experiment == two_moons.NAME:
            return two_moons.key(two_moons.SETTINGS)
        return self.catalogue.key(protocol, label, seed)

    @cached_property
    def summary(self) -> DataFrame:
        """One row per metric: the columns of `FIGURE` and `Summary`."""
        return results.summarise(self.frame).reset_index()

    @cached_property
    def _by_figure(self) -> dict[tuple[str, ...], Summary]:
        return by_figure(self.frame)

    def under(self, protocol: str) -> DataFrame:
        """The rows of `frame` under one protocol; two moons have the protocol ""."""
        return self.frame[self.frame["protocol"] == protocol]

    def summaries(self, protocol: str) -> DataFrame:
        """The rows of `summary` under one protocol."""
        return self.summary[self.summary["protocol"] == protocol]

    def get(self, protocol: str, method: str, *metric: str, study: str = "") -> Summary | None:
        """The summary of one metric (data, task, score, metric), or None if it was not measured.

        With `study` its rows count, not the rows of experiments.
        """
        figures = self._by_figure
        if study:
            figures = by_figure(self.every_row[self.every_row["experiment"] == study])
        return figures.get((protocol, self.catalogue.canonical(method), *metric))

    @cached_property
    def protocols(self) -> list[str]:
        """Protocols with rows, in the catalogue's order; unknown ones last."""
        present = self.frame["protocol"].drop_duplicates()
        return _ordered(present[present != ""], list(self.catalogue.protocols))

    def known(self, protocol: str) -> str:
        """The in-distribution dataset of `protocol`; "" if it cannot be determined."""
        if protocol in self.catalogue.protocols:
            return self.catalogue.protocols[protocol].data
        tested = self.under(protocol).query("task == 'classification'")["data"]
        return str(tested.iloc[0]) if len(tested) else ""

    def methods(self, protocol: str) -> list[str]:
        """Labels of methods with rows under `protocol`, in the catalogue's order."""
        present = self.under(protocol)["method"].drop_duplicates()
        return _ordered(present, list(self.catalogue.methods))


def cell(rows: DataFrame, scale: float = 100, digits: int = 2, **where: str) -> str:
    """Mean and deviation of the rows whose columns have these values; a dash without any."""
    for name, value in where.items():
        rows = rows[rows[name] == value]
    return Summary.of(rows["value"]).text(scale, digits) if len(rows) else DASH


def by_figure(found: DataFrame) -> dict[tuple[str, ...], Summary]:
    """Summaries of the rows `found` by the columns `FIGURE`."""
    lines = results.summarise(found).itertuples(name=None)
    return {key: Summary(*values) for key, *values in lines}


def _ordered(present: Iterable[str], order: Sequence[str]) -> list[str]:
    """`present` in the given order; names that it does not contain last."""
    return sorted(present, key=lambda name: order.index(name) if name in order else len(order))
