"""Rows measured before the bench was redesigned still belong to their trials, and give the same tables.

The digests and counts were computed by the code of that time; lines of "wrapped" have other titles since.
"""

import hashlib
import re
from pathlib import Path

import msgspec
import pytest

from daedl_bench import results
from daedl_bench.spec import Trial, catalogue
from daedl_bench.studies import mnist_rates, pages, two_moons
from daedl_bench.studies._mnist_tables import candidate
from daedl_bench.summary import Results

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SPECS = catalogue()
TABLES = {
    "protocols": "ceb06ca457cd208e",
    "ablation": "5fa2dd5ca8e836cb",
    "every-method": "37f56a033f3434ec",
    "wrapped": "8c340934482e9448",
    "prevalence": "cf340a4500b5172b",
    "quick-and-paper": "5d2c3c78882902ac",
    "candidates": "49ac80b16bd4ebbc",
    "unknown-digits": "e3538f0b77f8f86d",
    "rates": "838b8487aac3b392",
}
# Rows per file, all of which matched the catalogue.
ROWS = {
    "ablation-mnist": 1310,
    "costs": 50,
    "mnist-ood": 3775,
    "mnist-shift": 14188,
    "natpn_flow": 24,
    "pairing": 6563,
    "prevalence": 52,
}


# Epochs, batch size and rate of the candidates for `quick`.
RECIPES = (
    *((4, 64, 3e-3), (4, 64, 6e-3), (4, 64, 1.2e-2), (5, 64, 6e-3), (5, 32, 4e-3)),
    *((8, 32, 4e-3), (8, 32, 2e-3), (8, 32, 1e-3), (7, 16, 2e-3), (7, 16, 1e-3)),
)


def candidates():
    paper, fields = SPECS.protocols["mnist-paper"], ("max_epochs", "batch_size", "learning_rate")
    for recipe in RECIPES:
        training = {**dict(zip(fields, recipe, strict=True)), "schedule": "one-cycle"}
        yield msgspec.structs.replace(paper, name=candidate(training), training=training)


def digest(lines):
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


@pytest.fixture(scope="module")
def figures():
    return Results.load(RESULTS, SPECS)


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_the_same_figures(name, figures):
    assert digest(pages.TABLES[name](figures).splitlines()) == TABLES[name]


def test_the_results_page_has_the_tables_of_the_former_readme():
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    # The first table, digits, was measured again.
    _, *from_rows = re.findall(r"(?:^\|.*\n)+", page, re.M)
    expected = [TABLES[name] for name in ("protocols", "ablation", "every-method")]
    # The tables of the panel, which follow, change with the defaults.
    assert [digest(table.splitlines()) for table in from_rows[: len(expected)]] == expected


@pytest.mark.parametrize("name", ROWS)
def test_rows_belong_to_the_trials_of_the_catalogue(name):
    rows = results.load(RESULTS / f"{name}.jsonl")[: ROWS[name]]
    trials = {(row.protocol, row.method, row.seed) for row in rows}
    keys = {trial: SPECS.key(*trial) for trial in trials}
    matched = [row for row in rows if row.spec == keys[row.protocol, row.method, row.seed]]
    assert len(matched) == ROWS[name]


def test_rows_of_two_moons_belong_to_its_settings():
    rows = results.load(RESULTS / "two-moons.jsonl")
    assert two_moons.key(two_moons.SETTINGS) == "1a8f12bf773f2693"
    assert sum(row.spec == "1a8f12bf773f2693" for row in rows) >= 255


@pytest.mark.parametrize(
    ("name", "count"), [("mnist_quick_choice", 65), ("mnist_quick_checks", 1472)]
)
def test_rows_of_candidates_belong_to_their_protocols(name, count):
    rows = results.load(RESULTS / f"{name}.jsonl")
    protocols = {each.name: each for each in candidates()}
    trials = {(row.protocol, row.seed) for row in rows}
    daedl = SPECS.method("daedl")
    keys = {trial: Trial(protocols[trial[0]], daedl, trial[1]).key for trial in trials}
    assert sum(row.spec == keys[row.protocol, row.seed] for row in rows) == count


def test_rows_of_learning_rates_belong_to_their_protocols():
    rows = results.load(RESULTS / "mnist_rates.jsonl")
    protocols = {each.name: each for each in map(mnist_rates.rate_protocol, mnist_rates.RATES)}
    keys = [SPECS.trial(row.method, protocols[row.protocol], 0).key for row in rows]
    assert sum(row.spec == key for row, key in zip(rows, keys, strict=True)) == 57
