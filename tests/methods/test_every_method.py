"""One test for all methods of the table, so that a new one can't escape it."""

import copy
from functools import partial

import pytest
import torch

import daedl
from daedl import methods
from daedl.networks import MLP
from daedl.outputs import Outputs

fit = partial(daedl.fit, accelerator="cpu", progress=False)


@pytest.fixture(scope="module", params=list(methods.METHODS))
def method(request):
    return methods.build(request.param)


def network():
    torch.manual_seed(0)
    return MLP(4, 3, hidden=(16, 16))


@pytest.fixture(scope="module")
def trained(method, blobs):
    """Trained briefly, at a rate at which a few epochs suffice."""
    classifier = daedl.Classifier(network(), method)
    history = fit(classifier, blobs, blobs, max_epochs=25, learning_rate=2e-2)
    return classifier, history


def outputs(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20, 6, generator=generator, dtype=dtype)
    logits = torch.randn(20, 3, generator=generator, dtype=dtype)
    return Outputs(features, logits), torch.arange(20) % 3


def test_table_and_names(method):
    assert methods.METHODS[method.name] is type(method)
    assert method.paper
    assert type(method).__doc__


def test_arguments_build_the_method_again(method):
    assert methods.build(method.name, **method.arguments()) == method


def test_loss_learns_and_predictions_are_right(trained, blobs):
    classifier, history = trained
    losses = [epoch.val_loss for epoch in history.epochs]
    assert min(losses) < 0.6 * losses[0]
    assert daedl.metrics.accuracy(classifier.predict(blobs[0]).labels, blobs[1]) > 0.85


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_probabilities(method, dtype):
    out, targets = outputs(dtype)
    losses = method.loss(out, targets, 0)
    assert losses.shape == (20,)
    assert losses.dtype == dtype
    p = method.predict(out, method.fit(out, targets))
    assert p.probs.shape == (20, 3)
    assert p.probs.dtype == dtype
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(20, dtype=dtype))
    for score in p.scores().values():
        assert score.shape == (20,)
    assert torch.equal(p.labels, out.logits.argmax(-1))


@pytest.mark.parametrize("size", [80.0, 1e-30])
def test_extreme_logits_stay_finite(method, size):
    out, targets = outputs()
    logits = (size * out.logits.sign()).requires_grad_()
    extreme = Outputs(out.features, logits)
    loss = method.loss(extreme, targets, 100).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    p = method.predict(Outputs(out.features, logits.detach()), method.fit(out, targets))
    assert all(torch.isfinite(score).all() for score in p.scores().values())


def test_uncertainty_is_larger_far_away(trained, blobs):
    """Easy OOD: nearer to the decision boundary for all, further from the data for a density."""
    classifier, _ = trained
    inside = classifier.predict(blobs[0])
    between = classifier.predict(torch.zeros(1, 4) + blobs[0].mean(0))
    certain = inside.aleatoric.median()
    assert between.aleatoric.item() > certain
    if inside.density_score is not None:
        outside = classifier.predict(
            40 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
        )
        for name, score in inside.scores().items():
            assert daedl.metrics.auroc(score, outside.scores()[name]) > 0.95, name


def test_saved_and_loaded_predicts_the_same(trained, blobs, tmp_path):
    classifier, _ = trained
    classifier.save(tmp_path / "model.daedl")
    again = daedl.Classifier.load(tmp_path / "model.daedl")
    assert again.method == classifier.method
    for ours, theirs in zip(
        classifier.predict(blobs[0]).scores().values(),
        again.predict(blobs[0]).scores().values(),
        strict=True,
    ):
        assert torch.equal(ours, theirs)


def test_deepcopy_is_independent(trained, blobs):
    classifier, _ = trained
    expected = classifier.predict(blobs[0]).probs
    twin = copy.deepcopy(classifier)
    with torch.no_grad():
        for parameter in twin.network.parameters():
            parameter.zero_()
    assert torch.equal(classifier.predict(blobs[0]).probs, expected)


def test_predicting_leaves_no_trace(trained, blobs):
    classifier = copy.deepcopy(trained[0]).train()
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    first, second = classifier.predict(blobs[0]), classifier.predict(blobs[0])
    assert torch.equal(first.probs, second.probs)
    assert classifier.training
    assert all(torch.equal(before[name], value) for name, value in classifier.state_dict().items())


def test_runs_in_float64(method, blobs):
    classifier = daedl.Classifier(network().double(), method)
    fit(classifier, (blobs[0].double(), blobs[1]), max_epochs=1, precision="64-true")
    assert classifier.predict(blobs[0].double()).probs.dtype == torch.float64


def test_unknown_settings_are_refused(method):
    with pytest.raises(ValueError, match="expected 'mean' or 'sum'"):
        methods.build(method.name, reduction="average")
    with pytest.raises(ValueError, match=r"unknown method 'deadl'.*did you mean 'daedl'"):
        methods.build("deadl")
