"""Two moons: the paper's first figure in numbers."""

from dataclasses import replace

import pytest
import torch

from daedl.demo import moons
from daedl.demo.training import Training
from daedl.prediction import Prediction

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


def test_far_points_are_far_from_all_training_points() -> None:
    data = moons.load(0, SHIPPED)
    far = data.far()
    assert torch.cdist(far, data.train[0]).min() > moons.FAR
    assert 1000 < len(far) < 10000
