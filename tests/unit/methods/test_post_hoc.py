"""Post-hoc methods: temperature scaling, energy, max logit, GEN, and shared training with softmax."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

import daedl
from daedl import SpectralNorm
from daedl.methods import DIPEDL, GEN, RelativeMahalanobis, Softmax, ViM
from daedl.methods.adats import AdaTS
from daedl.methods.ddu import DDU
from daedl.methods.energy import Energy
from daedl.methods.knn import NearestNeighbours
from daedl.methods.mahalanobis import Mahalanobis
from daedl.methods.max_logit import MaxLogit
from daedl.methods.post_hoc import tempered
from daedl.methods.temperature import Temperature, TemperatureScaling, best_temperature
from daedl.outputs import Outputs

GAUSSIANS = (DDU, Mahalanobis, RelativeMahalanobis)
ALL = (*GAUSSIANS, TemperatureScaling, Energy, MaxLogit, GEN, NearestNeighbours, ViM, AdaTS, DIPEDL)
LOGITS = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
OUT = Outputs(torch.zeros(1, 2, dtype=torch.float64), LOGITS)


def sampled(scale, count=4000, seed=0):
    """Logits (N, 5) multiplied by `scale`, and classes (N,) drawn from the unscaled softmax."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, 5, generator=generator)
    targets = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return scale * logits, targets


@pytest.mark.parametrize("kind", [*GAUSSIANS, NearestNeighbours, DIPEDL])
def test_scores_in_half_precision_are_finite_and_increase_with_distance(kind, blobs):
    features, targets = blobs
    method = kind()
    logits = torch.zeros(len(features), 3)
    fitted = method.fit(Outputs(features, logits), targets)
    far = torch.stack([torch.zeros(4), torch.full((4,), 2e3), torch.full((4,), 2e4)]).half()
    epistemic = method.predict(Outputs(far, logits[:3].half()), fitted).epistemic
    assert torch.isfinite(epistemic).all()
    if (
        kind in GAUSSIANS
    ):  # of nearest neighbours only the direction matters, and DIP-EDL ties far away
        assert epistemic[1] < epistemic[2]


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0, 20.0])
def test_temperature_equals_the_optimum_of_scipy(scale):
    logits, targets = sampled(scale)

    def nll(log_temperature):
        log_probs = log_softmax(logits.double().numpy() / np.exp(log_temperature), axis=1)
        return -log_probs[np.arange(len(targets)), targets].mean()

    computed = best_temperature(logits, targets)
    expected = minimize_scalar(nll, bounds=(-2, 4), method="bounded", options={"xatol": 1e-9})
    assert math.log(computed) == pytest.approx(expected.x, abs=1e-6)
    # The classes were drawn at temperature 1, so the optimum is near the scale.
    assert computed == pytest.approx(scale, rel=0.1)


@given(gap=st.floats(0.5, 40), right=st.integers(51, 99))
@settings(max_examples=50, deadline=None)
def test_temperature_of_two_classes_in_closed_form(gap, right):
    """Logits differ by g and a fraction r is correct: sigmoid(g / T) = r."""
    logits = torch.tensor([[gap, 0.0]], dtype=torch.float64).expand(100, 2)
    targets = (torch.arange(100) >= right).long()
    expected = min(max(gap / math.log(right / (100 - right)), 0.1), 100)
    assert best_temperature(logits, targets) == pytest.approx(expected, rel=1e-9)


def test_temperature_stays_within_bounds():
    logits = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    # Without errors the loss is minimal at T = 0, with errors only at infinity.
    assert best_temperature(logits, logits.argmax(-1)) == 0.1
    assert best_temperature(logits, logits.argmin(-1)) == 100
    assert best_temperature(1e30 * logits, logits.argmax(-1)) == 0.1


def test_tempered_probabilities():
    p = TemperatureScaling().predict(OUT, Temperature(2.0))
    e = [math.exp(1), 1.0, math.exp(-0.5)]
    assert p.probs[0].tolist() == pytest.approx([x / sum(e) for x in e])
    assert p.epistemic is None
    untouched = TemperatureScaling().predict(OUT, Temperature(1.0))
    assert untouched.probs[0].tolist() == pytest.approx([0.843795, 0.114195, 0.0420101], abs=5e-7)


@pytest.mark.parametrize("temperature", [1e-3, 0.1, 3.0, 1e30])
def test_temperature_does_not_change_the_class(temperature):
    logits = torch.randn(300, 10, generator=torch.Generator().manual_seed(0))
    p = tempered(logits, torch.full((300,), temperature))
    assert torch.equal(p.labels, logits.argmax(-1))
    assert p.probs.dtype == torch.float32
    # Even if z / T overflows float32.
    huge = tempered(1e37 * logits, torch.full((300,), temperature))
    assert torch.isfinite(huge.probs).all()
    assert torch.equal(huge.labels, logits.argmax(-1))


def test_temperature_calibrates_held_out_data():
    method = TemperatureScaling()
    fitted = method.fit(*_outputs(4.0))
    others, truth = _outputs(4.0, seed=1)
    before, after = Softmax().predict(others, None), method.predict(others, fitted)
    assert daedl.metrics.ece(before.probs, truth) > 0.1
    assert daedl.metrics.ece(after.probs, truth) < 0.03
    assert daedl.metrics.nll(after.probs, truth) < 0.5 * daedl.metrics.nll(before.probs, truth)


