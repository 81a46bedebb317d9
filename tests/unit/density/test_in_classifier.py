"""Normalised features and selected covariances in saved, exported and distributed classifiers."""

import pytest
import torch

import daedl
from daedl import export
from daedl.methods import DAEDL, Retrofit
from daedl.networks import MLP

SELECTED = {"covariance": "auto", "rank": 3, "normalize_features": True, "leave_one_out": True}


def classifier(blobs, method=DAEDL, **settings):
    torch.manual_seed(0)
    model = daedl.Classifier(
        MLP(4, 3, hidden=(16,)), method(normalizer="half-quantile", **settings)
    )
    return model.fit_post_hoc([blobs])


@pytest.mark.parametrize(
    "covariance", ["full", "tied", "diagonal", "low-rank", "tied-low-rank", "auto"]
)
@pytest.mark.parametrize("normalize", [False, True])
def test_saved_classifier_is_the_same_and_can_be_updated(blobs, tmp_path, covariance, normalize):
    model = classifier(blobs, Retrofit, covariance=covariance, rank=3, normalize_features=normalize)
    model.save(tmp_path / "m.daedl")
    again = daedl.Classifier.load(tmp_path / "m.daedl")
    assert again.method == model.method
    assert torch.equal(again.predict(blobs[0]).log_alpha, model.predict(blobs[0]).log_alpha)
    again.update_post_hoc([blobs], note="again")
    assert again.fitted.density.counts.sum() == 1220
    assert again.fitted.density.structure == model.fitted.density.structure
    assert again.fitted.density.normalized == normalize


def test_a_class_without_samples_is_named(blobs):
    inputs, targets = blobs
    model = daedl.Classifier(MLP(4, 3, hidden=(16,)), "daedl", ["cat", "dog", "ship"])
    with pytest.raises(ValueError, match="class 'dog' among"):
        model.fit_post_hoc([(inputs[targets != 1], targets[targets != 1])])


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["tied", "low-rank", "tied-low-rank"])
def test_exported_classifier_agrees_with_pytorch(blobs, covariance):
    model = classifier(blobs, covariance=covariance, rank=3, normalize_features=True)
    graph = export.to_torch_export(model).module()
    images = torch.cat([blobs[0][:50], torch.zeros(1, 4), 1e6 * blobs[0][:50]])
    for name, expected in model.predict(images).columns().items():
        torch.testing.assert_close(graph(images)[name], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("covariance", ["low-rank", "tied-low-rank"])
def test_onnx_agrees_with_pytorch(blobs, tmp_path, covariance):
    """`to_onnx` compares both before it writes the file."""
    pytest.importorskip("onnxruntime")
    model = classifier(blobs, covariance=covariance, rank=3, normalize_features=True)
    assert export.to_onnx(model, tmp_path / "m.onnx").path.exists()


def test_two_processes_select_the_density_of_one(blobs, two_processes):
    features, targets = blobs
    model = classifier(blobs, **SELECTED)
    daedl.fit(model, blobs, (features[:99], targets[:99]), max_epochs=1, **two_processes)
    distributed = model.fitted
    single = model.fit_post_hoc([blobs]).fitted
    assert distributed.density.structure == single.density.structure
    assert distributed.density.candidates == pytest.approx(single.density.candidates, rel=1e-9)
    torch.testing.assert_close(
        distributed.density.scatter, single.density.scatter, rtol=1e-9, atol=1e-9
    )
    assert distributed.normalizer.low == pytest.approx(single.normalizer.low, rel=1e-5)


def test_two_processes_agree_on_directions(blobs, two_processes):
    """Samples are assigned round-robin, so that their pilot is that of one process."""
    features, targets = blobs
    settings = {"covariance": "tied-low-rank", "rank": 2, "normalize_features": True}
    model = classifier(blobs, **settings)
    daedl.fit(model, blobs, (features[:99], targets[:99]), max_epochs=1, **two_processes)
    distributed = model.fitted.density
    single = model.fit_post_hoc([blobs]).fitted.density
    assert single.structure == "tied-low-rank"
    assert torch.equal(distributed.directions, single.directions)
    torch.testing.assert_close(distributed.scatter, single.scatter, rtol=1e-9, atol=1e-9)
