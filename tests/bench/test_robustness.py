"""Every part of the campaign, with few attempts; and that its counters count."""

import json
import pickle
import sys
from importlib import import_module
from random import Random

import numpy as np
import pytest
from test_bench_cli import invoke

from daedl.training import checkpoint
from daedl_bench import robustness
from daedl_bench.robustness import _damage, dirichlets, files, saving, threads, training
from daedl_bench.robustness._place import Place
from daedl_bench.robustness._table import table

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.slow,
]
# Of 500 connections 300 exceed the file descriptors.
SCALES = {"connections": 0.6, "requests": 0.08, "soak": 0.02}


@pytest.fixture
def _small(monkeypatch):
    """Both kinds of kills by one process, all kinds of distributions, two of the methods."""
    monkeypatch.setattr(saving, "PROCESSES", 1)
    monkeypatch.setattr(training, "PROCESSES", 1)
    monkeypatch.setattr(dirichlets, "CHUNK", 1000)
    monkeypatch.setattr(threads.methods, "METHODS", ["daedl"])
    monkeypatch.setattr(threads.regression, "METHODS", ["daer"])


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("part", robustness.parts())
def test_every_limit_but_those_on_time_is_met(part, tmp_path):
    pytest.importorskip("schemathesis" if part == "schema" else "daedl")
    measure = import_module(robustness.parts()[part]).measure
    figures = measure(Place(tmp_path, SCALES.get(part, 0.02)))
    assert len(figures) > 1
    assert [
        each
        for each in figures
        if each.limit is not None and each.value > each.limit and each.unit != "s"
    ] == []


def test_a_crash_is_a_figure(monkeypatch, tmp_path):
    (tmp_path / "crashing.py").write_text("import os\ndef measure(place): os._exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    (row,) = robustness.rows("crashing", "crashing", 1.0)
    assert (row.benchmark, row.value, row.met) == ("crashes and hangs", 1, False)


def test_all_parts_together_are_bounded(monkeypatch, tmp_path):
    """Parts that run when the time is over are ended."""
    path = tmp_path / "robustness.jsonl"
    monkeypatch.setattr(robustness, "LONGEST", 0.0)
    named = {
        name: module
        for name, module in robustness.parts().items()
        if name in ("dirichlets", "soak")
    }
    monkeypatch.setattr(robustness, "parts", lambda: named)
    assert not robustness.run([], 0.01, path)
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [(row["case"], row["benchmark"]) for row in rows] == [
        ("dirichlets", "crashes and hangs"),
        ("soak", "crashes and hangs"),
        ("total", "wall time"),
        ("total", "CPU time"),
    ]


def test_rows_and_mistakes(tmp_path):
    assert invoke("robustness", "--only", "dirichlet", "--results", tmp_path).exit_code == 1
    arguments = ("--only", "dirichlets", "--scale", 0.01, "--results", tmp_path)
    assert invoke("robustness", *arguments).exit_code == 0
    lines = (tmp_path / "robustness.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["case"] for line in lines} == {"dirichlets"}
    assert "| dirichlets | distributions | 10,000 | – |" in table(tmp_path)


def test_wrong_values_and_errors_are_counted(monkeypatch, tmp_path):
    broken = {"mean": lambda d: (d.mean.where(d.mean < 0.5, np.nan), 0, 1)}
    monkeypatch.setattr(dirichlets, "RANGES", broken)
    assert dirichlets.measure(Place(tmp_path, 0.01))[-1].value > 0

    # As without a digest.
    monkeypatch.setattr(checkpoint, "_verified", lambda data: data[len(checkpoint.HEAD) + 32 :])
    counted = {each.name: each.value for each in files.measure(Place(tmp_path, 0.02))}
    assert counted["damaged files whose content was used"] > 0


def test_a_payload_runs_code(tmp_path):
    marker = tmp_path / "marker"
    pickle.loads(_damage.payload(marker))
    assert marker.exists()


def test_damage_changes_bytes_and_descriptions():
    draw, description = Random(0), {"a": {"b": [1, 2]}, "c": 3}
    assert sum(_damage.damaged(draw, bytes(100)) != bytes(100) for _ in range(20)) > 15
    assert all(_damage.redescribed(draw, description) != description for _ in range(20))
    assert description == {"a": {"b": [1, 2]}, "c": 3}
