"""Tests that every method of `METHODS` must pass."""

import copy
import dataclasses
import json
import math
import multiprocessing
import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn

import daedl
from daedl import methods
from daedl.checks import NotFittedError
from daedl.density import DensityScorer
from daedl.methods.postnet import PosteriorMethod
from daedl.networks import MLP, FeatureModule
from daedl.outputs import Outputs, evaluating

fit = partial(daedl.fit, accelerator="cpu", progress=False)


@pytest.fixture(scope="module", params=list(methods.METHODS))
def method(request):
    return built(request.param)


def built(name):
    # One epoch of AdaTS is enough: without an error in the data its temperatures fall to their lower bound.
    return methods.build(name, **({"epochs": 1} if name == "adats" else {}))


def network():
    torch.manual_seed(0)
    return MLP(4, 3, hidden=(16, 16))


@pytest.fixture
def few(blobs):
    """Samples of all classes."""
    return tuple(part[:150] for part in blobs)


@pytest.fixture(scope="module")
def corners():
    """Three well-separated classes near the corners of a cube, and points between them."""
    generator = torch.Generator().manual_seed(0)
    noise = 0.35 * torch.randn(700, 4, generator=generator)
    targets = torch.arange(600) % 3
    known = 4 * torch.eye(4)[targets] + noise[:600]
    return known, targets, 4 * torch.tensor([1.0, 1, 1, 0]) / 3 + noise[600:]


@pytest.fixture(scope="module")
def trained(method, corners):
    """Trained with a learning rate for which a few epochs suffice."""
    classifier = daedl.Classifier(network(), method)
    data = corners[:2]
    history = fit(classifier, data, data, max_epochs=20, learning_rate=2e-2)
    return classifier, history


def outputs(method, dtype=torch.float32):
    """Outputs for training and for prediction, and targets (60,)."""
    images = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=dtype)
    prepared = daedl.Classifier(network().to(dtype), method).network
    method.set_class_counts(prepared, torch.tensor([30, 20, 10]))
    with torch.no_grad(), evaluating(prepared):
        return prepared(images), method.forward(prepared, images), torch.arange(60) % 3


def same(computed, expected):
    """Whether both have equal scores."""
    return list(computed) == list(expected) and all(
        map(torch.equal, computed.values(), expected.values())
    )


def test_arguments_rebuild_the_method(method):
    for each in (method, methods.build_for("cifar10", method.name)):
        arguments = json.loads(json.dumps(each.arguments()))
        assert methods.rebuild(method.name, arguments) == each


def test_methods_fitted_to_validation_data_require_it(method, blobs):
    held_out = method.needs_fit and method.fit_split == "validation"
    assert (method.extra_data == "held-out") == held_out
    if held_out:
        with pytest.raises(ValueError, match="validation"):
            fit(daedl.Classifier(network(), method), blobs, max_epochs=1)


def test_prediction_without_fit_raises(method):
    if not method.needs_fit:
        return
    loader = "val_loader" if method.fit_split == "validation" else "train_loader"
    with pytest.raises(NotFittedError, match=rf"{method.name}.*fit_post_hoc\({loader}\)"):
        method.predict(outputs(method)[1], None)


def test_restored_state_predicts_the_same(method):
    if not method.needs_fit:
        return
    _, predicted, targets = outputs(method)
    fitted = method.fit(predicted, targets)
    state = torch.get_rng_state()
    again = method.restore(fitted.state_dict(), fitted.settings())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(parameter.requires_grad for parameter in again.parameters())
    scores = method.predict(predicted, fitted).scores()
    assert same(method.predict(predicted, again).scores(), scores)


def test_training_reduces_the_loss_of_every_phase_and_learns_the_classes(trained, corners):
    classifier, history = trained
    for phase in classifier.method.phases():
        losses = [epoch.val_loss for epoch in history.epochs if epoch.phase == phase.name]
        assert min(losses) < losses[0], phase.name
        if phase.name == "training":
            assert min(losses) < losses[0] - 0.4 * abs(losses[0])
    assert daedl.metrics.accuracy(classifier.predict(corners[0]).labels, corners[1]) > 0.85


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_dtypes_and_probabilities(method, dtype):
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


def test_density_effect_is_reported_for_density_scorers_only(trained):
    classifier, history = trained
    scored = isinstance(classifier.fitted, DensityScorer)
    assert (history.density_effect is not None) == scored


