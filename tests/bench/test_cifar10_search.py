"""The search for the protocol `cpu`."""

from pathlib import Path

from daedl_bench import results
from daedl_bench.studies import cifar10_cpu

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_rows_belong_to_the_candidates():
    rows = results.load(RESULTS / cifar10_cpu.PATH.name)
    candidates = {(each.name, each.key) for each in cifar10_cpu.candidates()}
    assert {(row.protocol, row.spec) for row in rows} == candidates
