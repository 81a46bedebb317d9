"""One test for all methods of the table, so that a new one can't escape it."""

import copy
import pickle
import re
from functools import partial

import pytest
import torch

import daedl
from daedl import methods
from daedl.methods.postnet import Posterior
from daedl.networks import MLP
from daedl.outputs import Outputs, evaluating

fit = partial(daedl.fit, accelerator="cpu", progress=False)


@pytest.fixture(scope="module", params=list(methods.METHODS))
def method(request):
    # AdaTS trains a network of its own after training. Without an error in the data its temperature goes to
    # its floor, where all probabilities round to 0 and 1: one epoch will do.
    return methods.build(request.param, **({"epochs": 1} if request.param == "adats" else {}))


def network():
    torch.manual_seed(0)
    return MLP(4, 3, hidden=(16, 16))


@pytest.fixture(scope="module")
def corners():
    """Three classes near corners of a cube, far apart; and points in the middle of them."""
    generator = torch.Generator().manual_seed(0)
    noise = 0.35 * torch.randn(700, 4, generator=generator)
    targets = torch.arange(600) % 3
    known = 4 * torch.eye(4)[targets] + noise[:600]
    return known, targets, 4 * torch.tensor([1.0, 1, 1, 0]) / 3 + noise[600:]


@pytest.fixture(scope="module")
def trained(method, corners):
    """Trained briefly, at a rate at which a few epochs suffice."""
    classifier = daedl.Classifier(network(), method)
    data = corners[:2]
    history = fit(classifier, data, data, max_epochs=20, learning_rate=2e-2)
    return classifier, history


def outputs(method, dtype=torch.float32):
    """What the method's network gives in training and for prediction, and targets (60,)."""
    images = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=dtype)
    prepared = daedl.Classifier(network().to(dtype), method).network
    method.set_class_counts(prepared, torch.tensor([30, 20, 10]))
    with torch.no_grad(), evaluating(prepared):
        return prepared(images), method.forward(prepared, images), torch.arange(60) % 3


def same(found, expected):
    """Whether both have the same scores."""
    return list(found) == list(expected) and all(
        map(torch.equal, found.values(), expected.values())
    )


def test_table_and_names(method):
    assert methods.METHODS[method.name] is type(method)
    assert method.paper
    assert (method.extra_data == "held-out") == (
        method.needs_fit and method.fit_split == "validation"
    )
    assert type(method).__doc__


def test_arguments_build_the_method_again(method):
    assert methods.build(method.name, **method.arguments()) == method


def test_loss_learns_and_predictions_are_right(trained, corners):
    classifier, history = trained
    losses = [epoch.val_loss for epoch in history.epochs if epoch.phase == "training"]
    assert min(losses) < losses[0] - 0.4 * abs(losses[0])
    assert daedl.metrics.accuracy(classifier.predict(corners[0]).labels, corners[1]) > 0.85


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_probabilities(method, dtype):
    trained, predicted, targets = outputs(method, dtype)
    losses = method.loss(trained, targets, 0)
    assert losses.shape == (60,)
    assert losses.dtype == dtype
    p = method.predict(predicted, method.fit(predicted, targets))
    assert p.probs.shape == (60, 3)
    assert p.probs.dtype == dtype
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(60, dtype=dtype))
    assert "aleatoric" in p.scores()
    for score in p.scores().values():
        assert score.shape == (60,)
    assert torch.equal(p.labels, method.predict_labels(predicted))


@pytest.mark.parametrize("size", [80.0, 1e-30])
def test_extreme_logits_stay_finite(method, size):
    trained, predicted, targets = outputs(method)
    logits = (size * trained.logits.sign()).requires_grad_()
    loss = method.loss(Outputs(trained.features, logits), targets, 100).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    extreme = Outputs(predicted.features, size * predicted.logits.sign())
    p = method.predict(extreme, method.fit(predicted, targets))
    assert torch.isfinite(p.probs).all()
    assert all(torch.isfinite(score).all() for score in p.scores().values())


@pytest.mark.parametrize("size", [255.0, 1e4])
def test_extreme_images_get_finite_predictions(trained, blobs, size):
    p = trained[0].predict(size * blobs[0])
    assert torch.isfinite(p.probs).all()
    assert all(torch.isfinite(score).all() for score in p.scores().values())


def test_pixels_that_nobody_scaled_get_a_finite_gradient(method, blobs):
    """Through heads, flows and noise, too."""
    classifier = daedl.Classifier(network(), method).train()
    method.set_class_counts(classifier.network, torch.bincount(blobs[1]))
    loss = method.training_loss(classifier.network, 255 * blobs[0][:64], blobs[1][:64], 5)
    loss.backward()
    assert torch.isfinite(loss)
    for name, parameter in classifier.network.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name


