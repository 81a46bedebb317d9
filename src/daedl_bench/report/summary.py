"""Rows as one long table: which rows count, and their mean and standard deviation over seeds."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame

from daedl_bench import rows
from daedl_bench.report import specs
from daedl_bench.rows import Row
from daedl_bench.spec import Catalogue
from daedl_bench.two_moons import NAME as TWO_MOONS

METRIC = ["data", "task", "score", "metric"]
KEY = ["protocol", "method", *METRIC]


class Summary(NamedTuple):
    """A metric over `n` seeds; `std` has n − 1 in the denominator and is NaN for fewer than two seeds."""

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Summary":
        """Summarise one value per seed; None is an undefined value and is not counted."""
        series = pd.Series(list(values), dtype=float)
        return cls(series.mean(), series.std(), int(series.count()))


@dataclass(frozen=True)
class Results:
    """All rows of a folder, and the catalogue that specifies the experiments."""

    catalogue: Catalogue
    rows: tuple[Row, ...]

    @cached_property
    def frame(self) -> DataFrame:
        """One row per `KEY` and seed, measured under the catalogue's current settings.

        Experiments share networks, so that the same metric can be measured twice: the later row counts.
        Equal methods share the first of their labels in the catalogue.
        """
        found = self._specified
        found = found[~found["stale"]].drop(columns="stale")
        found["method"] = found["method"].map(self.canonical)
        return found.drop_duplicates([*KEY, "seed"], keep="last")

    @property
    def stale(self) -> int:
        """The number of rows that were measured with other settings than the catalogue's."""
        return int(self._specified["stale"].sum())

    @cached_property
    def _specified(self) -> DataFrame:
        """Rows of the catalogue's experiments; other commands' rows are left out.

        A row is stale if its digest differs from the current one. Rows without a digest, and rows whose
        protocol or method is not in the catalogue, are kept.
        """
        found = DataFrame([vars(row) for row in self.rows], columns=[f.name for f in fields(Row)])
        found["value"] = found["value"].astype(float)
        experiments = [*self.catalogue.experiments, TWO_MOONS]
        found = found[found["experiment"].isin(experiments)]
        found = found[found["protocol"].ne("") | found["experiment"].eq(TWO_MOONS)].copy()
        cell = found[["experiment", "protocol", "method", "seed"]]
        digests = {
            each: specs.current_digest(self.catalogue, *each)
            for each in cell.drop_duplicates().itertuples(index=False, name=None)
        }
        stale = [
            digests[each] is not None and spec not in ("", digests[each])
            for each, spec in zip(cell.itertuples(False, None), found["spec"], strict=True)
        ]
        found["stale"] = np.array(stale, dtype=bool)
        return found

    @cached_property
    def summary(self) -> DataFrame:
        """`KEY` and the columns of `Summary`, one row per metric."""
        values = self.frame.groupby(KEY, sort=False)["value"]
        return values.agg(mean="mean", std="std", n="count").reset_index()

    @cached_property
    def _by_key(self) -> dict[tuple[str, ...], Summary]:
        return {each[:6]: Summary(*each[6:]) for each in self.summary.itertuples(False, None)}

    def under(self, protocol: str) -> DataFrame:
        """The rows of `frame` under one protocol; two moons have the protocol ""."""
        return self.frame[self.frame["protocol"] == protocol]

    def summaries(self, protocol: str) -> DataFrame:
        """The rows of `summary` under one protocol."""
        return self.summary[self.summary["protocol"] == protocol]

    def get(self, protocol: str, method: str, *metric: str) -> Summary | None:
        """The summary of one metric (data, task, score, metric), or None if it was not measured."""
        return self._by_key.get((protocol, self.canonical(method), *metric))

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

    def canonical(self, method: str) -> str:
        """The first label of an equal method in the catalogue: "daedl" for "exp+de+sn"."""
        return self._labels.get(method, method)

    @cached_property
    def _labels(self) -> dict[str, str]:
        methods = self.catalogue.methods
        return {
            label: next(first for first, other in methods.items() if other == method)
            for label, method in methods.items()
        }


def load(folder: Path, catalogue: Catalogue) -> Results:
    """Read the rows of every *.jsonl file in `folder`; files with other content are skipped."""
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise FileNotFoundError(
            f"no results in {folder}; expected *.jsonl files with rows, as `python -m daedl_bench run` "
            "writes them: run an experiment first, or name their folder with --results"
        )
    found = [row for path in paths if _contains_rows(path) for row in rows.load(path)]
    return Results(catalogue, tuple(found))


def _contains_rows(path: Path) -> bool:
    """Whether the first line is a row; also True if it is damaged, so that reading it raises."""
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
    try:
        content = json.loads(first)
    except json.JSONDecodeError:
        return bool(first.strip())
    return not isinstance(content, dict) or "experiment" in content


def _ordered(present: Iterable[str], order: Sequence[str]) -> list[str]:
    """`present` in the given order; names that it does not contain last."""
    return sorted(present, key=lambda name: order.index(name) if name in order else len(order))