def test_energy():
    assert float(Energy().predict(OUT, None).epistemic) == pytest.approx(-2.169846, abs=5e-7)
    warm = Energy(temperature=2.0).predict(OUT, None)
    expected = -2 * math.log(math.exp(1) + 1 + math.exp(-0.5))
    assert float(warm.epistemic) == pytest.approx(expected)
    assert torch.equal(warm.probs, Softmax().predict(OUT, None).probs)


def test_max_logit():
    p = MaxLogit().predict(OUT, None)
    assert p.epistemic.tolist() == [-2.0]
    assert torch.equal(p.probs, Softmax().predict(OUT, None).probs)


def test_gen():
    """The worked number of the paper's defaults, and M = 2 by hand."""
    out = Outputs(OUT.features, torch.tensor([[0.7, 0.2, 0.1]]).double().log())
    assert float(GEN().predict(out, None).epistemic) == pytest.approx(2.474060, abs=5e-7)
    two = GEN(gamma=0.5, classes=2).predict(out, None).epistemic
    assert float(two) == pytest.approx(math.sqrt(0.7 * 0.3) + math.sqrt(0.2 * 0.8))


def test_gen_of_confident_predictions_does_not_round_to_zero():
    """With two classes and a logit difference g, the score is 2 (p (1 − p))^γ, about 2 exp(−γ g)."""
    logits = torch.tensor([[40.0, 0.0], [60.0, 0.0], [80.0, 0.0]])
    computed = GEN().predict(Outputs(logits, logits), None).epistemic
    assert computed.tolist() == pytest.approx([2 * math.exp(-g / 10) for g in (40, 60, 80)])


def test_energy_decomposes_into_max_logit_and_max_probability():
    """−E = max z − ln max p, as in the paper; as T tends to 0 it is max z."""
    logits = 3 * torch.randn(100, 7, generator=torch.Generator().manual_seed(0)).double()
    out = Outputs(logits, logits)
    energy, largest = Energy().predict(out, None), MaxLogit().predict(out, None)
    expected = largest.epistemic + energy.probs.amax(-1).log()
    torch.testing.assert_close(energy.epistemic, expected)
    cold = Energy(temperature=1e-4).predict(out, None)
    torch.testing.assert_close(cold.epistemic, largest.epistemic, rtol=0, atol=1e-3)


@pytest.mark.parametrize("method", [Energy(), MaxLogit()], ids=lambda m: m.name)
def test_logit_scores_depend_on_a_constant_added_to_all_logits(method):
    """The softmax does not."""
    lower = Outputs(OUT.features, LOGITS - 5)
    high, low = method.predict(OUT, None), method.predict(lower, None)
    torch.testing.assert_close(low.probs, high.probs)
    torch.testing.assert_close(low.epistemic, high.epistemic + 5)


@pytest.mark.parametrize("kind", ALL)
def test_all_share_the_training_of_softmax(kind):
    assert kind().training_method() == Softmax()
    assert type(kind().training_method()) is Softmax
    spectral = SpectralNorm(norm="operator", coefficient=3, soft=True)
    shared = kind(spectral=spectral, reduction="sum").training_method()
    assert shared == Softmax(spectral=spectral, reduction="sum")
    out = Outputs(torch.zeros(1, 2), torch.tensor([[0.3, -0.2, 0.5]]))
    assert torch.equal(
        kind().loss(out, torch.tensor([2]), 3), shared.loss(out, torch.tensor([2]), 3)
    )


def _outputs(scale, seed=0):
    logits, targets = sampled(scale, seed=seed)
    return Outputs(logits, logits), targets


@pytest.mark.parametrize("kind", [DDU, Mahalanobis])
def test_shrinkage_setting_is_applied(kind, blobs):
    outputs = Outputs(blobs[0], torch.zeros(len(blobs[0]), 3))
    fitted = kind(shrinkage=0.25).fit(outputs, blobs[1])
    assert fitted.amount.unique().tolist() == [0.25]
    again = kind(shrinkage=0.5).refit(fitted, outputs, blobs[1])
    assert again.amount.unique().tolist() == [0.5]


def test_smoothed_temperature_against_scipy_and_without_errors():
    """Targets 1 − ε and ε: T stays above its bound if no held-out prediction is wrong."""
    logits = 8 * torch.randn(40, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    targets = logits.argmax(-1)
    epsilon = 1 / (len(targets) + 2)
    smooth = (1 - epsilon) * torch.eye(3)[targets].double() + epsilon / 3

    def loss(temperature: float) -> float:
        return float(-(smooth * (logits / temperature).log_softmax(-1)).sum(-1).mean())

    expected = minimize_scalar(loss, bounds=(0.1, 100), method="bounded", options={"xatol": 1e-9}).x
    assert best_temperature(logits, targets, epsilon) == pytest.approx(expected, rel=1e-5)
    assert best_temperature(logits, targets) == 0.1
