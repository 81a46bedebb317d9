"""The digits study: its table of the stored rows."""

from pathlib import Path
from statistics import mean, stdev

from daedl_bench import results
from daedl_bench.spec import catalogue
from daedl_bench.studies import digits
from daedl_bench.summary import Results

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_table_has_mean_and_deviation_of_the_stored_rows() -> None:
    rows = results.load(RESULTS / digits.FILE)
    shown = digits.table(Results(catalogue(), tuple(rows)))
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.metric == "accuracy":
            values.setdefault(row.method, []).append(row.value or 0.0)
    assert {len(each) for each in values.values()} == {5}
    for each in values.values():
        assert f"{100 * mean(each):.1f} ± {100 * stdev(each):.1f}" in shown
