"""The scikit-learn estimator for regression: scikit-learn's own checks, intervals, several targets."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from daedl import DAEDLRegressor
from daedl.methods.regression import DAER


def quick(method="daer", **settings):
    """Returns an estimator that trains fast."""
    defaults = {"hidden": (16,), "max_epochs": 15, "learning_rate": 3e-2, "random_state": 0}
    return DAEDLRegressor(method, **{**defaults, **settings})


STOCHASTIC = {
    f"check_sample_weight_equivalence_on_{kind}_data": "batches are drawn at random"
    for kind in ("dense", "sparse")
}


@pytest.mark.slow
@parametrize_with_checks(
    [quick(max_epochs=30, random_state=None)], expected_failed_checks=lambda _: STOCHASTIC
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def table():
    generator = np.random.default_rng(0)
    samples = generator.normal(size=(500, 3))
    noise = generator.normal(size=500)
    return samples, 100 + 20 * samples[:, 0] + 5 * samples[:, 1] ** 2 + 4 * noise


@pytest.fixture(scope="module")
def fitted(table):
    return quick(conformal_fraction=0.2).fit(*table)


def test_predictions_are_in_the_units_of_the_targets(fitted, table):
    samples, targets = table
    mean, std = fitted.predict(samples, return_std=True)
    assert fitted.score(samples, targets) > 0.85
    assert mean.shape == std.shape == (500,)
    assert 3 < np.median(std) < 12
    low, high = fitted.predict_interval(samples, 0.8)
    assert 0.72 < np.mean((low <= targets) & (targets <= high)) < 0.95
    assert set(fitted.uncertainties_) >= {"aleatoric", "epistemic", "density"}


def test_far_samples_have_the_uncertainty_of_the_training_targets(fitted, table):
    _, std = fitted.predict(1e4 * np.ones((1, 3)), return_std=True)
    assert std == pytest.approx(table[1].std(), rel=0.1)
    near, far = (fitted.score_samples(x) for x in (table[0], 1e4 * np.ones((1, 3))))
    assert far < near.min()


def test_several_targets(table):
    samples, targets = table
    both = np.column_stack([targets, -1000 * targets])
    estimator = quick().fit(samples, both)
    assert estimator.predict(samples).shape == (500, 2)
    assert estimator.score(samples, both) > 0.8
    assert all(score.shape == (500,) for score in estimator.predict_uncertainty(samples).values())


@pytest.mark.parametrize("method", ["daer", "mean", "gaussian-ensemble"])
def test_pickled_and_cloned(table, method):
    estimator = quick(method, max_epochs=1).fit(*table)
    twin = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(twin.predict(table[0]), estimator.predict(table[0]))
    with pytest.raises(NotFittedError):
        clone(estimator).predict(table[0])


def test_grid_search_over_settings(table):
    grid = {"method_settings": [{"prior_nu": 1.0}, {"prior_nu": 2.0}], "hidden": [(4,)]}
    search = GridSearchCV(quick(max_epochs=2), grid, cv=2).fit(*table)
    assert isinstance(search.best_estimator_.model_.method, DAER)


def test_weights_and_bad_input(table):
    samples, targets = table
    weights = np.where(samples[:, 0] > 0, 1.0, 0.0)
    part = quick(max_epochs=2).fit(samples, targets, sample_weight=weights)
    chosen = quick(max_epochs=2).fit(samples[weights > 0], targets[weights > 0])
    np.testing.assert_array_equal(part.predict(samples), chosen.predict(samples))
    with pytest.raises(ValueError, match="100 for all"):
        quick().fit(samples, np.full(500, 100.0))
    with pytest.raises(ValueError, match="NaN"):
        quick().fit(samples, np.where(targets > 100, np.nan, targets))
    with pytest.raises(ValueError, match="infinity"):
        quick().fit(np.where(samples > 2, np.inf, samples), targets)
    with pytest.raises(ValueError, match=r"could not convert|string"):
        quick().fit(samples, np.array(["high"] * 500))
    with pytest.raises(ValueError, match="sample"):
        quick().fit(samples[:1], targets[:1])


@pytest.mark.parametrize(
    ("fraction", "message"),
    [(-0.5, "conformal_fraction is -0.5"), (1.0, "below 1"), (2, "below 1"), (0.05, "at least 39")],
)
def test_invalid_share_for_conformal_intervals(table, fraction, message):
    with pytest.raises(ValueError, match=message):
        quick(conformal_fraction=fraction).fit(*table)
