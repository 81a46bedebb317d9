"""The density-effect report: values, flips, warnings."""

import pytest
import torch

import daedl
from daedl.density import DensityEffect, DensityScorer, MinMax, density_effect
from daedl.methods import DAEDL
from daedl.networks import MLP
from daedl.outputs import Outputs


@pytest.fixture
def case(blobs):
    features, targets = blobs
    logits = 3 * torch.nn.functional.one_hot(targets, 3).float() + 0.1 * features[:, :3]
    scorer = DensityScorer.fit(features[:400], targets[:400], 3)
    return Outputs(features[400:], logits[400:]), scorer


def test_values(case):
    outputs, scorer = case
    effect = density_effect(outputs, scorer)
    _, score = scorer(outputs.features)
    assert effect.samples == 210
    assert effect.flips == 0
    assert effect.near_zero == pytest.approx(float((score <= 0.05).double().mean()))
    assert effect.near_one == pytest.approx(float((score >= 0.95).double().mean()))
    without = outputs.logits.double().logsumexp(-1)
    with_density = (score[:, None] * outputs.logits).double().logsumexp(-1)
    expected = float((with_density - without).mean())
    assert effect.change_in_log_precision == pytest.approx(expected, rel=1e-5)
    assert effect.advice() is None
    assert "condition number" in str(effect)


def test_selected_covariance_and_its_candidates_are_reported(blobs, case):
    outputs, plain = case
    assert density_effect(outputs, plain).candidates == {}
    assert "covariance               full\n" in str(density_effect(outputs, plain))
    selected = DensityScorer.fit(*blobs, 3, "auto", rank=2)
    effect = density_effect(outputs, selected)
    assert effect.covariance == max(effect.candidates, key=effect.candidates.get)
    assert set(effect.candidates) == {"full", "tied", "diagonal", "low-rank"}
    for name, figure in effect.candidates.items():
        assert f"{name} {figure:.1f}" in str(effect)


def test_ties_at_zero_are_not_flips(case):
    outputs, scorer = case
    nothing = DensityScorer(scorer.density, MinMax(low=1e6, high=2e6))
    effect = density_effect(outputs, nothing)
    assert effect.near_zero == 1
    assert effect.flips == 0


def test_flips_are_counted(case):
    """A negative score, which no normaliser returns, would change predictions."""
    outputs, scorer = case

    class Broken(MinMax):
        def __call__(self, log_density):
            return torch.where(torch.arange(len(log_density)) < 7, -0.5, 0.5)

    effect = density_effect(outputs, DensityScorer(scorer.density, Broken(0.0, 1.0)))
    assert effect.flips == 7


def test_advice_for_inert_and_saturated_densities(case):
    outputs, scorer = case
    inert = DensityScorer(scorer.density, MinMax(low=-1e6, high=0.0))
    advice = density_effect(outputs, inert).advice()
    assert "inert" in advice
    assert "smooth-quantile" in advice
    few = Outputs(outputs.features[:5], outputs.logits[:5])
    assert density_effect(few, inert).advice() is None  # which may be chance
    saturated = DensityScorer(scorer.density, MinMax(low=0.0, high=10.0))
    effect = density_effect(outputs, saturated)
    assert "saturated" in effect.advice()
    assert "warning: the density is saturated" in str(effect)
    few = Outputs(outputs.features[:8], outputs.logits[:8])
    assert "saturated" in density_effect(few, saturated).advice()  # few, but most of them


def test_advice_leaves_out_current_settings(case):
    outputs, scorer = case
    inert = DensityScorer(scorer.density, MinMax(low=-1e6, high=0.0))
    effect = density_effect(outputs, inert, {"normalizer": "half-quantile"})
    assert effect.remedies() == [("normalizer", "smooth-quantile")]
    assert "half-quantile" not in effect.advice()
    saturated = DensityScorer(scorer.density, MinMax(low=0.0, high=10.0))
    current = {"leave_one_out": True, "covariance": "auto", "normalize_features": False}
    effect = density_effect(outputs, saturated, current)
    assert effect.remedies() == [("shrinkage", 0.5), ("normalize_features", True)]
    assert "leave_one_out" not in effect.advice()


@pytest.mark.parametrize(("amount", "larger"), [(0.2, [0.5]), (0.5, [0.9]), (0.9, [])])
def test_a_larger_shrinkage_is_advised_if_there_is_one(blobs, amount, larger):
    features, targets = blobs
    scorer = DensityScorer.fit(features, targets, 3, shrinkage=amount)
    saturated = DensityScorer(scorer.density, MinMax(low=0.0, high=10.0))
    effect = density_effect(Outputs(features, features[:, :3]), saturated)
    assert [value for name, value in effect.remedies() if name == "shrinkage"] == larger
    assert ("shrinkage" in effect.advice()) == bool(larger)


def test_a_classifier_passes_its_settings(blobs):
    classifier = daedl.Classifier(MLP(4, 3, (8,)), DAEDL()).fit_post_hoc(blobs)
    assert classifier.density_effect(blobs).settings == classifier.method.arguments()


@pytest.mark.parametrize(("near_zero", "warns"), [(9, False), (10, True)])
def test_few_samples_near_zero_are_ignored(case, near_zero, warns):
    _, scorer = case
    share = near_zero / 60
    effect = DensityEffect(share, 0.0, 0.5, 0.0, 0, 60, scorer.density.shrunk, "full", {})
    assert (effect.advice() is not None) == warns
