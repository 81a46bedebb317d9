"""Worked numbers and invariants of softmax, LogitNorm, EDL, EDL+ and DAEDL."""

import math

import pytest
import torch

from daedl.density import DensityScorer
from daedl.methods import DAEDL, EDL, EDLPlus, LogitNorm, Softmax
from daedl.outputs import Outputs

LOGITS = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
FEATURES = torch.zeros(1, 2, dtype=torch.float64)
OUT = Outputs(FEATURES, LOGITS)
TARGET = torch.tensor([0])


class FixedScore(DensityScorer):
    """A scorer with the same score for all samples."""

    def __init__(self, score):
        torch.nn.Module.__init__(self)
        self.score, self.temperature = score, 1.0

    def forward(self, features):
        values = torch.full((len(features),), self.score, dtype=features.dtype)
        return values, values


def test_softmax():
    p = Softmax().predict(OUT, None)
    assert p.probs[0].tolist() == pytest.approx([0.843795, 0.114195, 0.0420101], abs=5e-7)
    assert float(Softmax().loss(OUT, TARGET, 0)) == pytest.approx(0.169846, abs=5e-7)
    entropy = -(p.probs * p.probs.log()).sum()
    assert float(entropy) == pytest.approx(0.524267, abs=5e-7)
    assert p.epistemic is None


@pytest.mark.parametrize(("target", "expected"), [(0, 3.69396e-5), (1, 10.20624)])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_logitnorm(target, expected, scale):
    """The loss does not depend on the norm of the logits."""
    logits = scale * torch.tensor([[2.0, 1.0, -1.0]], dtype=torch.float64)
    out, method = Outputs(FEATURES, logits), LogitNorm()
    assert float(method.loss(out, torch.tensor([target]), 0)) == pytest.approx(expected, rel=1e-4)
    assert torch.equal(method.predict(out, None).probs, logits.softmax(-1))


@pytest.mark.parametrize(
    ("activation", "alpha", "mse", "kl", "vacuity"),
    [
        ("relu", [3, 1, 1], 0.333333, 0.0, 0.6),
        ("softplus", [3.12693, 1.69315, 1.31326], 0.448964, 0.140664, 0.489130),
    ],
)
def test_edl(activation, alpha, mse, kl, vacuity):
    method = EDL(activation=activation)
    p = method.predict(OUT, None)
    assert p.alpha[0].tolist() == pytest.approx(alpha, abs=5e-6)
    assert float(p.dirichlet.vacuity) == pytest.approx(vacuity, abs=5e-7)
    for epoch, weight in ((0, 0.0), (5, 0.5), (10, 1.0), (math.inf, 1.0)):
        expected = mse + weight * kl
        assert float(method.loss(OUT, TARGET, epoch)) == pytest.approx(expected, abs=1e-6)
    # Belief and uncertainty mass sum to one.
    belief = (p.alpha - 1) / p.dirichlet.precision
    assert float(belief.sum() + p.dirichlet.vacuity) == pytest.approx(1)


def test_edl_rejects_other_activations():
    with pytest.raises(ValueError, match="activation is 'exp'"):
        EDL(activation="exp")


def test_edl_plus():
    p = EDLPlus().predict(OUT, None)
    assert p.alpha[0].tolist() == pytest.approx([7.38906, 1, 0.367879], abs=5e-6)
    assert float(p.dirichlet.precision) == pytest.approx(8.75694, abs=5e-6)
    assert float(EDLPlus().loss(OUT, TARGET, 0)) == pytest.approx(0.107232, abs=5e-7)
    assert EDLPlus().reduction == "sum"


def test_daedl_with_a_given_score():
    p = DAEDL().predict(OUT, FixedScore(0.4))
    assert p.alpha[0].tolist() == pytest.approx([2.22554, 1, 0.670320], abs=5e-6)
    assert float(p.dirichlet.precision) == pytest.approx(3.89586, abs=5e-6)
    assert float(p.probs.max()) == pytest.approx(0.571258, abs=5e-7)


