"""Two moons as an experiment: settings, keys, rows, and the claims of the paper's figure."""

from dataclasses import replace

import pytest
import torch

from daedl.demo import moons
from daedl.demo.training import Progress, Training
from daedl.methods import Softmax
from daedl_bench import results, runner, two_moons
from daedl_bench.cache import Cache
from daedl_bench.spec import catalogue
from daedl_bench.workspace import Workspace

SPECS = catalogue()
SHIPPED = two_moons.settings_of(SPECS)


@pytest.fixture(scope="module")
def result():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return moons.run(1, replace(SHIPPED, training=Training(30, batch_size=64, patience=30)))
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

    monkeypatch.setattr(moons, "run", trained_before)
    path, cache = tmp_path / "two-moons.jsonl", Cache(tmp_path / "cache")
    space = Workspace(lambda *_: None, cache, Progress(show=False))
    rows = [
        replace(row, spec=two_moons.key(SHIPPED))
        for row in two_moons.rows_of(result, experiment="two-moons")
    ]
    results.save(path, rows)
    assert runner.run(SPECS, "two-moons", space, path, seeds=[1]) == []
    assert seeds == [1]  # for the picture, which is missing
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert runner.run(SPECS, "two-moons", space, path, seeds=[1]) == []
    assert seeds == [1]
    assert results.load(path) == rows
    results.save(path, [replace(row, value=0.0) for row in rows])
    (failure,) = runner.run(SPECS, "two-moons", space, path, seeds=[1])
    assert "DAEDL is uncertain far from the data" in str(failure)
    with pytest.raises(ValueError, match="leave them out"):
        runner.run(SPECS, "two-moons", space, path, methods=["edl"])


def test_keys_differ_where_settings_differ():
    bare = replace(SHIPPED.methods[-1], spectral=None)
    others = (
        replace(SHIPPED, noise=0.2),
        replace(SHIPPED, training=Training(30, batch_size=64, patience=20)),
        replace(SHIPPED, methods=SHIPPED.methods[:2]),
        replace(SHIPPED, methods=(*SHIPPED.methods[:2], bare)),
    )
    assert len({two_moons.key(each) for each in (SHIPPED, *others)}) == 5


def test_settings_come_from_the_catalogue():
    settings = two_moons.settings_of(
        catalogue(
            """
            [experiment.two-moons]
            title = "moons"
            kind = "moons"
            methods = ["softmax"]
            settings.samples = 10
            settings.noise = 0.3
            settings.hidden = [4]
            settings.training = { max_epochs = 1, batch_size = 5, patience = 1 }
            """
        )
    )
    assert settings == moons.Settings((Softmax(),), 10, 0.3, (4,), Training(1, 5, 1))
    # The demo has the same data and training, and the default of DAEDL.
    assert replace(moons.Settings(), methods=SHIPPED.methods) == SHIPPED
    assert [each.name for each in moons.Settings().methods] == ["softmax", "edl", "daedl"]
