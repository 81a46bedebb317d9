"""Two moons: the paper's first figure in numbers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from daedl import data as datasets
from daedl.demo import moons
from daedl.demo.training import Training
from daedl.methods import Softmax
from daedl.prediction import Prediction
from daedl_bench import rows, runner, spec
from daedl_bench.store import Store

SHIPPED = moons.Settings()


@pytest.fixture(scope="module")
def result() -> moons.Result:
    settings = replace(SHIPPED, training=Training(30, batch_size=64, patience=30))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return moons.run(1, settings)
    finally:
        torch.set_num_threads(threads)


def test_only_daedl_is_uncertain_away_from_the_data(result: moons.Result) -> None:
    mean = {
        row.method: row.value
        for row in result.rows()
        if (row.data, row.metric) == ("cluster", "mean")
    }
    assert mean["daedl"] > 0.95
    assert mean["edl"] < 0.3
    assert mean["softmax"] < 0.1


def test_daedl_is_certain_amid_the_data_and_right(result: moons.Result) -> None:
    found = {(row.method, row.metric): row.value for row in result.rows() if row.data == "test"}
    assert found["daedl", "mean"] < 0.3
    assert all(found[name, "accuracy"] > 0.97 for name in ("softmax", "edl", "daedl"))


def test_the_whole_rim_of_the_plane_is_uncertain_under_daedl_alone(result: moons.Result) -> None:
    def rim(name: str) -> torch.Tensor:
        plane = moons.plane(result.trained[name], points=40)
        return torch.cat([plane[0], plane[-1], plane[:, 0], plane[:, -1]])

    assert rim("daedl").min() > 0.95
    assert rim("softmax").mean() < 0.3
    assert rim("edl").mean() < 0.5


def test_variance_is_a_share_of_its_maximum() -> None:
    probs = torch.tensor([[1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]])
    expected = torch.tensor([0.0, 1.0, 0.5 / 0.75])
    torch.testing.assert_close(moons.variance(Prediction.from_probs(probs)), expected)


def test_the_plane_has_rows_along_y(result: moons.Result) -> None:
    plane = moons.plane(result.trained["softmax"], points=7)
    corner = torch.tensor([[moons.X_RANGE[1], moons.Y_RANGE[0]]])
    expected = moons.variance(result.trained["softmax"].classifier.predict(corner))
    torch.testing.assert_close(plane[0, -1:], expected, atol=1e-6, rtol=1e-4)


def test_the_parts_are_different_points() -> None:
    data = moons.load(0, SHIPPED)
    parts = [data.train[0], data.val[0], data.test[0]]
    assert [len(part) for part in parts] == [1000, 500, 500]
    assert len(torch.cat(parts).unique(dim=0)) == 2000
    assert torch.equal(moons.load(0, SHIPPED).train[0], data.train[0])
    assert not torch.equal(moons.load(1, SHIPPED).train[0], data.train[0])


def test_the_check_tells_what_the_figure_claims(result: moons.Result) -> None:
    found = result.rows()
    verdict = moons.checks(found)
    assert len(verdict) == 4
    assert all(verdict.values()), verdict
    # A softmax in DAEDL's place is found out.
    swapped = [
        replace(row, method={"softmax": "daedl"}.get(row.method, "softmax")) for row in found
    ]
    assert not moons.checks(swapped)["DAEDL is uncertain far from the data (at least 0.9)"]
    far = result.data.far()
    assert torch.cdist(far, result.data.train[0]).min() > moons.FAR
    assert 1000 < len(far) < 10000


def test_two_moons_run_as_an_experiment(
    result: moons.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seed that is there costs nothing, and figures that don't bear the claims out are told."""
    asked = []

    def trained_before(seed: int, *_: object) -> moons.Result:
        asked.append(seed)
        return result

    monkeypatch.setattr(moons, "run", trained_before)
    path = tmp_path / "two-moons.jsonl"
    store = Store(tmp_path / "cache")
    arguments = {"load": datasets.load, "store": store, "results": path, "seeds": [1]}
    key = SHIPPED.key()
    ours = [replace(row, spec=key) for row in result.rows()]
    rows.save(path, ours)
    assert runner.run(spec.catalogue(), "two-moons", **arguments) == []
    assert asked == [1]  # for the picture, which is missing
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert runner.run(spec.catalogue(), "two-moons", **arguments) == []
    assert asked == [1]
    assert len(rows.load(path)) == len(result.rows())
    rows.save(path, [replace(row, value=0.0) for row in ours])
    (failure,) = runner.run(spec.catalogue(), "two-moons", **arguments)
    assert "DAEDL is uncertain far from the data" in str(failure)
    with pytest.raises(ValueError, match="leave them out"):
        runner.run(spec.catalogue(), "two-moons", methods=["edl"], **arguments)


def test_the_key_tells_settings_apart() -> None:
    bare = replace(SHIPPED.methods[-1], spectral=None)
    others = (
        replace(SHIPPED, noise=0.2),
        replace(SHIPPED, training=Training(30, batch_size=64, patience=20)),
        replace(SHIPPED, methods=SHIPPED.methods[:2]),
        replace(SHIPPED, methods=(*SHIPPED.methods[:2], bare)),
    )
    assert len({SHIPPED.key(), *(each.key() for each in others)}) == 5


def test_settings_are_those_of_the_experiments_file() -> None:
    found = moons.Settings.of(
        spec.catalogue(
            """
            protocol = {}
            method.plain = { name = "softmax" }
            [experiment.two-moons]
            title = "moons"
            kind = "moons"
            methods = ["plain"]
            settings.samples = 10
            settings.noise = 0.3
            settings.hidden = [4]
            settings.training = { max_epochs = 1, batch_size = 5, patience = 1 }
            """
        )
    )
    assert found == moons.Settings((Softmax(),), 10, 0.3, (4,), Training(1, 5, 1))
    assert list(moons.run(0, found).trained) == ["softmax"]