@pytest.mark.parametrize("size", [80.0, 1e-30])
def test_extreme_logits_have_finite_losses_gradients_and_scores(method, size):
    trained, predicted, targets = outputs(method)
    logits = (size * trained.logits.sign()).requires_grad_()
    for phase in method.phases():
        loss = phase.method.loss(Outputs(trained.features, logits), targets, 100).sum()
        (gradient,) = torch.autograd.grad(loss, logits)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()
    extreme = Outputs(predicted.features, size * predicted.logits.sign())
    p = method.predict(extreme, method.fit(predicted, targets))
    assert torch.isfinite(p.probs).all()
    assert all(torch.isfinite(score).all() for score in p.scores().values())


@pytest.mark.parametrize("size", [255.0, 1e4])
def test_extreme_images_have_finite_predictions(trained, blobs, size):
    p = trained[0].predict(size * blobs[0])
    assert torch.isfinite(p.probs).all()
    assert all(torch.isfinite(score).all() for score in p.scores().values())


def test_unscaled_pixels_have_finite_gradients(method, blobs):
    """Including those of heads, flows and noise."""
    classifier = daedl.Classifier(network(), method).train()
    method.set_class_counts(classifier.network, torch.bincount(blobs[1]))
    loss = method.training_loss(classifier.network, 255 * blobs[0][:64], blobs[1][:64], 5)
    loss.backward()
    assert torch.isfinite(loss)
    for name, parameter in classifier.network.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name


def test_every_parameter_has_a_finite_nonzero_gradient(method, blobs):
    classifier = daedl.Classifier(network(), method).train()
    method.set_class_counts(classifier.network, torch.bincount(blobs[1]))
    loss = method.training_loss(classifier.network, blobs[0][:64], blobs[1][:64], 5)
    loss.backward()
    for name, parameter in classifier.network.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_scores_are_larger_for_ood_samples(trained, corners):
    """Between the classes for all scores, far from the data for densities.

    Flows are excluded between the classes: with some seeds their density is high there.
    """
    classifier, _ = trained
    inside, between = (
        classifier.predict(corners[0]).scores(),
        classifier.predict(corners[2]).scores(),
    )
    if not isinstance(classifier.method, PosteriorMethod):
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
        # Includes the fitted state, which the copy must not share.
        for tensor in twin.state_dict().values():
            tensor.zero_()
    assert same(classifier.predict(corners[0]).scores(), expected)


def test_prediction_changes_no_state_and_is_deterministic(trained, corners):
    classifier = copy.deepcopy(trained[0]).train()
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    first, second = classifier.predict(corners[0]), classifier.predict(corners[0])
    assert torch.equal(first.probs, second.probs)
    assert classifier.training
    assert all(torch.equal(before[name], value) for name, value in classifier.state_dict().items())


class Waits(nn.Module):
    """The identity; lets other threads run within a forward pass."""

    def forward(self, inputs):
        time.sleep(1e-4 * len(inputs))
        return inputs


@pytest.mark.parametrize("training", [True, False])
def test_threads_predict_as_one_thread(method, training, corners):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 16), nn.BatchNorm1d(16), Waits(), nn.ReLU(), nn.Linear(16, 3)]
    classifier = daedl.Classifier(FeatureModule(nn.Sequential(*layers), "3", (4,)), method)
    classifier.fit_post_hoc(corners[:2]).train(training)
    expected = [classifier.predict(corners[0][:rows]).scores() for rows in range(1, 9)]
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    state = torch.get_rng_state()
    with ThreadPoolExecutor(8) as threads:
        rows = [*range(1, 9)] * 2
        computed = [*threads.map(lambda n: classifier.predict(corners[0][:n]).scores(), rows)]
    assert all(same(*pair) for pair in zip(computed, expected * 2, strict=True))
    assert all(torch.equal(before[name], value) for name, value in classifier.state_dict().items())
    assert classifier.network.training is training
    assert torch.equal(torch.get_rng_state(), state)


def test_pickled_predicts_the_same(trained, corners):
    classifier, _ = trained
    again = pickle.loads(pickle.dumps(classifier))
    assert torch.equal(classifier.predict(corners[0]).probs, again.predict(corners[0]).probs)


