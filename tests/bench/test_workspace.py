"""Trials: trained once, cached, fitted and predicted as their method says."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import pytest
import torch
from made import TINY
from made import stripes as load

from daedl.methods.temperature import best_temperature
from daedl_bench.cache import Cache
from daedl_bench.spec import catalogue
from daedl_bench.workspace import VALIDATION, Workspace

SPECS = catalogue(TINY)
PROTOCOL = SPECS.protocols["tiny"]


@pytest.fixture
def workspace(tmp_path):
    return Workspace(load, Cache(tmp_path / "cache"))


def prepare(workspace, label, seed=0):
    return workspace.prepare(SPECS.trial(label, PROTOCOL, seed))


def test_of_two_processes_one_trains(workspace, monkeypatch):
    trained = []
    train = Workspace._train

    def counting(self, trial):
        trained.append(trial)
        return train(self, trial)

    monkeypatch.setattr(Workspace, "_train", counting)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: prepare(workspace, "plus"), range(2))
    assert len(trained) == 1
    assert torch.equal(one.predict("noise")[0].probs, other.predict("noise")[0].probs)


def test_the_seed_alone_determines_the_weights(tmp_path):
    """Including the weights of heads that a method adds to the network."""
    states = []
    for name in ("one", "two"):
        torch.manual_seed(len(states))  # a state that must not matter
        predictor = prepare(Workspace(load, Cache(tmp_path / name)), "flow")
        states.append(predictor.classifier.network.state_dict())
    assert all(torch.equal(one, two) for one, two in zip(*map(dict.values, states), strict=True))


def test_a_cached_network_predicts_the_same(workspace):
    first = prepare(workspace, "full").predict("noise")[0].probs
    for path in workspace.cache.folder.glob("*/*.safetensors"):
        path.unlink()
    assert torch.equal(prepare(workspace, "full").predict("noise")[0].probs, first)


def test_an_ensemble_averages_the_predictions_of_its_members(workspace):
    pair = prepare(workspace, "full-pair")
    joint, _ = pair.predict("noise")
    members = [prepare(workspace, "daedl", seed).predict("noise")[0] for seed in (0, 1)]
    mean = torch.stack([each.probs for each in members]).mean(0)
    torch.testing.assert_close(joint.probs, mean)
    images = load("noise", "test").images.float() / 255
    torch.testing.assert_close(pair.classifier.predict(images).probs, mean)


def test_temperatures_of_densities_are_fitted_to_validation_images(workspace):
    predictor = prepare(workspace, "daedl")
    outputs, targets = predictor.outputs(VALIDATION)
    fitted = predictor.classifier.fitted
    logits = fitted(outputs.features)[1][:, None] * outputs.logits
    assert fitted.temperature == pytest.approx(
        best_temperature(logits, targets, 0.5 / (len(targets) + 1))
    )
    assert fitted.temperature != 1
    prediction, _ = predictor.predict("noise")
    outputs, _ = predictor.outputs("noise")
    logits = fitted(outputs.features)[1][:, None] * outputs.logits
    torch.testing.assert_close(prediction.probs, (logits / fitted.temperature).softmax(-1))


def test_a_method_may_be_fitted_to_validation_images(workspace):
    fitted = prepare(workspace, "temperature").classifier.fitted
    val, _ = load("stripes", "train").random_split(60, 0)
    outputs, targets = prepare(workspace, "softmax").classifier.collect(val.batches(60))
    assert fitted.temperature == pytest.approx(best_temperature(outputs.logits, targets))
    cached = {path.stem for path in workspace.cache.folder.glob("*/*.safetensors")}
    assert cached == {VALIDATION}


def test_validation_images_are_predicted_by_the_whole_method(workspace):
    plain, full = prepare(workspace, "plus"), prepare(workspace, "full")
    prediction, targets = plain.predict(VALIDATION)
    best = min(plain.epochs, key=lambda epoch: epoch.val_loss)
    accuracy = (prediction.labels == targets).float().mean().item()
    assert accuracy == pytest.approx(best.val_accuracy)
    with_density, _ = full.predict(VALIDATION)
    assert with_density.density_score is not None
    assert not torch.equal(with_density.probs, prediction.probs)


def test_the_learning_rate_of_a_method_is_used(workspace):
    slower = msgspec.structs.replace(PROTOCOL, rates={"softmax": 1e-5})
    predictor = workspace.prepare(SPECS.trial("softmax", slower, 0))
    assert predictor.epochs[0].learning_rate == 1e-5


def test_images_are_normalised_by_the_protocol(workspace):
    shifted = msgspec.structs.replace(PROTOCOL, mean=(0.5,), std=(0.25,))
    other = workspace.prepare(SPECS.trial("softmax", shifted, 0))
    plain = prepare(workspace, "softmax")
    images = load("noise", "test").images.float() / 255
    with torch.no_grad():
        outputs = other.classifier.network((images - 0.5) / 0.25)
    expected = outputs.logits.softmax(-1)
    torch.testing.assert_close(other.predict("noise")[0].probs, expected)
    torch.testing.assert_close(other.classifier.predict(images).probs, expected)
    assert not torch.equal(plain.predict("noise")[0].probs, expected)


def test_a_cache_for_reading_is_not_changed(workspace):
    prepare(workspace, "plus")
    before = sorted(workspace.cache.folder.rglob("*"))
    reading = replace(workspace, cache=Cache(workspace.cache.folder, reading=True))
    prepare(reading, "plus").predict("noise")
    assert sorted(workspace.cache.folder.rglob("*")) == before


def test_features_of_another_block_share_the_trained_network(workspace):
    """And their outputs are cached beside those of the paper's block."""
    text = f'{TINY}\n[method.early]\nname = "daedl"\nspectral = "default"\ncovariance = "full"\n'
    text += 'network = { features = ["conv1", "flatten"], pooling = "mean-std" }\n'
    trial = catalogue(text).trial("early", PROTOCOL, 0)
    last, early = prepare(workspace, "full"), workspace.prepare(trial)
    assert trial.network_key == last.trial.network_key
    assert trial.key != last.trial.key
    one, two = last.outputs("noise")[0], early.outputs("noise")[0]
    assert torch.equal(one.logits, two.logits)
    assert torch.equal(two.last_part, one.features)
    assert len(two.parts) == 2
    again = workspace.prepare(trial).outputs("noise")[0]
    assert again.parts == two.parts
    assert torch.equal(again.features, two.features)


def test_sgd_has_one_scale_for_all_losses(workspace):
    protocol = msgspec.structs.replace(PROTOCOL, optimizer="sgd", reduction="mean")
    trial = SPECS.trial("full-pair", protocol, 0)
    assert trial.method.member.reduction == "mean"
    options = protocol.fit_options(trial.method)
    optimizer = options["optimizer"]([torch.nn.Parameter(torch.ones(2, 2))])
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.param_groups[0]["lr"] == PROTOCOL.training["learning_rate"]
    assert trial.network_key != SPECS.trial("full-pair", PROTOCOL, 0).network_key
