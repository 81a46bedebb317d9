"""A classifier that is trained already becomes density aware, and learns of new surroundings."""

import copy
import pickle

import pytest
import torch
from torch import nn

import daedl
from daedl import NotFittedError
from daedl.methods import DAEDL, Retrofit, Softmax
from daedl.outputs import Outputs


@pytest.fixture(scope="module")
def trained(blobs):
    """An ordinary module, trained by an ordinary loop."""
    torch.manual_seed(0)
    module = nn.Sequential()
    module.add_module("body", nn.Sequential(nn.Linear(4, 16), nn.ReLU()))
    module.add_module("head", nn.Linear(16, 3))
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(blobs[0]), blobs[1]).backward()
        optimizer.step()
    return module


def test_the_images_and_labels_of_a_whole_set_are_taken_too(trained, blobs):
    one = daedl.wrap(trained, features="body").fit_post_hoc(blobs)
    other = daedl.wrap(trained, features="body").fit_post_hoc([blobs])
    torch.testing.assert_close(one.predict(blobs[0]).probs, other.predict(blobs[0]).probs)
    assert one.fit_post_hoc(blobs).revisions[0].samples == len(blobs[0])
    assert one.calibrate(blobs, daedl.MaxRejectionRate(0.1)) == other.calibrate(
        [blobs], daedl.MaxRejectionRate(0.1)
    )
    dataset = torch.utils.data.TensorDataset(*blobs)
    third = daedl.wrap(trained, features="body").fit_post_hoc(dataset)
    torch.testing.assert_close(third.predict(blobs[0]).probs, other.predict(blobs[0]).probs)
    with pytest.raises(ValueError, match="610 images but 609 labels"):
        one.fit_post_hoc((blobs[0], blobs[1][1:]))
    with pytest.raises(TypeError, match="tuple of ndarray, ndarray; expected a pair of tensors"):
        one.fit_post_hoc((blobs[0].numpy(), blobs[1].numpy()))


def test_wrapped_without_training(trained, blobs):
    before = copy.deepcopy(trained.state_dict())
    logits = trained(blobs[0])
    model = daedl.wrap(trained, features="body").fit_post_hoc([blobs])
    p = model.predict(blobs[0])
    assert torch.equal(p.labels, logits.argmax(-1))
    torch.testing.assert_close(p.log_alpha, p.density_score[:, None] * logits)
    assert all(torch.equal(before[name], value) for name, value in trained.state_dict().items())
    far = model.predict(300 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0)))
    plain = daedl.wrap(trained, "body", "softmax").fit_post_hoc([blobs])
    assert daedl.metrics.auroc(p.epistemic, far.epistemic) > 0.9
    assert (
        daedl.metrics.auroc(
            plain.predict(blobs[0]).aleatoric, plain.predict(300 * blobs[0]).aleatoric
        )
        < 0.5
    )  # the plain network is surer far away


@pytest.mark.parametrize("method", ["ddu", "knn", "energy", "mahalanobis", "temperature"])
def test_other_ways_to_read_a_trained_network(trained, blobs, method):
    model = daedl.wrap(trained, "body", method, class_names=["a", "b", "c"]).fit_post_hoc([blobs])
    assert model.class_names == ["a", "b", "c"]
    assert torch.equal(model.predict(blobs[0]).labels, trained(blobs[0]).argmax(-1))


def test_settings_and_names_are_checked(trained, blobs):
    with pytest.raises(
        ValueError, match=r"unknown module for `features` 'boddy'.*did you mean 'body'"
    ):
        daedl.wrap(trained, "boddy").fit_post_hoc([blobs])
    with pytest.raises(TypeError, match="expected a pair of tensors"):
        daedl.wrap(trained, "body").fit_post_hoc([])
    assert daedl.wrap(trained, "body", covariance="tied").fit_post_hoc([blobs]).method == Retrofit(
        covariance="tied"
    )


@pytest.mark.parametrize("method", ["daedl", "f-edl", "postnet", "sngp"])
def test_methods_that_would_change_the_module_are_refused(trained, blobs, method):
    logits = trained(blobs[0])
    with pytest.raises(ValueError, match=r"needs a training of its own.*take 'retrofit'"):
        daedl.wrap(trained, "body", method)
    assert torch.equal(trained(blobs[0]), logits)


def test_batches_that_come_once_are_all_used(trained, blobs):
    batches = zip(blobs[0].split(100), blobs[1].split(100), strict=True)
    model = daedl.wrap(trained, "body").fit_post_hoc(batches)
    assert model.revisions[0].samples == 610


def test_it_is_daedl_on_the_training_of_softmax():
    assert Retrofit(covariance="tied").training_method() == Softmax()
    out = Outputs(torch.randn(90, 4), torch.randn(90, 3))
    targets = torch.arange(90) % 3
    ours, theirs = (
        method.predict(out, method.fit(out, targets)) for method in (Retrofit(), DAEDL())
    )
    assert torch.equal(ours.log_alpha, theirs.log_alpha)


class TestRefit:
    def test_merged_samples_versions_and_thresholds(self, trained, blobs, tmp_path):
        model = daedl.wrap(trained, "body").fit_post_hoc([blobs])
        model.calibrate([blobs])
        assert [each.samples for each in model.revisions] == [610]
        weights = copy.deepcopy(model.network.state_dict())
        elsewhere = blobs[0] + 2
        score = model.predict(elsewhere).density_score.mean()
        assert model.update_post_hoc([(elsewhere, blobs[1])], note="camera 2") is model
        assert model.predict(elsewhere).density_score.mean() > score
        assert model.thresholds is None
        assert all(
            torch.equal(weights[name], value) for name, value in model.network.state_dict().items()
        )
        last = model.revisions[-1]
        assert (last.samples, last.merged, last.note) == (610, True, "camera 2")
        model.save(tmp_path / "m.daedl")
        wrapped = daedl.networks.FeatureModule(copy.deepcopy(trained), "body", (4,))
        for twin in (
            daedl.Classifier.load(tmp_path / "m.daedl", wrapped),
            pickle.loads(pickle.dumps(model)),
        ):
            assert twin.revisions == model.revisions
            assert torch.equal(
                twin.predict(elsewhere).log_alpha, model.predict(elsewhere).log_alpha
            )
        model.fit_post_hoc([blobs])
        assert len(model.revisions) == 1

    @pytest.mark.parametrize("method", ["ddu", "mahalanobis"])
    def test_gaussians_of_all_samples(self, trained, blobs, method):
        halves = [
            (part, targets)
            for part, targets in zip(blobs[0].split(305), blobs[1].split(305), strict=True)
        ]
        parts = daedl.wrap(trained, "body", method).fit_post_hoc(halves[:1])
        parts.update_post_hoc(halves[1:])
        whole = daedl.wrap(trained, "body", method).fit_post_hoc(halves)
        torch.testing.assert_close(
            parts.predict(blobs[0]).epistemic,
            whole.predict(blobs[0]).epistemic,
            rtol=1e-3,
            atol=1e-3,
        )

    def test_what_has_nothing_to_merge_into_says_so(self, trained, blobs):
        with pytest.raises(
            NotFittedError, match=r"nothing fitted to merge.*call fit_post_hoc first"
        ):
            daedl.wrap(trained, "body", "energy").fit_post_hoc([blobs]).update_post_hoc([blobs])
        knn = daedl.wrap(trained, "body", "knn").fit_post_hoc([blobs])
        with pytest.raises(
            NotImplementedError, match=r"knn keeps no statistics.*call fit_post_hoc with all"
        ):
            knn.update_post_hoc([blobs])
