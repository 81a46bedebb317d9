"""What of the paper's tables was not run, and the command that would run it."""

from collections.abc import Iterable
from dataclasses import dataclass

from daedl_bench.comparison import titles
from daedl_bench.comparison.measured import Measurements
from daedl_bench.paper import Column, PaperTable
from daedl_bench.spec import Catalogue

SEEDS = "0-4"  # five runs, as the paper's


@dataclass(frozen=True)
class Gap:
    """Methods of a table that lack rows.

    Attributes:
        table: its title; of one with several known data sets with the one that is meant.
        part: the data sets that lack; "" if none was run.
        command: what would run them; "" where nothing in the library does.
    """

    table: str
    protocol: str
    methods: tuple[str, ...]
    part: str
    command: str


def gaps(tables: Iterable[PaperTable], measured: Measurements) -> list[Gap]:
    """For every table, known data set and protocol the methods that lack rows."""
    found = []
    for table in tables:
        for known in dict.fromkeys(column.id for column in table.columns):
            columns = [column for column in table.columns if column.id == known]
            for protocol in _protocols(known, measured):
                found += _gaps(table, columns, protocol, measured)
    return found


def _protocols(known: str, measured: Measurements) -> list[str]:
    """All protocols for this data, run or not."""
    catalogued = [name for name, each in measured.catalogue.protocols.items() if each.data == known]
    return list(dict.fromkeys([*catalogued, *measured.protocols(known)]))


def command(
    experiment: str, protocol: str, methods: str, seeds: str, networks: bool = False
) -> str:
    """What to type to run `methods` of an experiment; with `networks` also if rows exist."""
    line = f"daedl bench run {experiment} --protocol {protocol} --methods {methods} --seeds {seeds}"
    return f"{line} --networks" if networks else line


def _gaps(
    table: PaperTable, columns: list[Column], protocol: str, measured: Measurements
) -> list[Gap]:
    known = columns[0].id
    several = any(column.id != known for column in table.columns)
    title = f"{table.title}, {titles.data(known)}" if several else table.title
    asked = dict.fromkeys((column.ood or known, column.task) for column in columns)
    missing: dict[tuple[str, str], list[str]] = {}
    for method in table.rows:
        lost = [data for data, task in asked if not measured.was_run(protocol, method, data, task)]
        if lost:
            part = "" if len(lost) == len(asked) else ", ".join(map(titles.data, lost))
            template = _template(measured.catalogue, table, columns, protocol, method)
            missing.setdefault((template, part), []).append(method)
    return [
        Gap(
            title,
            titles.short(protocol, known),
            tuple(map(titles.method, methods)),
            part,
            template.format(",".join(methods)),
        )
        for (template, part), methods in missing.items()
    ]


def _template(
    catalogue: Catalogue, table: PaperTable, columns: list[Column], protocol: str, method: str
) -> str:
    """The command with a gap for the methods, from the first experiment that asks all of `columns`."""
    if method not in catalogue.methods:
        return ""
    asked = {column.ood.partition("/")[0] if column.ood else column.id for column in columns}
    fitting = [
        (experiment, short)
        for experiment in catalogue.experiments.values()
        for short, each in experiment.protocols.items()
        if each.name == protocol
        and experiment.test == columns[0].id
        and asked <= set(experiment.units)
    ]
    if not fitting:
        return ""
    # The experiment that has most of the table's methods, so that one command runs them all, and asks
    # least besides.
    fitting.sort(
        key=lambda pair: (-len(set(table.rows) & set(pair[0].methods)), len(pair[0].units))
    )
    experiment, short = fitting[0]
    return command(experiment.name, short, "{}", SEEDS)
