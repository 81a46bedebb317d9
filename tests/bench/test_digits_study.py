"""The digits study: its table of the stored rows."""

from pathlib import Path
from statistics import mean, stdev

import pytest

from daedl_bench import results
from daedl_bench.studies import digits

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_table_has_mean_and_deviation_of_the_stored_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    digits.show(RESULTS)
    shown = capsys.readouterr().out
    values: dict[str, list[float]] = {}
    for row in results.load(RESULTS / "digits.jsonl"):
        if row.metric == "accuracy":
            values.setdefault(row.method, []).append(row.value or 0.0)
    assert {len(each) for each in values.values()} == {5}
    for each in values.values():
        assert f"{100 * mean(each):.1f} ± {100 * stdev(each):.1f}" in shown


def test_candidates_have_distinct_names_and_include_the_demo_settings() -> None:
    candidates = list(digits.candidates())
    assert len({name for name, _, _ in candidates}) == len(candidates)
    trained = {(method.name, training) for _, method, training in candidates}
    for method, training in digits.digits.plan().items():
        assert (method.name, training) in trained
