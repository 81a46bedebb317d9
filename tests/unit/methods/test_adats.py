"""AdaTS: architecture, loss against SciPy, determinism."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import log_softmax
from scipy.stats import laplace, norm
from torch import nn

from daedl.methods import Softmax
from daedl.methods.adats import AdaptiveTemperature, AdaTS, layers
from daedl.outputs import Outputs

LOGITS = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)


def outputs(dtype=torch.float32, scale=1.0):
    """Features and overconfident logits of 200 samples; every third label is wrong."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(200) % 3
    features = torch.randn(200, 5, generator=generator) + 3 * torch.eye(5)[truth]
    logits = 12 * features[:, :3] / 3
    targets = torch.where(torch.arange(200) % 9 < 6, truth, (truth + 1) % 3)
    return Outputs((scale * features).to(dtype), logits.to(dtype)), targets


@pytest.fixture(scope="module")
def fitted():
    return AdaTS(epochs=3).fit(*outputs())


def module(features=5, classes=3):
    torch.manual_seed(0)
    return AdaptiveTemperature(features, classes)


def linear(sequence):
    return [(m.in_features, m.out_features) for m in sequence.modules() if isinstance(m, nn.Linear)]


def test_published_architecture():
    adaptive = module(576, 10)
    assert linear(adaptive.encoder) == [(576, 1024), (1024, 512), (512, 512), (512, 32)]
    assert linear(adaptive.temperature) == [(10, 128), (128, 128), (128, 1)]
    kinds = [type(m) for m in adaptive.encoder.modules() if not [*m.children()]]
    expected = [nn.Linear, nn.ELU, nn.Linear, nn.ELU, nn.Linear, nn.Softplus, nn.Linear]
    assert kinds == expected
    assert [type(m) for m in layers(16, 1024, 8)] == [nn.Linear, nn.ELU, nn.Linear]
    assert adaptive.priors().mean.shape == (10, 16)
    features = torch.randn(5, 576)
    q = adaptive.posterior(features)
    latent = q.mean + q.stddev * adaptive.noise
    torch.testing.assert_close(adaptive(features), adaptive.of_latent(latent))
    assert (AdaTS().epochs, AdaTS.fit_split) == (100, "validation")


