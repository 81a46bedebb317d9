"""KL-PN and RKL-PN: worked numbers, noise, training on noise."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.distributions import Dirichlet, kl_divergence

import daedl
from daedl.data import Preprocess
from daedl.data.texts import TextPreprocess
from daedl.methods import KLPN, RKLPN, Ensemble, build, rebuild
from daedl.networks import MLP, ConvNet
from daedl.outputs import Outputs

LOGITS = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
NOISE_LOGITS = torch.tensor([[0.5, 0.0, -0.5]], dtype=torch.float64)
TARGET = torch.tensor([0])


class Fixed(nn.Module):
    """Returns fixed logits for one image and one noise image."""

    def forward(self, images):
        assert len(images) == 2
        return Outputs(torch.zeros(2, 1), torch.cat([LOGITS, NOISE_LOGITS]))


@pytest.mark.parametrize(
    ("method", "known", "total"),
    [(KLPN(), 2.21836, 0.0263604), (RKLPN(), 12.6885, 0.130990)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_worked_numbers(method, known, total):
    outputs = Outputs(torch.zeros(1, 1), LOGITS)
    assert float(method.loss(outputs, TARGET, 0)) * 100 == pytest.approx(known, abs=5e-5)
    loss = method.training_loss(Fixed(), torch.zeros(1, 1, 2, 2), TARGET, 0)
    assert float(loss) == pytest.approx(total, abs=5e-7)
    ignored = type(method)(noise_weight=0.0)
    loss = ignored.training_loss(Fixed(), torch.zeros(1, 1, 2, 2), TARGET, 0)
    assert float(loss) == pytest.approx(known / 100, abs=5e-7)


def test_worked_divergences():
    predicted, of_noise = ours(LOGITS.exp()), ours(NOISE_LOGITS.exp())
    flat, wanted, smoothed = (
        ours(torch.tensor([alpha], dtype=torch.float64))
        for alpha in ((1.0, 1.0, 1.0), (101.0, 1.0, 1.0), (980.0, 10.0, 10.0))
    )
    assert float(KLPN().divergence(wanted, predicted)) == pytest.approx(2.21836, abs=5e-6)
    assert float(KLPN().divergence(smoothed, predicted)) == pytest.approx(4.05318, abs=5e-6)
    assert float(KLPN().divergence(flat, of_noise)) == pytest.approx(0.417682, abs=5e-7)
    assert float(RKLPN().divergence(flat, of_noise)) == pytest.approx(0.410424, abs=5e-7)


def ours(alpha):
    return daedl.Dirichlet(alpha.log())


@pytest.mark.parametrize("seed", range(5))
def test_divergences_against_torch(seed):
    torch.manual_seed(seed)
    logits, targets = 2 * torch.randn(30, 6, dtype=torch.float64), torch.randint(6, (30,))
    wanted = 1 + 50 * nn.functional.one_hot(targets, 6)
    theirs = Dirichlet(wanted.double()), Dirichlet(logits.exp())
    outputs = Outputs(torch.zeros(30, 1), logits)
    forward, reverse = (
        method(target=50).loss(outputs, targets, 0) * 50 for method in (KLPN, RKLPN)
    )
    torch.testing.assert_close(forward, kl_divergence(*theirs))
    torch.testing.assert_close(reverse, kl_divergence(*theirs[::-1]))


@pytest.mark.parametrize("kind", [KLPN, RKLPN])
def test_loss_is_zero_at_the_target(kind):
    logits = torch.tensor([[0.0, 101.0, 0.0]], dtype=torch.float64)
    logits[0, 1] = torch.tensor(101.0).double().log()
    loss = kind().loss(Outputs(torch.zeros(1, 1), logits), torch.tensor([1]), 0)
    assert float(loss) == pytest.approx(0, abs=1e-12)


class Watching(nn.Module):
    """Keeps the inputs that it receives."""

    def forward(self, images):
        self.images = images
        return Outputs(torch.zeros(len(images), 1), images.new_zeros(len(images), 3))


def noise_of(preprocess, dtype=torch.float32):
    """The noise beside 200 images, which are zeros."""
    network, images = Watching(), torch.zeros(200, 3, 8, 8, dtype=dtype)
    targets = torch.zeros(200, dtype=torch.long)
    KLPN().training_loss(network, images, targets, 0, preprocess=preprocess)
    return network.images[200:]


@pytest.mark.parametrize("scale", [255.0, 1.0])
def test_noise_is_of_uniform_pixels_that_pass_through_the_preprocessing(scale):
    mean, std = (torch.tensor(each) * 255 / scale for each in ((0.5, 0.4, 0.3), (0.2, 0.1, 0.3)))
    preprocess = Preprocess(3, 8, scale=scale, mean=tuple(mean), std=tuple(std))
    noise = noise_of(preprocess, torch.float64)
    pixels = (noise * std[:, None, None] + mean[:, None, None]) * scale / 255
    assert noise.dtype == torch.float64
    for each in pixels.unbind(1):
        assert -1e-6 <= each.min() < 0.01
        assert 0.99 < each.max() <= 1 + 1e-6
        assert each.mean() == pytest.approx(0.5, abs=0.01)


def test_noise_of_inputs_prepared_elsewhere_is_uniform_in_0_to_1():
    assert 0 <= noise_of(None).min() < 0.01
    assert 0.99 < noise_of(None).max() <= 1


def test_texts_have_no_noise():
    with pytest.raises(ValueError, match="expected images"):
        TextPreprocess("{}").noise({})


@pytest.mark.parametrize("method", [KLPN(), Ensemble(member=KLPN(), size=2)], ids=type)
def test_fit_prepares_noise_like_the_images(method):
    """Uniform pixels u become (u - 0.5) / 0.25, from -2 to 2."""
    preprocess = Preprocess(1, 8, mean=(0.5,), std=(0.25,))
    classifier = daedl.Classifier(
        ConvNet(1, 2, 8, channels=4, hidden=()), method, preprocess=preprocess
    )
    seen = []
    for each in getattr(classifier.network, "members", [classifier.network]):
        each.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    images = torch.full((64, 1, 8, 8), 128, dtype=torch.uint8)
    data = images, torch.arange(64) % 2
    daedl.fit(classifier, data, max_epochs=1, accelerator="cpu", progress=False)
    noise = torch.cat([each[64:] for each in seen if len(each) == 128])
    assert len(noise) in (64, 128)
    assert -2 <= noise.min() < -1.9
    assert 1.9 < noise.max() <= 2


@pytest.mark.parametrize("kind", [KLPN, RKLPN])
def test_former_settings_identify_figures_and_are_ignored_in_files(kind):
    arguments = kind().arguments()
    assert (arguments["pixel_mean"], arguments["pixel_std"]) == (None, None)
    written = {**arguments, "pixel_mean": [0.5], "pixel_std": [0.2]}
    assert rebuild(kind.name, arguments) == rebuild(kind.name, written) == kind()
    ensemble = Ensemble(member=kind())
    assert rebuild("ensemble", ensemble.arguments()) == ensemble
    with pytest.raises(ValueError, match="pixel_mean"):
        build(kind.name, pixel_mean=[0.5])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KLPN, RKLPN])
def test_training_on_noise_flattens_predictions_on_noise(kind, blobs):
    fit = partial(daedl.fit, accelerator="cpu", progress=False, learning_rate=1e-2, max_epochs=8)
    images = 0.05 * blobs[0] + 0.5  # most of the noise is far from them
    from_flat = []
    for method in (kind(), kind(noise_weight=0.0)):
        torch.manual_seed(0)
        classifier = daedl.Classifier(MLP(4, 3, hidden=(32,)), method)
        fit(classifier, (images, blobs[1]))
        # The forward divergence for both, as the target on noise is the same.
        predicted = classifier.predict(torch.rand(200, 4)).dirichlet
        flat = daedl.Dirichlet(torch.zeros(200, 3))
        from_flat.append(flat.kl(predicted).mean())
    assert from_flat[0] < 0.7 * from_flat[1]


def test_reductions_over_the_batch():
    torch.manual_seed(0)
    network = MLP(4, 3, hidden=(8,))
    images, targets = torch.rand(10, 4), torch.arange(10) % 3
    losses = []
    for reduction in ("mean", "sum"):
        torch.manual_seed(1)
        losses.append(KLPN(reduction=reduction).training_loss(network, images, targets, 0))
    torch.testing.assert_close(losses[1], 10 * losses[0])
