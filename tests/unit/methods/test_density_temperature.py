"""The temperature T of softmax(s z / T), by which DAEDL calibrates its probabilities on held-out data."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

import daedl
from daedl import export
from daedl.methods import DAEDL, Ensemble, Retrofit
from daedl.methods.temperature import HIGHEST, LOWEST
from daedl.networks import MLP

METHODS = [DAEDL(), Retrofit(), Ensemble(member=DAEDL(), size=2)]


@pytest.fixture(scope="module")
def noisy(blobs):
    """Three classes with a fifth of the labels at random, so that the best temperature is finite."""
    inputs, targets = blobs
    generator = torch.Generator().manual_seed(1)
    other = torch.randint(3, targets.shape, generator=generator)
    swapped = torch.rand(len(targets), generator=generator) < 0.2
    return inputs, torch.where(swapped, other, targets)


def classifier(noisy, method, held_out=True):
    """Fitted to the first 400 samples, the others are held out; the logits are too large by design."""
    torch.manual_seed(0)
    network = MLP(4, 3, hidden=(16,))
    model = daedl.Classifier(network, method)
    train, val = ([tuple(part[rows] for part in noisy)] for rows in (slice(400), slice(400, None)))
    daedl.fit(model, train, max_epochs=8, learning_rate=1e-2, accelerator="cpu", progress=False)
    return model.fit_post_hoc(train, val if held_out else None)


@pytest.fixture(scope="module")
def models(noisy):
    return {method.name: classifier(noisy, method) for method in METHODS}


def scorers(model):
    return list(getattr(model.fitted, "parts", [model.fitted]))


def without_temperature(model):
    twin = copy.deepcopy(model)
    for scorer in scorers(twin):
        scorer.temperature = 1.0
    return twin


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_minimises_the_loss_on_held_out_data(models, noisy, method):
    """Against SciPy; each member of an ensemble has its own temperature."""
    model = models[method.name]
    outputs, targets = model.collect([tuple(part[400:] for part in noisy)])
    rows = np.arange(len(targets))
    for number, scorer in enumerate(scorers(model)):
        member = [outputs.features, outputs.logits]
        if isinstance(method, Ensemble):
            member = [each[:, number] for each in member]
        evidence = (scorer(member[0])[1][:, None] * member[1]).double().numpy()

        def loss(log_t, z=evidence):
            log_p, missed = log_softmax(z / math.exp(log_t), axis=1), 0.5 / (len(rows) + 1)
            return -(1 - missed) * log_p[rows, targets.numpy()].mean() - missed * log_p.mean()

        bounds = math.log(LOWEST), math.log(HIGHEST)
        best = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-9})
        assert scorer.temperature == pytest.approx(math.exp(best.x), rel=1e-4)
        assert LOWEST < scorer.temperature < HIGHEST
        assert loss(math.log(scorer.temperature)) < loss(0.0) - 1e-4


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_changes_probabilities_but_neither_their_order_nor_epistemic_scores(models, noisy, method):
    model, inputs = models[method.name], torch.cat([noisy[0], 5 * torch.randn(50, 4)])
    p, before = model.predict(inputs), without_temperature(model).predict(inputs)
    assert not torch.allclose(p.probs, before.probs, atol=1e-3)
    assert torch.equal(p.epistemic, before.epistemic)
    if not isinstance(method, Ensemble):  # a mean of probabilities has no order of its own
        assert torch.equal(p.labels, before.labels)
        assert torch.equal(p.probs.argsort(-1), before.probs.argsort(-1))
        assert torch.equal(p.log_alpha, before.log_alpha)
        scaled = (before.log_alpha / model.fitted.temperature).softmax(-1)
        torch.testing.assert_close(p.probs, scaled)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_is_one_without_held_out_data_and_if_disabled(noisy, method):
    assert [each.temperature for each in scorers(classifier(noisy, method, False))] in ([1], [1, 1])
    if not isinstance(method, Ensemble):
        disabled = classifier(noisy, type(method)(temperature=False))
        assert disabled.fitted.temperature == 1


def test_training_uses_the_validation_data(noisy):
    torch.manual_seed(0)
    train, val = (tuple(part[rows] for part in noisy) for rows in (slice(400), slice(400, None)))
    model = daedl.Classifier(MLP(4, 3, hidden=(16,)))
    daedl.fit(model, train, val, max_epochs=3, accelerator="cpu", progress=False)
    trained = model.fitted.temperature
    assert trained != 1
    assert model.fit_post_hoc([train], [val]).fitted.temperature == pytest.approx(trained, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_is_saved_and_exported(models, noisy, method, tmp_path):
    model = models[method.name]
    model.save(tmp_path / "m.daedl")
    again = daedl.Classifier.load(tmp_path / "m.daedl")
    expected = [each.temperature for each in scorers(model)]
    assert [each.temperature for each in scorers(again)] == expected
    probs = model.predict(noisy[0]).probs
    assert torch.equal(again.predict(noisy[0]).probs, probs)
    graph = export.to_torch_export(again).module()
    torch.testing.assert_close(graph(noisy[0])["probs"], probs, rtol=1e-5, atol=1e-6)


def test_is_kept_when_samples_are_merged(models, noisy):
    model = copy.deepcopy(models["daedl"])
    model.update_post_hoc([tuple(part[400:] for part in noisy)])
    assert model.fitted.temperature == models["daedl"].fitted.temperature != 1


def test_drops_thresholds_of_earlier_probabilities(models, noisy):
    model = copy.deepcopy(models["daedl"])
    model.calibrate([noisy])
    model.fit_outputs_held_out(*model.collect([noisy]))
    assert model.thresholds is None


def test_calibrates(models, noisy):
    """The Brier score on held-out data decreases."""
    model, (inputs, targets) = models["daedl"], noisy

    def brier(each):
        truth = torch.nn.functional.one_hot(targets[400:], 3)
        return (each.predict(inputs[400:]).probs - truth).square().sum(-1).mean()

    assert brier(model) < brier(without_temperature(model))
