"""PostNet: worked numbers, its head, class counts, and what keeps a trained one."""

import copy
import math
import pickle
from functools import partial

import pytest
import torch
from torch import nn

import daedl
from daedl.methods.natpn import NatPN
from daedl.methods.postnet import PostNet, PostNetHead
from daedl.networks import MLP, FeatureModule, Headed
from daedl.outputs import Outputs
from daedl.spectral import SpectralNorm

fit = partial(daedl.fit, accelerator="cpu", progress=False)


def model(method=None, dtype=torch.float32, **settings):
    torch.manual_seed(0)
    network = MLP(4, 3, hidden=(16, 16)).to(dtype)
    return daedl.Classifier(network, method or PostNet(**settings))


@pytest.fixture(scope="module")
def trained(blobs):
    classifier = model()
    return classifier, fit(classifier, blobs, blobs, max_epochs=25, learning_rate=2e-2)


def out(logits):
    return Outputs(torch.zeros(len(logits), 6, dtype=logits.dtype), logits)


def test_worked_numbers():
    log_q = torch.tensor([[-6.0, -9.0, -8.0]], dtype=torch.float64)
    logits = log_q + torch.tensor([5000.0, 4000.0, 3000.0], dtype=torch.float64).log()
    prediction = PostNet().predict(out(logits), None)
    assert prediction.alpha[0].tolist() == pytest.approx([13.3938, 1.49364, 2.00639], abs=5e-5)
    assert prediction.dirichlet.differential_entropy.item() == pytest.approx(-2.77847, abs=5e-6)
    target = torch.tensor([0])
    for weight, loss in ((0.0, 0.240064), (1e-5, 0.240091), (1.0, 0.240064 + 2.77847)):
        method = PostNet(entropy_weight=weight)
        assert method.loss(out(logits), target, 0).item() == pytest.approx(loss, abs=5e-6)
    assert prediction.log_density.item() == pytest.approx(
        math.log(5000 * math.exp(-6) + 4000 * math.exp(-9) + 3000 * math.exp(-8))
    )


@pytest.mark.parametrize(("classes", "uce"), [(3, 1.5), (10, 2.82897)])
def test_without_evidence_the_dirichlet_is_uniform(classes, uce):
    logits = torch.linspace(-300, -250, classes, dtype=torch.float64)[None]
    prediction = PostNet().predict(out(logits), None)
    torch.testing.assert_close(prediction.alpha, torch.ones(1, classes, dtype=torch.float64))
    loss = PostNet(entropy_weight=0).loss(out(logits), torch.tensor([1]), 0)
    assert loss.item() == pytest.approx(uce, abs=5e-6)
    entropy = prediction.dirichlet.differential_entropy.item()
    assert entropy == pytest.approx(-math.lgamma(classes), abs=1e-6)
    # All α tie: the class is that of the largest density.
    assert prediction.labels.item() == classes - 1


@pytest.mark.parametrize("size", [80.0, 1e-30])
def test_extreme_logits_stay_finite(size):
    logits = size * torch.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]])
    logits.requires_grad_()
    loss = PostNet(entropy_weight=1.0).loss(out(logits), torch.tensor([1, 0, 2]), 0)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(gradient).all()
    scores = PostNet().predict(out(logits.detach()), None).scores().values()
    assert all(torch.isfinite(score).all() for score in scores)


def test_the_density_score_tells_apart_where_all_concentrations_are_one():
    prediction = PostNet().predict(out(torch.tensor([[-60.0] * 3, [-90.0] * 3])), None)
    near, far = prediction.scores()["density"]
    assert prediction.epistemic[0] == prediction.epistemic[1]
    assert far > near


def test_the_head_normalises_the_latent_and_weighs_densities_by_class_counts():
    torch.manual_seed(0)
    head = PostNetHead(6, 6, 3)
    head.log_counts.copy_(torch.tensor([3.0, 2.0, 1.0]))
    latent = 5 + 3 * torch.randn(40, 6)
    given = head(Outputs(torch.zeros(40, 2), latent))
    normal = (latent - latent.mean(0)) / latent.std(0, correction=0)
    torch.testing.assert_close(given.features, normal, atol=1e-4, rtol=1e-4)
    expected = head.flow(normal) + torch.tensor([3.0, 2.0, 1.0])
    torch.testing.assert_close(given.logits, expected, atol=1e-3, rtol=1e-3)


def test_evidence_vanishes_far_from_the_data(trained):
    latent = 1e3 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        given = trained[0].network.head(Outputs(torch.zeros(1), latent))
    assert (PostNet().predict(given, None).dirichlet.precision == 3).all()


def test_training_fills_in_the_class_counts(blobs):
    classifier = model()
    assert (classifier.network.head.log_counts == 0).all()
    fit(classifier, blobs, max_epochs=1)
    counts = classifier.network.head.log_counts.exp()
    torch.testing.assert_close(counts, torch.tensor([400.0, 150.0, 60.0]))


def test_the_training_loss_is_summed(blobs):
    classifier = model().train()
    images, targets = blobs
    summed, mean = (
        PostNet(reduction=how).training_loss(classifier.network, images, targets, 0)
        for how in ("sum", "mean")
    )
    assert PostNet().reduction == "sum"
    torch.testing.assert_close(summed, 610 * mean)