def test_every_parameter_gets_a_finite_gradient(method, blobs):
    """But those of an ensemble's or a head's that a phase leaves alone."""
    classifier = daedl.Classifier(network(), method).train()
    method.set_class_counts(classifier.network, torch.bincount(blobs[1]))
    loss = method.training_loss(classifier.network, blobs[0][:64], blobs[1][:64], 5)
    loss.backward()
    for name, parameter in classifier.network.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_uncertainty_is_larger_where_there_are_no_data(trained, corners):
    """Easy OOD: in the middle of the classes for all scores, far from the data for a density.

    But not in the middle for a flow, which in some runs takes it for one of the classes.
    """
    classifier, _ = trained
    inside, between = (
        classifier.predict(corners[0]).scores(),
        classifier.predict(corners[2]).scores(),
    )
    if not isinstance(classifier.method, Posterior):
        for name, score in inside.items():
            assert daedl.metrics.auroc(score, between[name]) > 0.9, name
    if "density" in inside:
        far = 40 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
        outside = classifier.predict(far).scores()
        for name in ("density", "epistemic"):
            assert daedl.metrics.auroc(inside[name], outside[name]) > 0.95, name


def test_saved_and_loaded_predicts_the_same(trained, corners, tmp_path):
    classifier, _ = trained
    classifier.save(tmp_path / "model.daedl")
    again = daedl.Classifier.load(tmp_path / "model.daedl")
    assert again.method == classifier.method
    assert same(again.predict(corners[0]).scores(), classifier.predict(corners[0]).scores())


def test_deepcopy_is_independent(trained, corners):
    classifier, _ = trained
    expected = classifier.predict(corners[0]).scores()
    twin = copy.deepcopy(classifier)
    assert same(twin.predict(corners[0]).scores(), expected)
    with torch.no_grad():
        # What was fitted, too: a copy that shared it would spoil the original.
        for tensor in twin.state_dict().values():
            tensor.zero_()
    assert same(classifier.predict(corners[0]).scores(), expected)


def test_predicting_leaves_no_trace(trained, corners):
    classifier = copy.deepcopy(trained[0]).train()
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    first, second = classifier.predict(corners[0]), classifier.predict(corners[0])
    assert torch.equal(first.probs, second.probs)
    assert classifier.training
    assert all(torch.equal(before[name], value) for name, value in classifier.state_dict().items())


def test_pickled_predicts_the_same(trained, corners):
    classifier, _ = trained
    again = pickle.loads(pickle.dumps(classifier))
    assert torch.equal(classifier.predict(corners[0]).probs, again.predict(corners[0]).probs)


def test_runs_in_float64(method, blobs):
    data = blobs[0].double(), blobs[1]
    classifier = daedl.Classifier(network().double(), method)
    fit(classifier, data, data, max_epochs=1, precision="64-true")
    assert classifier.predict(data[0]).probs.dtype == torch.float64


def test_same_seed_same_prediction_and_no_trace_on_the_random_state(method, blobs):
    found = []
    for _ in range(2):
        classifier = daedl.Classifier(network(), method)
        state = torch.get_rng_state()
        fit(classifier, blobs, blobs, max_epochs=1, learning_rate=1e-3)
        found.append(classifier.predict(blobs[0]).probs)
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*found)


def test_wrong_outputs_and_data_are_refused(trained, method, blobs):
    """The error catalogue of the core holds whatever the method."""
    classifier, _ = trained
    outputs, targets = classifier.collect([blobs])
    with pytest.raises(ValueError, match="logits have 2 columns but the network has 3"):
        classifier.predict_outputs(Outputs(outputs.features, outputs.logits[..., :2]))
    broken = torch.full_like(outputs.logits, torch.nan)
    with pytest.raises(ValueError, match=r"logits.*NaN"):
        classifier.predict_outputs(Outputs(outputs.features, broken))
    with pytest.raises(ValueError, match="nothing to predict"):
        classifier.predict(blobs[0][:0])
    untrained = daedl.Classifier(network(), method)
    bad = torch.full((610, 4), torch.nan)
    with pytest.raises(ValueError, match=r"images of .*NaN"):
        fit(untrained, (bad, targets), blobs, max_epochs=1)
    with pytest.raises(ValueError, match="no training sample of class 2"):
        fit(untrained, (blobs[0], targets.clamp_max(1)), blobs, max_epochs=1)


def test_unknown_settings_are_refused(method):
    with pytest.raises(ValueError, match="expected 'mean' or 'sum'"):
        methods.build(method.name, reduction="average")
    with pytest.raises(ValueError, match=r"unknown method 'deadl'.*did you mean 'daedl'"):
        methods.build("deadl")
    with pytest.raises(
        ValueError, match=rf"unknown setting of {re.escape(method.name)} 'reduktion'.*'reduction'"
    ):
        methods.build(method.name, reduktion="mean")
