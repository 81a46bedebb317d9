"""Tests that every method of `daedl.methods.regression.METHODS` must pass."""

import copy
import dataclasses
import json
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn

import daedl
from daedl import methods
from daedl.checks import NotFittedError
from daedl.export import to_torch_export
from daedl.export.graph import random_images
from daedl.methods import regression
from daedl.methods.dropout import DropoutPasses
from daedl.networks import MLP, FeatureModule
from daedl.outputs import Outputs, evaluating

fit = partial(daedl.fit, accelerator="cpu", progress=False)


@pytest.fixture(scope="module", params=list(regression.METHODS))
def method(request):
    return regression.build(request.param)


def network(targets=2):
    torch.manual_seed(0)
    return MLP(4, targets, hidden=(16,))


@pytest.fixture(scope="module")
def table():
    """Two targets in units of very different size."""
    generator = torch.Generator().manual_seed(0)
    samples = 5 + 2 * torch.randn(400, 4, generator=generator)
    noise = torch.randn(400, 2, generator=generator)
    targets = torch.stack(
        (samples[:, 0] + 0.2 * noise[:, 0], 1e4 * samples[:, 1] + 2e3 * noise[:, 1]), 1
    )
    return samples, targets


@pytest.fixture(scope="module")
def trained(method, table):
    model = daedl.Regressor(network(), method, ("small", "large"))
    history = fit(model, table, table, max_epochs=12, learning_rate=2e-2)
    return model, history


