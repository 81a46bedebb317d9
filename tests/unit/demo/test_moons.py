"""Two moons: the claims of the paper's first figure."""

from dataclasses import replace

import pytest
import torch

from daedl.cli.common import using_threads
from daedl.demo import moons
from daedl.demo.training import Training
from daedl.prediction import Prediction

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result() -> moons.Result:
    with using_threads(1):
        training = Training(30, batch_size=64, patience=30)
        return moons.run(1, replace(moons.Settings(), training=training))


def mean_uncertainty(result: moons.Result, data: str) -> dict[str, float]:
    return {
        method: next(each.value for each in datasets[data] if each.task == "uncertainty")
        for method, datasets in result.measure().items()
    }


def test_only_daedl_is_uncertain_on_the_ood_cluster(result: moons.Result) -> None:
    mean = mean_uncertainty(result, "cluster")
    assert mean["daedl"] > 0.95
    assert mean["edl"] < 0.3
    assert mean["softmax"] < 0.1


def test_daedl_is_certain_on_test_points(result: moons.Result) -> None:
    assert mean_uncertainty(result, "test")["daedl"] < 0.3


def test_every_method_is_accurate(result: moons.Result) -> None:
    for datasets in result.measure().values():
        assert next(x.value for x in datasets["test"] if x.metric == "accuracy") > 0.97


def test_only_daedl_is_uncertain_along_the_border_of_the_plane(result: moons.Result) -> None:
    def border(name: str) -> torch.Tensor:
        plane = moons.plane(result.trained[name], points=40)
        return torch.cat([plane[0], plane[-1], plane[:, 0], plane[:, -1]])

    # The score decreases smoothly with the density: the border nearest to the moons keeps some evidence.
    assert border("daedl").min() > 0.8
    assert border("daedl").mean() > 0.95
    assert border("softmax").mean() < 0.3
    assert border("edl").mean() < 0.5


def test_variance_is_a_fraction_of_its_maximum() -> None:
    probs = torch.tensor([[1.0, 0, 0, 0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]])
    expected = torch.tensor([0.0, 1.0, 0.5 / 0.75])
    torch.testing.assert_close(moons.variance(Prediction.from_probs(probs)), expected)


def test_rows_of_the_plane_run_along_y(result: moons.Result) -> None:
    plane = moons.plane(result.trained["softmax"], points=7)
    corner = torch.tensor([[moons.X_RANGE[1], moons.Y_RANGE[0]]])
    expected = moons.variance(result.trained["softmax"].classifier.predict(corner))
    torch.testing.assert_close(plane[0, -1:], expected, atol=1e-6, rtol=1e-4)


def test_splits_are_disjoint_and_seeded() -> None:
    settings = moons.Settings()
    data = moons.load(0, settings)
    splits = [data.train[0], data.val[0], data.test[0]]
    assert [len(split) for split in splits] == [1000, 500, 500]
    assert len(torch.cat(splits).unique(dim=0)) == 2000
    assert torch.equal(moons.load(0, settings).train[0], data.train[0])
    assert not torch.equal(moons.load(1, settings).train[0], data.train[0])


def test_far_points_keep_their_distance_from_training_points(result: moons.Result) -> None:
    far = result.data.far()
    assert torch.cdist(far, result.data.train[0]).min() > moons.FAR
    assert 1000 < len(far) < 10000
