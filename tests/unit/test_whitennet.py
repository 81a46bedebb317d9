"""The whitening layer of WhitenNet."""

import pytest
import torch
from torch.nn import functional as F

import daedl
from daedl.data import ImageSet
from daedl.methods import EDLPlus
from daedl.networks import WhitenNet
from daedl.spectral import DEFAULT, SpectralNorm, spectral_normalize
from daedl.training.recipe import image_recipe


def smooth_images(number: int = 64) -> torch.Tensor:
    """Images whose neighbouring pixels are correlated, as in photographs."""
    noise = torch.randn(number, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    return F.avg_pool2d(noise, 5, stride=1) * 5


def test_whitened_directions_have_unit_second_moments():
    network, images = WhitenNet(3, 10, image_size=16), smooth_images()
    layer = network.extractor.whiten[0]
    network.whiten(images)
    responses = layer(images).movedim(1, -1).reshape(-1, 24).double()
    torch.testing.assert_close(responses[:, 12:], -responses[:, :12])
    moments = responses[:, :12].T @ responses[:, :12] / len(responses)
    torch.testing.assert_close(moments, torch.eye(12).double(), atol=0.02, rtol=0)


def test_whitening_filters_are_not_trained():
    network = WhitenNet(3, 10, image_size=16)
    network.whiten(smooth_images())
    before = network.extractor.whiten[0].weight.clone()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, weight_decay=0.1)
    network(smooth_images(8)).logits.square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(network.extractor.whiten[0].weight, before, rtol=0, atol=0)


def test_spectral_normalisation_keeps_the_filters_up_to_scale():
    network, images = WhitenNet(3, 10, image_size=16), smooth_images()
    network.whiten(images)
    plain = network.extractor.whiten[0].weight.clone()
    normalized = spectral_normalize(WhitenNet(3, 10, image_size=16), SpectralNorm()).eval()
    normalized.whiten(images)
    weight = normalized.extractor.whiten[0].weight
    assert torch.linalg.matrix_norm(weight.flatten(1), 2) == pytest.approx(1, abs=1e-4)
    torch.testing.assert_close(weight / weight.norm(), plain / plain.norm())


def test_whitening_rejects_images_of_another_shape():
    with pytest.raises(ValueError, match="shape"):
        WhitenNet(3, 10, image_size=16).whiten(torch.rand(4, 1, 16, 16))


def test_too_small_images_are_rejected():
    with pytest.raises(ValueError, match="at least 9"):
        WhitenNet(3, 10, image_size=8)


@pytest.mark.parametrize("method", ["softmax", "daedl", "ensemble"])
def test_fit_whitens_initial_filters_only(method):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (24, 3, 12, 12), dtype=torch.uint8, generator=generator)
    data = ImageSet(images, torch.arange(24) % 3, "noise", "train")
    model = daedl.Classifier(WhitenNet(3, 3, image_size=12, hidden=(4, 4)), method)
    initial = model.network.plain.extractor.whiten[0].weight.clone()
    options = {"max_epochs": 1, "accelerator": "cpu", "progress": False}
    daedl.fit(model, data, **options)
    twin = WhitenNet(3, 3, image_size=12, hidden=(4, 4))
    twin.whiten(model.prepare(images))
    filters = model.network.plain.extractor.whiten[0].weight.clone()
    expected = twin.extractor.whiten[0].weight
    torch.testing.assert_close(filters / filters.norm(), expected / expected.norm())
    assert not torch.equal(filters, initial)
    other = ImageSet(255 - images // 2, data.labels, "other", "train")
    daedl.fit(model, other, **options)
    after = model.network.plain.extractor.whiten[0].weight
    torch.testing.assert_close(after / after.norm(), filters / filters.norm())


def test_statistics_of_batch_norm_start_at_those_of_the_training_images():
    images = smooth_images()
    network = spectral_normalize(WhitenNet(3, 10, image_size=16), DEFAULT)
    network.initialize_from(images)
    # Running variances are those of a sample, with 1 / (n - 1).
    torch.testing.assert_close(
        network.eval()(images).logits, network.train()(images).logits, rtol=0.02, atol=0.02
    )


def test_few_training_images_suffice():
    labels = torch.arange(32) % 2
    images = (50 + 5 * smooth_images(32) + 50 * labels.view(-1, 1, 1, 1)).byte()
    torch.manual_seed(0)
    model = daedl.Classifier(WhitenNet(3, 2, image_size=16), EDLPlus(spectral=DEFAULT))
    recipe = image_recipe(3, 16, 32).options()
    data = ImageSet(images, labels, "shades", "train")
    daedl.fit(model, data, accelerator="cpu", progress=False, **recipe)
    assert (model.predict(images).labels == labels).all()
