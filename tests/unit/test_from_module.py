"""Classifiers built from trained modules, and updates with more data."""

import copy
import pickle

import pytest
import torch
from torch import nn

import daedl
from daedl import NotFittedError
from daedl.methods import DAEDL, Retrofit, Softmax
from daedl.outputs import Outputs


def from_module(module, **settings):
    return daedl.Classifier.from_module(module, "body", input_shape=(4,), **settings)


@pytest.fixture(scope="module")
def trained(blobs):
    """A module trained with a plain PyTorch loop."""
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


def test_all_forms_of_data_give_the_same_fit(trained, blobs):
    one = daedl.Classifier.from_module(trained, features="body", input_shape=(4,)).fit_post_hoc(
        blobs
    )
    other = daedl.Classifier.from_module(trained, features="body", input_shape=(4,)).fit_post_hoc(
        [blobs]
    )
    torch.testing.assert_close(one.predict(blobs[0]).probs, other.predict(blobs[0]).probs)
    assert one.fit_post_hoc(blobs).revisions[0].samples == len(blobs[0])
    assert one.calibrate(blobs, daedl.MaxRejectionRate(0.1)) == other.calibrate(
        [blobs], daedl.MaxRejectionRate(0.1)
    )
    dataset = torch.utils.data.TensorDataset(*blobs)
    third = daedl.Classifier.from_module(trained, features="body", input_shape=(4,)).fit_post_hoc(
        dataset
    )
    torch.testing.assert_close(third.predict(blobs[0]).probs, other.predict(blobs[0]).probs)
    with pytest.raises(ValueError, match="610, 609"):
        one.fit_post_hoc((blobs[0], blobs[1][1:]))
    fourth = one.fit_post_hoc((blobs[0].numpy(), blobs[1].numpy()))
    torch.testing.assert_close(fourth.predict(blobs[0]).probs, other.predict(blobs[0]).probs)


def test_post_hoc_fit_keeps_weights_and_labels(trained, blobs):
    before = copy.deepcopy(trained.state_dict())
    logits = trained(blobs[0])
    model = daedl.Classifier.from_module(trained, features="body", input_shape=(4,)).fit_post_hoc(
        [blobs]
    )
    p = model.predict(blobs[0])
    assert torch.equal(p.labels, logits.argmax(-1))
    torch.testing.assert_close(p.log_alpha, p.density_score[:, None] * logits)
    assert all(torch.equal(before[name], value) for name, value in trained.state_dict().items())
    far = model.predict(300 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0)))
    plain = from_module(trained, method="softmax").fit_post_hoc([blobs])
    assert daedl.metrics.auroc(p.epistemic, far.epistemic) > 0.9
    assert (
        daedl.metrics.auroc(
            plain.predict(blobs[0]).aleatoric, plain.predict(300 * blobs[0]).aleatoric
        )
        < 0.5
    )  # the plain network is more confident far away


@pytest.mark.parametrize("method", ["ddu", "knn", "energy", "mahalanobis", "temperature"])
def test_other_post_hoc_methods(trained, blobs, method):
    model = from_module(trained, method=method, class_names=["a", "b", "c"]).fit_post_hoc([blobs])
    assert model.class_names == ["a", "b", "c"]
    assert torch.equal(model.predict(blobs[0]).labels, trained(blobs[0]).argmax(-1))


def test_arguments_are_validated(trained, blobs):
    with pytest.raises(ValueError, match="did you mean 'body'"):
        daedl.Classifier.from_module(trained, "boddy", input_shape=(4,)).fit_post_hoc([blobs])
    with pytest.raises(ValueError, match="no batch"):
        from_module(trained).fit_post_hoc([])
    expected = Retrofit(covariance="tied", normalize_features=False)
    assert from_module(trained, covariance="tied").fit_post_hoc([blobs]).method == expected


def test_a_shape_is_required(trained):
    with pytest.raises(ValueError, match="example=inputs"):
        daedl.Classifier.from_module(trained, "body")


def test_input_shape_defaults_to_that_of_preprocess():
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2))
    preprocess = daedl.Preprocess(1, 8, mean=[0.5], std=[0.25])
    model = daedl.Classifier.from_module(module, "2", preprocess=preprocess, method="softmax")
    pixels = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    expected = module((pixels / 255 - 0.5) / 0.25).softmax(-1)
    torch.testing.assert_close(model.predict(pixels).probs, expected)


@pytest.mark.filterwarnings("ignore::daedl.DensityWarning")
def test_other_methods_are_trained_with_fit(trained, blobs):
    model = from_module(copy.deepcopy(trained), method="daedl")
    daedl.fit(model, blobs, blobs, max_epochs=2, progress=False)
    assert model.predict(blobs[0]).density_score is not None


def test_iterators_are_fully_used(trained, blobs):
    batches = zip(blobs[0].split(100), blobs[1].split(100), strict=True)
    model = from_module(trained).fit_post_hoc(batches)
    assert model.revisions[0].samples == 610


def test_retrofit_is_daedl_on_a_softmax_network():
    assert Retrofit(covariance="tied").training_method() == Softmax()
    out = Outputs(torch.randn(90, 4), torch.randn(90, 3))
    targets = torch.arange(90) % 3
    ours, theirs = (
        method.predict(out, method.fit(out, targets)) for method in (Retrofit(), DAEDL())
    )
    assert torch.equal(ours.log_alpha, theirs.log_alpha)


class TestUpdate:
    def test_update_merges_samples_and_records_a_revision(self, trained, blobs, tmp_path):
        model = from_module(trained).fit_post_hoc([blobs])
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

    @pytest.mark.parametrize("method", ["ddu", "mahalanobis", "relative-mahalanobis"])
    def test_update_equals_a_fit_to_all_samples(self, trained, blobs, method):
        halves = [
            (part, targets)
            for part, targets in zip(blobs[0].split(305), blobs[1].split(305), strict=True)
        ]
        parts = from_module(trained, method=method).fit_post_hoc(halves[:1])
        parts.update_post_hoc(halves[1:])
        whole = from_module(trained, method=method).fit_post_hoc(halves)
        torch.testing.assert_close(
            parts.predict(blobs[0]).epistemic,
            whole.predict(blobs[0]).epistemic,
            rtol=1e-3,
            atol=1e-3,
        )

    def test_methods_that_cannot_be_updated(self, trained, blobs):
        with pytest.raises(NotFittedError, match="fit_post_hoc"):
            from_module(trained, method="energy").fit_post_hoc([blobs]).update_post_hoc([blobs])
        knn = from_module(trained, method="knn").fit_post_hoc([blobs])
        with pytest.raises(NotImplementedError, match="knn"):
            knn.update_post_hoc([blobs])