def test_daedl_with_score_one_is_edl_plus_and_with_zero_uniform():
    torch.manual_seed(0)
    out = Outputs(torch.randn(50, 2), 10 * torch.randn(50, 4))
    full, plus = DAEDL().predict(out, FixedScore(1.0)), EDLPlus().predict(out, None)
    assert torch.equal(full.log_alpha, plus.log_alpha)
    nothing = DAEDL().predict(out, FixedScore(0.0))
    assert (nothing.alpha == 1).all()
    torch.testing.assert_close(nothing.probs, torch.full((50, 4), 0.25))
    torch.testing.assert_close(nothing.dirichlet.precision, torch.full((50,), 4.0))
    # All α are equal, so labels come from the logits.
    assert torch.equal(nothing.labels, out.logits.argmax(-1))


@pytest.mark.parametrize("score", [1e-6, 0.01, 0.3, 0.99])
def test_density_does_not_change_the_predicted_class(score):
    torch.manual_seed(1)
    out = Outputs(torch.randn(500, 2), torch.randn(500, 10))
    p = DAEDL().predict(out, FixedScore(score))
    assert torch.equal(p.labels, out.logits.argmax(-1))
    assert torch.equal(p.log_alpha.argmax(-1), p.labels)


def test_daedl_predicts_every_image_independently(blobs):
    """In any order, and alone as in a batch."""
    features, targets = blobs
    logits = torch.randn(610, 3, generator=torch.Generator().manual_seed(0))
    method = DAEDL()
    scorer = method.fit(Outputs(features, logits), targets)
    whole = method.predict(Outputs(features, logits), scorer)
    order = torch.randperm(610)
    shuffled = method.predict(Outputs(features[order], logits[order]), scorer)
    torch.testing.assert_close(shuffled.log_alpha, whole.log_alpha[order], rtol=1e-5, atol=1e-5)
    alone = method.predict(Outputs(features[7:8], logits[7:8]), scorer)
    torch.testing.assert_close(alone.log_alpha[0], whole.log_alpha[7], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"covariance": "ful"}, ValueError, "did you mean 'full'"),
        ({"normalizer": "min-max"}, ValueError, "did you mean 'minmax'"),
        ({"shrinkage": "Auto"}, ValueError, "shrinkage is 'Auto'"),
        ({"shrinkage": 2}, ValueError, "shrinkage is 2"),
        ({"anneal_epochs": -1}, ValueError, "anneal_epochs is -1"),
        ({"kl_weight": float("nan")}, ValueError, "weight is nan"),
        ({"normalize_features": 1}, ValueError, "normalize_features is 1"),
    ],
)
def test_invalid_settings_are_rejected(settings, error, message):
    with pytest.raises(error, match=message):
        DAEDL(**settings)


def test_daedl_shares_training_with_edl_plus():
    """With and without density, and with every covariance structure."""
    shared = DAEDL(kl_weight=0.1).training_method()
    assert shared == EDLPlus(kl_weight=0.1, spectral=DAEDL().spectral)
    assert shared == DAEDL(kl_weight=0.1, covariance="tied", leave_one_out=True).training_method()
    assert DAEDL(spectral=None).training_method() == EDLPlus()
    assert EDL().training_method() == EDL()
    logits = torch.tensor([[0.3, -0.2, 0.5]])
    outputs = Outputs(torch.zeros(1, 2), logits)
    assert torch.equal(
        DAEDL().loss(outputs, TARGET, 3), DAEDL().training_method().loss(outputs, TARGET, 3)
    )


def test_edl_labels_come_from_the_logits_if_all_evidence_underflows():
    """Softplus of -250 is 0 in float32."""
    logits = torch.tensor([[-400.0, -250.0, -300.0], [-500.0, -300.0, -200.0]])
    for activation in ("softplus", "relu"):
        prediction = EDL(activation=activation).predict(Outputs(torch.zeros(2, 1), logits), None)
        assert (prediction.log_alpha == 0).all()
        assert prediction.labels.tolist() == [1, 2]


def test_kl_weight_is_annealed_over_the_given_epochs():
    outputs = Outputs(torch.zeros(2, 2), torch.tensor([[1.0, 0.5, -1.0], [0.0, 2.0, 0.3]]))
    targets = torch.tensor([0, 2])
    method, bare = EDLPlus(kl_weight=0.4, anneal_epochs=10), EDLPlus(kl_weight=0.0)
    none = bare.loss(outputs, targets, 0)
    whole = EDLPlus(kl_weight=0.4).loss(outputs, targets, 0)
    torch.testing.assert_close(method.loss(outputs, targets, 0), none)
    torch.testing.assert_close(method.loss(outputs, targets, 5), (none + whole) / 2)
    torch.testing.assert_close(method.loss(outputs, targets, 40), whole)
    assert (whole > none).all()