def test_worked_numbers():
    """A pre-activation of 0.5 gives T = 0.974077."""
    adaptive = module().double()
    last = adaptive.temperature[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(0.5)
    assert adaptive(torch.randn(1, 5).double()).item() == pytest.approx(0.974077, abs=5e-7)
    p = AdaTS().predict(Outputs(torch.randn(1, 5).double(), LOGITS), adaptive)
    assert p.probs[0].tolist() == pytest.approx([0.851581, 0.109275, 0.0391443], abs=5e-7)
    assert -p.probs[0, 0].log().item() == pytest.approx(0.160661, abs=5e-7)
    assert p.epistemic is None
    with torch.no_grad():
        last.bias.fill_(-80.0)
    assert adaptive(torch.randn(1, 5).double()).item() == pytest.approx(1e-3)


def gaussian(parameters):
    mean, scale = np.split(parameters.detach().numpy(), 2, axis=-1)
    return mean, np.maximum(np.logaddexp(0, scale), 1e-3)


def test_loss_and_temperature_against_scipy():
    adaptive, decoder = module().double(), layers(16, 8, 5).double()
    (features, logits, _), targets = outputs(torch.float64)
    torch.manual_seed(3)
    computed = adaptive.loss(features, logits, targets, decoder)
    torch.manual_seed(3)
    noise = torch.normal(torch.zeros(200, 16).double(), torch.ones(200, 16).double()).numpy()

    q_mean, q_scale = gaussian(adaptive.encoder(features))
    p_mean, p_scale = gaussian(adaptive.classes.weight.T)
    v = q_mean + q_scale * noise
    log_densities = norm.logpdf(v[:, None], p_mean, p_scale).sum(-1)
    with torch.no_grad():
        pre = adaptive.temperature(torch.tensor(log_densities))[:, 0].numpy()
        decoded = decoder(torch.tensor(v)).numpy()
    temperature = np.maximum(np.logaddexp(0, pre), 1e-3)
    torch.testing.assert_close(adaptive.of_latent(torch.tensor(v)), torch.tensor(temperature))

    mean, scale = p_mean[targets], p_scale[targets]
    ratio = (q_scale / scale) ** 2
    kl = 0.5 * (ratio + ((q_mean - mean) / scale) ** 2 - 1 - np.log(ratio)).sum(-1)
    likelihood = laplace.logpdf(features.numpy(), decoded, 1).sum(-1)
    log_probs = log_softmax(logits.numpy() / temperature[:, None], axis=1)
    cross_entropy = -log_probs[np.arange(200), targets]
    assert computed.item() == pytest.approx((kl - likelihood + cross_entropy).mean(), rel=1e-9)


def test_classes_are_unchanged_and_training_reduces_the_loss(fitted):
    out, targets = outputs()
    method = AdaTS()
    before, after = Softmax().predict(out, None), method.predict(out, fitted)
    assert torch.equal(after.labels, before.labels)
    assert torch.equal(after.probs.argmax(-1), before.labels)
    trained = AdaTS(epochs=12).fit(out, targets)
    first, last = (
        F.cross_entropy(out.logits / f(out.features)[:, None], targets) for f in (fitted, trained)
    )
    assert last < first < F.cross_entropy(out.logits, targets)
    assert trained(out.features).std() > 0  # differs between samples


def test_predictions_are_deterministic_and_independent_of_the_batch(fitted):
    out, _ = outputs()
    method = AdaTS()
    whole = method.predict(out, fitted).probs
    torch.manual_seed(123)
    assert torch.equal(method.predict(out, fitted).probs, whole)
    for i in (0, 7, 199):
        alone = method.predict(Outputs(*(part[i : i + 1] for part in out)), fitted).probs
        torch.testing.assert_close(alone[0], whole[i])


def test_fit_is_seeded_and_keeps_the_random_state(fitted):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    again = AdaTS(epochs=3).fit(*outputs())
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in fitted.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    other = AdaTS(epochs=1, seed=1).fit(*outputs())
    assert not torch.equal(other.noise, fitted.noise)
    with torch.no_grad():  # fit enables gradients itself
        AdaTS(epochs=1).fit(*outputs())


def test_decoder_is_not_stored(fitted):
    parts = {name.partition(".")[0] for name in fitted.state_dict()}
    assert parts == {"encoder", "classes", "temperature", "noise"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e4, 1e8, 1e30])
def test_fit_to_features_of_any_scale_is_finite(scale, dtype):
    out, targets = outputs(dtype, scale)
    method = AdaTS(epochs=1)
    fitted = method.fit(out, targets)
    assert all(torch.isfinite(tensor).all() for tensor in fitted.state_dict().values())
    p = method.predict(out, fitted)
    assert p.probs.dtype == dtype
    assert torch.isfinite(p.probs).all()
    assert torch.equal(p.labels, out.logits.argmax(-1))


def test_ood_features_of_any_scale_have_finite_predictions(fitted):
    out, _ = outputs()
    for scale in (1e3, 1e9, 1e30, 1e38):
        far = Outputs(scale * out.features.clamp(-1, 1), 80 * out.logits.sign())
        assert torch.isfinite(AdaTS().predict(far, fitted).probs).all()


def test_only_a_random_subset_is_trained_on():
    """Labels of the other samples have no effect."""
    out, targets = outputs()
    few = AdaTS(epochs=1, samples=50)
    torch.manual_seed(few.seed)
    kept = torch.randperm(200)[:50]
    changed = targets.clone()
    left_out = torch.ones(200, dtype=torch.bool)
    left_out[kept] = False
    changed[left_out] = (changed[left_out] + 1) % 3
    first, second = few.fit(out, targets), few.fit(out, changed)
    assert torch.equal(first(out.features), second(out.features))
    assert not torch.equal(AdaTS(epochs=1).fit(out, targets)(out.features), first(out.features))
