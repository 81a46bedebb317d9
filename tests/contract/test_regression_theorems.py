"""The counterparts of the paper's Theorems 1 and 4 (docs/regression.md), as properties."""

import itertools
import math
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import daedl
from daedl.methods.regression import DAER
from daedl.methods.regression.evidence import Evidence, combined, fit_evidence
from daedl.networks import MLP
from daedl.nig import NIG


def numbers(*values):
    return [torch.tensor([value], dtype=torch.float64) for value in values]


PRIOR = (0.0, 0.0, math.log(2), math.log(0.5))  # of variance 1


def posterior(s, mean, log_variance, count, sharpness):
    """The prediction with score s."""
    unit = NIG.evidence(*numbers(mean, log_variance), 0.0)
    factors = numbers(count, 1.0, sharpness)
    return combined(
        NIG(*numbers(*PRIOR)), unit, torch.tensor([s], dtype=torch.float64).log(), *factors
    )


MEAN, LOG_VARIANCE = st.floats(-50, 50), st.floats(-12, 6)
COUNT, SHARE = st.floats(4, 1e4), st.floats(0, 1)


@settings(max_examples=150, deadline=None)
@given(MEAN, LOG_VARIANCE, COUNT, st.floats(1, 16))
def test_theorem_1_prediction_tends_to_the_marginal(mean, log_variance, count, sharpness):
    """As s tends to 0 all parameters do, and at s = 0 they are equal."""
    prior = NIG(*numbers(*PRIOR))
    distances = []
    for s in (1e-8, 1e-10, 1e-12, 0.0):
        p = posterior(s, mean, log_variance, count, sharpness)
        distances.append(float(p.kl(prior)))
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(distances))
    assert distances[2] < 1e-3
    assert distances[3] == 0
    assert float(p.variance) == pytest.approx(1)


@settings(max_examples=150, deadline=None)
@given(MEAN, LOG_VARIANCE, COUNT, SHARE, SHARE, SHARE)
def test_theorem_4_doubt_decreases_with_the_score(mean, log_variance, count, share, one, two):
    """1/ν', the epistemic variance relative to the noise, for every κ with κ ν₀ ≤ n."""
    sharpness = 1 + share * (min(count, 16) - 1)
    lower, higher = sorted((one, two))
    doubts = []
    for s in (lower, higher):
        p = posterior(s, mean, log_variance, count, sharpness)
        doubt = -float(p.log_nu)
        assert math.exp(doubt) == pytest.approx(float(p.epistemic / p.aleatoric), rel=1e-6)
        doubts.append(doubt)
    assert doubts[0] >= doubts[1] - 1e-12


@settings(max_examples=100, deadline=None)
@given(MEAN, LOG_VARIANCE, COUNT, SHARE, st.floats(1, 16))
def test_the_mean_is_between_the_marginal_and_the_network(mean, log_variance, count, s, sharpness):
    p = posterior(s, mean, log_variance, count, sharpness)
    low, high = sorted((0.0, mean))
    assert low - 1e-9 <= float(p.gamma) <= high + 1e-9


@settings(max_examples=50, deadline=None)
@given(MEAN, LOG_VARIANCE, COUNT, st.floats(1, 16))
def test_the_marginal_has_no_weight_where_the_score_is_1(mean, log_variance, count, sharpness):
    p = posterior(1.0, mean, log_variance, count, sharpness)
    assert float(p.gamma) == pytest.approx(mean)
    assert float(p.log_nu.exp()) == pytest.approx(count)
    # β' / α' is then the variance of the network.
    assert float(p.log_beta - p.log_alpha) == pytest.approx(log_variance)


@pytest.fixture(scope="module")
def trained():
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(500, 3, generator=generator)
    targets = 40 + 10 * samples[:, 0] + torch.randn(500, generator=generator)
    torch.manual_seed(0)
    model = daedl.Regressor(MLP(3, 1, hidden=(16,)))
    data = samples, targets
    daedl.fit(
        model, data, data, max_epochs=15, learning_rate=2e-2, accelerator="cpu", progress=False
    )
    return model, samples, targets


def test_theorem_1_through_a_trained_network(trained):
    """Far inputs, in random directions, have the mean and variance of the training targets."""
    model, _, targets = trained
    direction = torch.nn.functional.normalize(torch.randn(20, 3), dim=-1)
    differences = []
    for distance in (1e1, 1e2, 1e4):
        p = model.predict(distance * direction)
        differences.append(float(((p.mean - targets.mean()) / targets.std()).abs().max()))
    assert differences[2] < 1e-2
    assert differences[2] <= differences[0]
    torch.testing.assert_close(p.std, targets.std().double().expand(20), rtol=0.02, atol=0)
    low, high = p.interval(0.9)
    inside = (low[0] <= targets) & (targets <= high[0])
    assert inside.float().mean() > 0.8


def test_theorem_4_through_a_trained_network(trained):
    """With one Gaussian the doubt is a function of the Mahalanobis distance of the features alone."""
    model, samples, _ = trained
    outputs, _ = model.collect((samples, samples[:, 0]))
    center, spread = outputs.features.mean(0), outputs.features.std(0)
    moved = [
        center + distance * spread * torch.nn.functional.normalize(torch.randn(16), dim=0)
        for distance in torch.linspace(0, 30, 60)
    ]
    p = model.predict_outputs(
        outputs._replace(features=torch.stack(moved), logits=outputs.logits[:60])
    )
    order = p.log_density.argsort(descending=True)
    doubt = (p.epistemic / p.aleatoric)[order]
    assert (doubt.diff() >= -1e-4 * doubt[:-1]).all()
    assert doubt[-1] > 5 * doubt[0]


def test_held_out_data_determine_the_evidence(trained):
    """All three numbers leave their defaults, and the likelihood of the held-out data grows."""
    model, samples, targets = trained
    default = DAER()
    before = Evidence((default.evidence,), (default.noise,), (default.sharpness,))
    after = model.fitted.evidence
    for name in ("counts", "noise", "sharpness"):
        assert getattr(after, name)[0] != pytest.approx(getattr(before, name)[0], rel=1e-2)

    def likelihood(evidence):
        model.fitted.evidence = evidence
        return float(model.predict(samples).nig.log_prob(targets).mean())

    assert likelihood(after) > likelihood(before) + 1e-3


@pytest.mark.parametrize("nu", [1.0, 50.0])
def test_the_evidence_outweighs_any_prior(nu):
    """κ ν₀ ≤ n, however many observations the marginal is worth."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(200, 1, generator=generator, dtype=torch.float64)
    unit = NIG.evidence(truth + 3, torch.zeros_like(truth), 0.0)  # a network that is wrong
    prior = NIG(*numbers(0.0, math.log(nu), math.log(2), math.log(0.5)))
    scores = torch.linspace(0.05, 0.95, 200, dtype=torch.float64)[:, None]
    default = Evidence((8.0,), (1.0,), (12.0,))
    found = fit_evidence(prior, unit, scores.log(), truth, default)
    assert found.sharpness[0] * nu <= found.counts[0] * (1 + 1e-9)


def test_the_evidence_that_is_fitted_satisfies_the_condition(trained):
    evidence = trained[0].fitted.evidence
    (counts,), (sharpness,) = evidence.counts, evidence.sharpness
    assert 1 <= sharpness <= counts / DAER().prior_nu + 1e-9
    assert {each.name for each in fields(evidence)} == {"counts", "noise", "sharpness"}