def published_loss(logits, targets):
    """The published code's loss per sample: α = exp(z) + 1e-6, constant weight."""
    alpha = logits.exp() + 1e-6
    total = alpha.sum(-1, keepdim=True)
    truth = torch.nn.functional.one_hot(targets, alpha.shape[-1])
    variance = alpha * (total - alpha) / (total**2 * (total + 1))
    error = ((truth - alpha / total) ** 2 + variance).sum(-1)
    masked = truth + (1 - truth) * alpha
    uniform = torch.distributions.Dirichlet(torch.ones_like(masked))
    kl = torch.distributions.kl_divergence(torch.distributions.Dirichlet(masked), uniform)
    return error + 0.05 * kl


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_loss_is_the_published_one_for_up_to_ten_classes(classes):
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(50, classes, dtype=torch.float64, generator=generator)
    outputs, targets = Outputs(torch.zeros(50, 2), logits), torch.arange(50) % classes
    for method in (EDLPlus(), DAEDL(), DAEDL.as_published()):
        torch.testing.assert_close(
            method.loss(outputs, targets, 0), published_loss(logits, targets)
        )


@pytest.mark.parametrize(("classes", "share"), [(11, (10 / 11) ** 2), (150, 1 / 225), (1000, 1e-4)])
def test_kl_weight_decreases_with_more_than_ten_classes(classes, share):
    generator = torch.Generator().manual_seed(0)
    outputs = Outputs(torch.zeros(9, 2), torch.randn(9, classes, generator=generator).double())
    targets = torch.arange(9)
    bare = EDLPlus(kl_weight=0.0).loss(outputs, targets, 0)
    whole = published_loss(outputs.logits, targets) - bare
    torch.testing.assert_close(EDLPlus().loss(outputs, targets, 0) - bare, share * whole)


@pytest.mark.parametrize("wrong", [-90.0, -20.0, 0.0, 20.0, 90.0])
@pytest.mark.parametrize("right", [-90.0, 0.0, 90.0])
def test_loss_and_gradient_are_finite_in_float32(wrong, right):
    logits = torch.tensor([[right, wrong, -wrong]], requires_grad=True)
    loss = EDLPlus().loss(Outputs(torch.zeros(1, 2), logits), TARGET, 0)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
def test_gradient_of_small_wrong_concentrations_is_limited_by_the_floor(dtype, rtol):
    """Without the floor, the gradient at a logit of -20 is -0.05 exp(20), about -2e7."""
    row = [[2.0, -20.0, 0.5]]
    exact = torch.tensor(row, dtype=torch.float64, requires_grad=True)
    ours = torch.tensor(row, dtype=dtype, requires_grad=True)
    (wanted,) = torch.autograd.grad(published_loss(exact, TARGET).sum(), exact)
    loss = EDLPlus().loss(Outputs(torch.zeros(1, 2), ours), TARGET, 0)
    (gradient,) = torch.autograd.grad(loss.sum(), ours)
    torch.testing.assert_close(gradient.double(), wanted, rtol=rtol, atol=1e-6)
    assert gradient.abs().max() < 200


def test_settings_are_passed_to_the_density(blobs):
    features, targets = blobs
    outputs = Outputs(features, torch.zeros(len(features), 3))
    method = DAEDL(
        leave_one_out=True, shrinkage=0.3, normalizer="smooth-quantile", covariance="tied"
    )
    given = {"covariance": "tied", "shrinkage": 0.3, "normalizer": "smooth-quantile"}
    expected = DensityScorer.fit(features, targets, 3, **given, leave_one_out=True)
    computed = method.fit(outputs, targets)
    assert computed.settings() == expected.settings()
    assert computed.normalizer != DensityScorer.fit(features, targets, 3, **given).normalizer
    again = method.refit(computed, outputs, targets)
    assert again.settings() == expected.merged(features, targets, 0.3, True).settings()
    assert again.normalizer != expected.merged(features, targets, 0.3).normalizer
