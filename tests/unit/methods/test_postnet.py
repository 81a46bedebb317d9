"""PostNet: worked numbers, head, class counts, resumed training."""

import math
import pickle
from functools import partial

import pytest
import torch

import daedl
from daedl.methods.postnet import PostNet, PostNetHead
from daedl.networks import MLP
from daedl.outputs import Outputs
from daedl.spectral import SpectralNorm

fit = partial(daedl.fit, accelerator="cpu", progress=False)


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return daedl.Classifier(MLP(4, 3, hidden=(16, 16)).to(dtype), PostNet())


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
    # All α are equal: the class is that of the largest density.
    assert prediction.labels.item() == classes - 1


def test_density_score_ranks_samples_without_evidence():
    prediction = PostNet().predict(out(torch.tensor([[-60.0] * 3, [-90.0] * 3])), None)
    near, far = prediction.scores()["density"]
    assert prediction.epistemic[0] == prediction.epistemic[1]
    assert far > near


def test_head_normalises_the_latent_and_adds_log_counts():
    torch.manual_seed(0)
    head = PostNetHead(6, 6, 3)
    head.log_counts.copy_(torch.tensor([3.0, 2.0, 1.0]))
    latent = 5 + 3 * torch.randn(40, 6)
    given = head(Outputs(torch.zeros(40, 2), latent))
    normal = (latent - latent.mean(0)) / latent.std(0, correction=0)
    torch.testing.assert_close(given.features, normal, atol=1e-4, rtol=1e-4)
    expected = head.flow(normal) + torch.tensor([3.0, 2.0, 1.0])
    torch.testing.assert_close(given.logits, expected, atol=1e-3, rtol=1e-3)


def test_evidence_vanishes_far_from_the_data():
    network = model().network.eval()
    PostNet().set_class_counts(network, torch.tensor([400, 150, 60]))
    latent = 1e3 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        given = network.head(Outputs(torch.zeros(1), latent))
    assert (PostNet().predict(given, None).dirichlet.precision == 3).all()


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, 32), (torch.float64, 64)])
def test_training_sets_the_class_counts(blobs, dtype, precision):
    classifier = model(dtype)
    assert (classifier.network.head.log_counts == 0).all()
    data = blobs[0].to(dtype), blobs[1]
    fit(classifier, data, max_epochs=1, precision=f"{precision}-true")
    counts = classifier.network.head.log_counts.exp()
    torch.testing.assert_close(counts, torch.tensor([400, 150, 60], dtype=dtype))


def test_training_loss_is_summed(blobs):
    classifier = model().train()
    images, targets = blobs
    summed, mean = (
        PostNet(reduction=how).training_loss(classifier.network, images, targets, 0)
        for how in ("sum", "mean")
    )
    assert PostNet().reduction == "sum"
    torch.testing.assert_close(summed, 610 * mean)


@pytest.mark.parametrize("own", [False, True], ids=["by the method", "before"])
def test_latent_layer_is_normalised_and_saved(blobs, tmp_path, own):
    """Also if the network was normalised before its last layer was replaced."""
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


def test_resumed_training_ends_with_the_same_weights(blobs, tmp_path, interrupting):
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


def test_training_batch_of_one_image_is_rejected(blobs):
    with pytest.raises(ValueError, match="one image"):
        fit(model(), blobs, batch_size=609, max_epochs=1)


def test_published_settings():
    assert PostNet().entropy_weight == 1e-6
    assert PostNet(**PostNet.published["cifar10"]) == PostNet(entropy_weight=1e-5)
    assert model().network.head.flow.layers[5].center.shape == (3, 6)