def outputs(method, dtype=torch.float32, targets=2):
    """Outputs for training and for prediction, and standardised targets."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 4, generator=generator, dtype=dtype)
    prepared = daedl.Regressor(network(targets).to(dtype), method).network
    with torch.no_grad(), evaluating(prepared):
        return prepared(inputs), method.forward(prepared, inputs), inputs[:, :targets]


def equal(p, q):
    return all(
        torch.equal(a, b) for a, b in zip(p.columns().values(), q.columns().values(), strict=True)
    )


def test_names_differ_from_those_of_classification_and_arguments_rebuild(method):
    assert method.name not in methods.METHODS
    arguments = json.loads(json.dumps(method.arguments()))
    assert methods.rebuild(method.name, arguments) == method


def test_training_reduces_the_loss_and_predicts_in_the_units_of_the_targets(trained, table):
    model, history = trained
    losses = [epoch.val_loss for epoch in history.epochs]
    assert min(losses) < losses[0]
    p = model.predict(table[0])
    assert p.mean.shape == p.std.shape == (400, 2)
    residuals = (p.mean - table[1]) / table[1].std(0)
    assert residuals.square().mean() < 0.35
    # The deviation is that of the residuals, up to a factor.
    ratio = (p.mean - table[1]).square().mean(0).sqrt() / p.std.mean(0)
    assert ((ratio > 0.4) & (ratio < 2.5)).all()


@pytest.mark.parametrize("training", [True, False])
def test_threads_predict_as_one_thread(method, table, training):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)]
    model = daedl.Regressor(FeatureModule(nn.Sequential(*layers), "2", (4,)), method)
    fit(model, table, max_epochs=1)
    model.train(training)
    expected = [model.predict(table[0][:rows]) for rows in range(1, 9)]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with ThreadPoolExecutor(8) as threads:
        computed = [*threads.map(lambda n: model.predict(table[0][:n]), [*range(1, 9)] * 2)]
    assert all(equal(*pair) for pair in zip(computed, expected * 2, strict=True))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.network.training is training


def test_variance_is_the_sum_of_both_parts(trained, table):
    p = trained[0].predict(table[0])
    parts = p.aleatoric if p.epistemic is None else p.aleatoric + p.epistemic
    torch.testing.assert_close(p.variance, parts, rtol=1e-3, atol=0)
    for score in p.scores().values():
        assert score.shape == (400,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_dtypes(method, dtype):
    for number in (1, 2):
        training, predicted, targets = outputs(method, dtype, number)
        losses = method.loss(training, targets, 0)
        assert losses.shape == (60,)
        assert losses.dtype == dtype
        p = method.predict(predicted, method.fit(predicted, targets))
        assert p.mean.shape == (60, number)
        assert p.mean.dtype == p.std.dtype == dtype


@pytest.mark.parametrize("size", [80.0, 1e-30])
def test_extreme_outputs_have_finite_losses_gradients_and_variances(method, size):
    training, predicted, targets = outputs(method)
    logits = (size * training.logits.sign()).requires_grad_()
    loss = method.loss(Outputs(training.features, logits, training.parts), targets, 100).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()
    extreme = predicted._replace(logits=size * predicted.logits.sign())
    p = method.predict(extreme, method.fit(predicted, targets))
    assert torch.isfinite(p.mean).all()
    assert torch.isfinite(p.variance).all()


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_extreme_inputs_have_finite_means(trained, table, size):
    p = trained[0].predict(size * table[0])
    assert torch.isfinite(p.mean).all()
    assert not any(torch.isnan(each).any() for each in p.columns().values())


def test_every_parameter_has_a_finite_nonzero_gradient(method, table):
    model = daedl.Regressor(network(), method).train()
    model.start([table])
    targets = model.targets(table[1], 400)
    method.training_loss(model.network, model.prepare(table[0]), targets, 5).backward()
    for name, parameter in model.network.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_prediction_without_fit_raises(method):
    if method.needs_fit:
        with pytest.raises(NotFittedError, match="fit_post_hoc"):
            method.predict(outputs(method)[1], None)


def test_saved_pickled_and_copied_predict_the_same(trained, table, tmp_path):
    model, _ = trained
    expected = model.predict(table[0])
    model.save(tmp_path / "model.daedl")
    for again in (
        daedl.Regressor.load(tmp_path / "model.daedl"),
        daedl.load(tmp_path / "model.daedl"),
        pickle.loads(pickle.dumps(model)),
        copy.deepcopy(model),
    ):
        assert again.method == model.method
        assert equal(again.predict(table[0]), expected)
        assert again.scaling.targets.names == ("small", "large")
    with pytest.raises(TypeError, match=r"daedl\.load"):
        daedl.Classifier.load(tmp_path / "model.daedl")


def test_prediction_changes_no_state_and_is_deterministic(trained, table):
    model = copy.deepcopy(trained[0]).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert equal(model.predict(table[0]), model.predict(table[0]))
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_exported_graph_predicts_the_same(trained, table):
    model = copy.deepcopy(trained[0])
    if isinstance(model.method, DropoutPasses):
        with pytest.raises(ValueError, match="random"):
            to_torch_export(model)
        return
    model.calibrate(table, daedl.MaxWidth(3.0))
    inputs = random_images(model, 7)
    computed = to_torch_export(model).module()(inputs)
    expected = model.predict(inputs).columns()
    assert set(computed) == set(expected) >= {"lower", "upper", "accept"}
    for name, each in expected.items():
        torch.testing.assert_close(computed[name].to(each), each, rtol=1e-4, atol=1e-4)


def test_invalid_settings_are_rejected(method):
    with pytest.raises(ValueError, match="reduction is 'average'"):
        regression.build(method.name, reduction="average")
    for field in dataclasses.fields(method):
        if type(field.default) in (int, float):
            invalid = -1 if isinstance(field.default, int) else math.nan
            with pytest.raises(ValueError, match=f"is {invalid}"):
                regression.build(method.name, **{field.name: invalid})


def test_methods_of_the_other_task_are_rejected():
    with pytest.raises(TypeError, match="RegressionMethod"):
        daedl.Regressor(network(), methods.DAEDL())
    with pytest.raises(ValueError, match=r"'daedl'.*expected one of"):
        daedl.Regressor(network(), "daedl")
    with pytest.raises(TypeError, match=r"daedl.*DAEDL"):
        daedl.Classifier(network(), regression.DAER())
