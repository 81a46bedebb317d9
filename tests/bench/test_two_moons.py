"""Two moons: settings, keys, rows, and the claims of the paper's figure."""

from dataclasses import replace

import pytest
import torch
import typer

from daedl.demo import moons
from daedl.demo.training import Training
from daedl_bench import results
from daedl_bench.studies import two_moons
from daedl_bench.studies.two_moons import SETTINGS


@pytest.fixture(scope="module")
def result():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return moons.run(1, replace(SETTINGS, training=Training(30, batch_size=64, patience=30)))
    finally:
        torch.set_num_threads(threads)


def test_daedl_alone_is_uncertain_away_from_the_data(result):
    rows = two_moons.rows_of(result, experiment="two-moons")
    mean = {row.method: row.value for row in rows if (row.data, row.metric) == ("cluster", "mean")}
    assert mean["daedl"] > 0.95
    assert mean["edl"] < 0.3
    assert mean["softmax"] < 0.1
    test = {(row.method, row.metric): row.value for row in rows if row.data == "test"}
    assert test["daedl", "mean"] < 0.3
    assert all(test[name, "accuracy"] > 0.97 for name in ("softmax", "edl", "daedl"))


def test_claims_are_compared_with_the_rows(result):
    rows = two_moons.rows_of(result, experiment="two-moons")
    verdict = two_moons.checks(results.frame(rows))
    assert len(verdict) == 4
    assert all(verdict.values()), verdict
    swapped = [replace(row, method={"softmax": "daedl"}.get(row.method, "softmax")) for row in rows]
    assert not two_moons.checks(results.frame(swapped))[
        "DAEDL is uncertain far from the data (at least 0.9)"
    ]
    assert two_moons.checks(results.frame([])) == {}


def test_a_seed_with_rows_and_a_picture_is_not_run_again(result, tmp_path, monkeypatch):
    seeds = []

    def trained_before(seed, *_):
        seeds.append(seed)
        return result

    def run():
        with pytest.raises(typer.Exit) as ended:
            two_moons.main("1", tmp_path)
        return ended.value.exit_code

    monkeypatch.setattr(moons, "run", trained_before)
    path = tmp_path / "two-moons.jsonl"
    rows = two_moons.rows_of(result, experiment="two-moons", spec=two_moons.key(SETTINGS))
    results.save(path, rows)
    assert run() == 0
    assert seeds == [1]  # for the picture, which is missing
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert run() == 0
    assert seeds == [1]
    assert results.load(path) == rows
    results.save(path, [replace(row, value=0.0) for row in rows])
    assert run() == 1


def test_keys_differ_where_settings_differ():
    bare = replace(SETTINGS.methods[-1], spectral=None)
    others = (
        replace(SETTINGS, noise=0.2),
        replace(SETTINGS, training=Training(30, batch_size=64, patience=20)),
        replace(SETTINGS, methods=SETTINGS.methods[:2]),
        replace(SETTINGS, methods=(*SETTINGS.methods[:2], bare)),
    )
    assert len({two_moons.key(each) for each in (SETTINGS, *others)}) == 5


def test_data_and_training_are_those_of_the_demo():
    assert replace(moons.Settings(), methods=SETTINGS.methods) == SETTINGS
    assert [each.name for each in moons.Settings().methods] == ["softmax", "edl", "daedl"]