def test_trains_and_predicts_in_float64(method, few):
    data = few[0].double(), few[1]
    classifier = daedl.Classifier(network().double(), method)
    fit(classifier, data, data, max_epochs=1, precision="64-true")
    assert classifier.predict(data[0]).probs.dtype == torch.float64


def test_features_beyond_float32_are_rejected(method, blobs):
    """Methods that store features in float32 would return NaN, and covariances would overflow."""
    data = blobs[0].double(), blobs[1]
    classifier = daedl.Classifier(network().double(), method).fit_post_hoc(data)
    with pytest.raises(ValueError, match="NaN or infinite"):
        classifier.predict(1e200 * data[0])
    with pytest.raises(ValueError, match="NaN or infinite"):
        classifier.collect((1e200 * data[0], data[1]))


def test_training_is_reproducible_and_keeps_the_random_state(method, few):
    computed = []
    for _ in range(2):
        classifier = daedl.Classifier(network(), method)
        state = torch.get_rng_state()
        fit(classifier, few, few, max_epochs=1, learning_rate=1e-3)
        computed.append(classifier.predict(few[0]).probs)
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(*computed)


def test_invalid_outputs_and_data_are_rejected(trained, method, blobs):
    classifier, _ = trained
    outputs, targets = classifier.collect([blobs])
    with pytest.raises(ValueError, match="2 columns"):
        classifier.predict_outputs(Outputs(outputs.features, outputs.logits[..., :2]))
    broken = torch.full_like(outputs.logits, torch.nan)
    with pytest.raises(ValueError, match=r"logits.*NaN"):
        classifier.predict_outputs(Outputs(outputs.features, broken))
    with pytest.raises(ValueError, match="empty"):
        classifier.predict(blobs[0][:0])
    untrained = daedl.Classifier(network(), method)
    bad = torch.full((610, 4), torch.nan)
    with pytest.raises(ValueError, match=r"inputs.*NaN"):
        fit(untrained, (bad, targets), blobs, max_epochs=1)
    with pytest.raises(ValueError, match="class 2"):
        fit(untrained, (blobs[0], targets.clamp_max(1)), blobs, max_epochs=1)


def test_invalid_settings_are_rejected(method):
    with pytest.raises(ValueError, match="reduction is 'average'"):
        methods.build(method.name, reduction="average")
    with pytest.raises((TypeError, ValueError), match="spectral"):
        methods.build(method.name, spectral="operator")
    with pytest.raises(ValueError, match=rf"{re.escape(method.name)} 'reduktion'.*'reduction'"):
        methods.build(method.name, reduktion="mean")


def test_invalid_numbers_are_rejected(method):
    for field in dataclasses.fields(method):
        if type(field.default) in (int, float):
            invalid = -1 if isinstance(field.default, int) else math.nan
            with pytest.raises(ValueError, match=f"is {invalid}"):
                methods.build(method.name, **{field.name: invalid})


def test_unknown_method_is_rejected_with_a_suggestion():
    with pytest.raises(ValueError, match=r"'deadl'.*'daedl'"):
        methods.build("deadl")


def fit_half(rank, folder, cases):
    """Fit every method to every second sample in one of two processes, and save the fitted states."""
    store = f"file://{folder}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    states = []
    for method, predicted, targets in cases:
        half = Outputs(*(part[rank::2] for part in predicted))
        fitted = method.fit(half, targets[rank::2])
        states.append((fitted.state_dict(), fitted.settings()))
    torch.save(states, folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_fit_to_the_samples_of_all_processes(tmp_path):
    cases = []
    for method in map(built, methods.METHODS):
        if method.needs_fit:
            _, predicted, targets = outputs(method)
            # The processes have different numbers of samples.
            cases.append((method, Outputs(*(part[:59] for part in predicted)), targets[:59]))
    context = multiprocessing.get_context("fork")
    arguments = (tmp_path, cases)
    processes = [context.Process(target=fit_half, args=(rank, *arguments)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    states = zip(*(torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)), strict=True)
    for (method, predicted, targets), parts in zip(cases, states, strict=True):
        first, second = (
            method.predict(predicted, method.restore(*part)).scores() for part in parts
        )
        assert same(first, second), method.name
        alone = method.predict(predicted, method.fit(predicted, targets)).scores()
        for name, score in first.items():
            if method.name != "adats":  # depends on the order of the samples
                torch.testing.assert_close(score, alone[name], rtol=1e-3, atol=1e-4)