def test_learns(trained, blobs):
    classifier, history = trained
    losses = [epoch.val_loss for epoch in history.epochs]
    assert min(losses) < 0.6 * losses[0]
    inside = classifier.predict(blobs[0])
    assert daedl.metrics.accuracy(inside.labels, blobs[1]) > 0.85
    # The mean of the Dirichlet: (1 + N_c q_c) / (C + Σ N_c q_c).
    evidence = classifier(blobs[0]).logits.exp()
    expected = (1 + evidence) / (3 + evidence.sum(-1, keepdim=True))
    torch.testing.assert_close(inside.probs, expected, atol=1e-5, rtol=1e-4)
    outside = classifier.predict(
        40 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    )
    for name, score in inside.scores().items():
        assert daedl.metrics.auroc(score, outside.scores()[name]) > 0.85, name


def test_saved_pickled_and_copied_predict_the_same(trained, blobs, tmp_path):
    classifier, _ = trained
    classifier.save(tmp_path / "model.daedl")
    expected = classifier.predict(blobs[0])
    for twin in (
        daedl.Classifier.load(tmp_path / "model.daedl", method=PostNet()),
        pickle.loads(pickle.dumps(classifier)),
        copy.deepcopy(classifier),
    ):
        assert torch.equal(twin.predict(blobs[0]).log_alpha, expected.log_alpha)
        assert torch.equal(twin.network.head.log_counts, classifier.network.head.log_counts)


@pytest.mark.parametrize("own", [False, True], ids=["by the method", "before"])
def test_spectral_normalisation_reaches_the_latent_layer_and_is_kept(blobs, tmp_path, own):
    """Also for a network that was normalised before its last layer was replaced."""
    torch.manual_seed(0)
    network, spectral = MLP(4, 3, hidden=(16,)), SpectralNorm(coefficient=2.0)
    if own:
        daedl.spectral.spectral_normalize(network, spectral)
    classifier = daedl.Classifier(network, PostNet(spectral=None if own else spectral))
    fit(classifier, blobs, max_epochs=1)
    latent = classifier.network.inner.classifier.logits
    assert latent.weight.shape == (6, 16)
    assert torch.linalg.matrix_norm(latent.weight, 2).item() == pytest.approx(2, rel=0.05)
    classifier.save(tmp_path / "model.daedl")
    expected = classifier.predict(blobs[0]).log_alpha
    again = daedl.Classifier.load(tmp_path / "model.daedl", method=classifier.method)
    assert torch.equal(again.predict(blobs[0]).log_alpha, expected)
    torch.testing.assert_close(
        pickle.loads(pickle.dumps(classifier)).predict(blobs[0]).log_alpha, expected
    )


def test_interrupted_and_resumed_ends_with_the_same_weights(blobs, tmp_path, interrupting):
    features, targets = blobs
    batches = list(zip(features.split(100), targets.split(100), strict=True))
    whole, stopped, resumed = model(), model(), model()
    fit(whole, batches, blobs, max_epochs=4)
    how = {"max_epochs": 4, "checkpoint": tmp_path / "run.ckpt", "resume": True}
    with pytest.raises(KeyboardInterrupt):  # one pass to count, then in the third epoch
        fit(stopped, interrupting(batches, 7 + 17), blobs, **how)
    fit(resumed, batches, blobs, **how)
    weights = resumed.network.state_dict()
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, weights[name]), name


def test_runs_in_float64(blobs):
    classifier = model(dtype=torch.float64)
    fit(classifier, (blobs[0].double(), blobs[1]), max_epochs=1, precision="64-true")
    prediction = classifier.predict(blobs[0].double())
    assert all(score.dtype == torch.float64 for score in prediction.scores().values())
    assert classifier.network.head.log_counts.exp()[0].item() == pytest.approx(400, rel=1e-12)


def test_preparing_twice_changes_nothing():
    network = model().network
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.random.get_rng_state()
    assert PostNet().prepare(network) is network
    assert torch.equal(torch.random.get_rng_state(), state)
    assert isinstance(network, Headed)
    assert network.num_features == 6
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


@pytest.mark.parametrize("method", [PostNet(latent=5), PostNet(depth=2), NatPN()], ids=str)
def test_another_head_is_refused(method):
    with pytest.raises(ValueError, match=r"for another method.*expected a plain one.*anew"):
        method.prepare(model().network)


def test_a_network_without_a_last_layer_for_classes_is_refused():
    layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.MaxPool1d(2))
    with pytest.raises(
        ValueError, match=r"no Linear layer with 2 outputs.*expected one as its last"
    ):
        daedl.Classifier(FeatureModule(layers, "1", (4,)), PostNet())


def test_a_training_batch_of_one_is_explained(blobs):
    with pytest.raises(ValueError, match=r"holds one image; expected at least two.*batch size"):
        fit(model(), blobs, batch_size=609, max_epochs=1)


def test_a_class_without_samples_is_refused(blobs):
    features, targets = blobs
    some = targets < 2
    with pytest.raises(ValueError, match="no training sample of class 2"):
        fit(model(), (features[some], targets[some]), max_epochs=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"latent": 0}, "latent is 0; expected a whole number from 1: take 6 as published"),
        ({"latent": 2.5}, r"latent is 2.5; expected a whole number"),
        ({"depth": -1}, "depth is -1; expected a whole number from 1: take 6"),
        ({"depth": True}, "depth is True; expected a whole number"),
        ({"entropy_weight": -1e-5}, "entropy_weight is -1e-05; expected a finite number from 0"),
        ({"entropy_weight": math.nan}, "entropy_weight is nan; expected .*take 1e-06 as published"),
        ({"reduction": "max"}, "reduction is 'max'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        PostNet(**settings)


def test_settings_of_the_paper():
    assert PostNet().entropy_weight == 1e-6
    assert PostNet(**PostNet.published["cifar10"]) == PostNet(entropy_weight=1e-5)
    assert PostNet(**PostNet(latent=3).arguments()) == PostNet(latent=3)
    assert model().network.head.flow.layers[5].center.shape == (3, 6)
