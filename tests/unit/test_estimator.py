"""The scikit-learn estimator: scikit-learn's own checks, its tools, uncertainties, bad input."""

import pickle
import random
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import parametrize_with_checks

from daedl.estimator import DAEDLClassifier
from daedl.methods import DAEDL, Softmax
from daedl.networks import MLP, ConvNet
from daedl.training import tables

EXAMPLE = Path(__file__).parents[2] / "examples" / "tabular.py"


def quick(method="daedl", **settings):
    """Returns an estimator that trains fast."""
    defaults = {"hidden": (16,), "max_epochs": 6, "batch_size": 64, "learning_rate": 3e-2}
    return DAEDLClassifier(method, **{**defaults, "random_state": 0, **settings})


# Repeated samples change the order of batches, and thus the trained weights.
STOCHASTIC = {
    f"check_sample_weight_equivalence_on_{kind}_data": "batches are drawn at random"
    for kind in ("dense", "sparse")
}


@pytest.mark.slow
@parametrize_with_checks(
    [quick(max_epochs=10, random_state=None)], expected_failed_checks=lambda _: STOCHASTIC
)
def test_scikit_learn_checks(estimator, check):
    """All of scikit-learn's estimator checks."""
    check(estimator)


@pytest.fixture(scope="module")
def table(blobs):
    """Three classes of samples (610, 4) with string labels (610,)."""
    samples, targets = blobs
    return samples.double().numpy(), np.array(["ash", "birch", "cedar"])[targets.numpy()]


@pytest.fixture(scope="module")
def fitted(table):
    return quick().fit(*table)


class TestTools:
    def test_pipelines_forward_the_methods_of_classifiers(self, table):
        samples, labels = table
        pipeline = make_pipeline(PolynomialFeatures(2, include_bias=False), quick())
        pipeline.fit(samples, labels)
        assert pipeline.score(samples, labels) > 0.8
        # 4 features, their squares and their products.
        assert pipeline[-1].n_features_in_ == 14
        density = pipeline[-1].predict_uncertainty(pipeline[:-1].transform(samples))["density"]
        np.testing.assert_array_equal(pipeline.score_samples(samples), -density)

    @pytest.mark.slow
    def test_grid_search_over_method_settings(self, table):
        """An excessive penalty, which removes all evidence, has the larger log loss."""
        grid = {
            "method_settings": [{"kl_weight": 1e4}, {"kl_weight": 0.05}],
            "hidden": [(8,), (16,)],
        }
        search = GridSearchCV(quick(max_epochs=3), grid, scoring="neg_log_loss", cv=2)
        search.fit(*table)
        assert search.best_params_["method_settings"] == {"kl_weight": 0.05}
        assert search.best_estimator_.model_.method.kl_weight == 0.05
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()

    @pytest.mark.parametrize("method", ["daedl", "softmax", "postnet", "ensemble"])
    def test_pickled_estimators_predict_the_same(self, table, method):
        samples, labels = table
        estimator = quick(method, max_epochs=1).fit(samples, labels)
        twin = pickle.loads(pickle.dumps(estimator))
        np.testing.assert_array_equal(twin.predict_proba(samples), estimator.predict_proba(samples))
        before, after = (each.predict_uncertainty(samples) for each in (estimator, twin))
        assert list(after) == list(before) == twin.uncertainties_
        for name in before:
            np.testing.assert_array_equal(after[name], before[name])

    def test_clones_are_unfitted_with_the_same_settings(self, fitted, table):
        twin = clone(fitted)
        with pytest.raises(NotFittedError, match="not fitted"):
            twin.score_samples(table[0])
        np.testing.assert_array_equal(twin.fit(*table).predict(table[0]), fitted.predict(table[0]))


class TestTraining:
    def test_fitted_attributes(self, fitted, table):
        assert fitted.score(*table) > 0.85
        assert fitted.classes_.tolist() == fitted.model_.class_names == ["ash", "birch", "cedar"]
        assert fitted.n_iter_ == len(fitted.history_.epochs) == 6
        assert fitted.density_effect_.samples == 61

    def test_labels_of_any_type_give_the_same_model(self, fitted, table):
        samples, labels = table
        numbers = np.unique(labels, return_inverse=True)[1] * 2.0 - 7
        other = quick().fit(samples, numbers)
        assert other.classes_.tolist() == [-7, -5, -3]
        np.testing.assert_array_equal(other.predict_proba(samples), fitted.predict_proba(samples))

    def test_random_state_is_reproducible_and_preserves_global_states(self, fitted, table):
        def state():
            return (random.random(), np.random.rand(), torch.rand(1).item())  # noqa: NPY002

        def seed():
            random.seed(5)
            np.random.seed(5)  # noqa: NPY002
            torch.manual_seed(5)

        seed()
        expected = state()
        seed()
        again = quick().fit(*table)
        assert state() == expected
        np.testing.assert_array_equal(again.predict_proba(table[0]), fitted.predict_proba(table[0]))
        other = quick(random_state=1).fit(*table)
        assert np.abs(other.predict_proba(table[0]) - fitted.predict_proba(table[0])).max() > 0.01

    def test_scaled_and_constant_features(self, fitted, table):
        samples, labels = table
        scaled = np.column_stack([samples * [1, 1e-6, 1e6, -3] + 1e3, np.full(len(samples), 7.0)])
        other = quick().fit(scaled, labels)
        assert other.score(scaled, labels) == pytest.approx(fitted.score(samples, labels), abs=0.05)
        assert np.isfinite(other.score_samples(scaled)).all()
        plain = quick(standardize=False).fit(samples, labels)
        assert torch.equal(plain._inputs(samples), torch.tensor(samples, dtype=torch.float64))

    @pytest.mark.parametrize(
        ("samples", "batch_size", "epochs"),
        [(1, 32, 50), (6_399, 32, 50), (6_400, 64, 50), (20_000, 128, 25), (10**6, 512, 20)],
    )
    def test_batches_grow_and_epochs_shrink_with_the_data(self, samples, batch_size, epochs):
        assert (tables.table_batch_size(samples), tables.table_epochs(samples)) == (
            batch_size,
            epochs,
        )

    def test_early_stopping_on_held_out_samples(self, table):
        estimator = quick(max_epochs=50, learning_rate=0.3, patience=2, validation_fraction=0.3)
        estimator.fit(*table)
        assert estimator.history_.stopped_early
        assert estimator.n_iter_ == estimator.history_.best_epoch + 1 + 2 < 50
        none = quick(max_epochs=2, validation_fraction=0).fit(*table)
        assert none.history_.epochs[0].val_loss is None
        assert none.density_effect_ is None

    def test_outliers_do_not_dominate_training(self):
        """Without gradient clipping the evidence e^z of one outlier dominates Adam's averages."""
        samples, labels = make_blobs(300, 4, centers=3, random_state=0)
        with_outlier = samples.copy()
        with_outlier[0] += 100
        estimator = quick(hidden=(16, 16), max_epochs=10, learning_rate=1e-2, random_state=1)
        assert estimator.fit(with_outlier, labels).score(samples, labels) > 0.95

    def test_held_out_samples_are_stratified(self):
        targets = np.repeat([0, 1, 2], [100, 39, 1])
        held_out = tables.select_held_out(targets, 0.3, np.random.RandomState(0))
        assert np.bincount(targets[held_out], minlength=3).tolist() == [30, 11, 0]
        assert np.bincount(
            targets[tables.select_held_out(targets, 0.99, np.random.RandomState(0))]
        ).tolist() == [99, 38]
        few = np.zeros(10 * tables.MIN_HELD_OUT - 1, dtype=int)
        assert not tables.select_held_out(few, 0.1, np.random.RandomState(0)).any()

    @pytest.mark.parametrize("method", ["daedl", "softmax", "ddu", "temperature"])
    def test_few_samples_and_a_class_with_one(self, method):
        samples = np.random.default_rng(0).normal(size=(6, 3))
        estimator = quick(method, max_epochs=2).fit(samples, list("aaabbc"))
        assert estimator.history_.best_epoch in (0, 1)
        probs = estimator.predict_proba(samples)
        assert probs.shape == (6, 3)
        np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)

    def test_density_advice_is_an_attribute_not_a_warning(self):
        """Min-max normalisation with 70 samples in 32 dimensions saturates; warnings are errors in tests."""
        generator = np.random.default_rng(0)
        samples, labels = generator.normal(size=(140, 20)), np.arange(140) % 2
        estimator = quick(
            hidden=(32,),
            method_settings={"leave_one_out": False, "normalizer": "minmax", "covariance": "full"},
            validation_fraction=0.5,
        ).fit(samples, labels)
        assert "saturated" in estimator.density_effect_.advice()


class TestMethodsAndNetworks:
    def test_method_settings(self, table):
        for settings in ({}, {"covariance": "tied", "leave_one_out": False}):
            chosen = quick(max_epochs=1, method_settings=settings).fit(*table).model_.method
            assert chosen == DAEDL(**settings).resolved(MLP(4, 3))

    @pytest.mark.parametrize("method", [DAEDL.as_published(), Softmax()])
    def test_configured_methods_are_used_unchanged(self, table, method):
        """All settings are explicit: only those that are "auto" depend on the network."""
        assert quick(method, max_epochs=1).fit(*table).model_.method == method

    def test_custom_networks_may_take_images(self):
        samples, labels = (part[:100] for part in load_digits(return_X_y=True))
        estimator = quick(network=small_convnet, max_epochs=1).fit(samples, labels)
        assert isinstance(estimator.model_.network, ConvNet)
        pixels = samples.reshape(-1, 1, 8, 8)
        scaled = (pixels - pixels.mean(0)) / np.where(pixels.std(0) > 0, pixels.std(0), 1)
        expected = estimator.model_.predict(torch.tensor(scaled, dtype=torch.float64)).probs
        np.testing.assert_allclose(estimator.predict_proba(samples), expected, atol=1e-4)
        pickle.loads(pickle.dumps(estimator)).predict(samples)


def small_convnet(num_features, num_classes):
    assert num_features == 64
    return ConvNet(1, num_classes, 8)


class TestUncertainty:
    def test_uncertainty_increases_far_from_the_training_data(self, fitted, table):
        samples, _ = table
        far = samples[:50] + 100
        inside, outside = fitted.predict_uncertainty(samples), fitted.predict_uncertainty(far)
        assert list(inside) == ["aleatoric", "epistemic", "density"] == fitted.uncertainties_
        for name, scores in inside.items():
            assert scores.shape == (610,)
            assert np.quantile(scores, 0.9) < outside[name].min()
        assert fitted.score_samples(far).max() < fitted.score_samples(samples).min()

    def test_uniform_probabilities_agree_with_the_label(self, fitted, table):
        far = np.concatenate([table[0] * 1e5, -table[0] * 1e5])
        probs, labels = fitted.predict_proba(far), fitted.predict(far)
        assert len(set(labels)) > 1
        np.testing.assert_allclose(probs, 1 / 3, atol=1e-3)
        np.testing.assert_array_equal(fitted.classes_[probs.argmax(1)], labels)
        np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)

    @pytest.mark.parametrize("size", [1e20, 1e300])
    def test_extreme_values_have_no_evidence(self, fitted, table, size):
        scores = fitted.predict_uncertainty(table[0][:5] * size)
        np.testing.assert_allclose(scores["epistemic"], -np.log(3), atol=1e-5)
        assert np.isfinite(scores["density"]).all()

    def test_methods_without_a_density_have_no_score_samples(self, table):
        estimator = quick("softmax", max_epochs=1).fit(*table)
        assert list(estimator.predict_uncertainty(table[0])) == ["aleatoric"]
        assert not hasattr(estimator, "score_samples")
        with pytest.raises(AttributeError, match="no attribute 'score_samples'") as caught:
            estimator.score_samples(table[0])
        assert "no density" in str(caught.value.__cause__)


class TestInvalidInput:
    def test_samples(self, fitted, table):
        samples, labels = table
        holes = np.where(samples == samples.max(), np.nan, samples)
        with pytest.raises(ValueError, match="contains NaN"):
            quick().fit(holes, labels)
        with pytest.raises(ValueError, match="contains NaN"):
            fitted.predict_uncertainty(holes)
        with pytest.raises(ValueError, match="3 features"):
            fitted.score_samples(samples[:, :3])
        with pytest.raises(ValueError, match="1 class"):
            quick().fit(samples[labels == "ash"], labels[labels == "ash"])
        with pytest.raises(ValueError, match="constant"):
            quick().fit(samples[:3], ["a", "b", "c"])

    @pytest.mark.parametrize(
        ("settings", "error", "keyword"),
        [
            ({"method": "dadel"}, ValueError, "did you mean 'daedl'"),
            ({"method": ["daedl"]}, TypeError, "expected a name"),
            ({"method_settings": {"depth": 3}}, ValueError, "depth"),
            ({"hidden": 64}, TypeError, r"\(64,\)"),
            ({"hidden": (8, 0)}, ValueError, "width of hidden is 0"),
            ({"validation_fraction": 1.0}, ValueError, "validation_fraction is 1.0"),
            ({"validation_fraction": "all"}, ValueError, "validation_fraction is 'all'"),
            ({"max_epochs": 0}, ValueError, "max_epochs is 0"),
            (
                {"network": lambda f, c: MLP(f + 1, c)},
                ValueError,
                "5 values for 3 classes",
            ),
            (
                {"network": lambda f, c: MLP(f, 7)},
                ValueError,
                "4 values for 7 classes",
            ),
            (
                {"network": torch.nn.Linear},
                TypeError,
                "from_module",
            ),
        ],
    )
    def test_settings(self, table, settings, error, keyword):
        estimator = quick(**settings)
        with pytest.raises(error, match=keyword):
            estimator.fit(*table)
        with pytest.raises(NotFittedError):
            estimator.predict(table[0])


@pytest.mark.slow
def test_example(tmp_path, capsys):
    """DAEDL's density detects every held-out class better than the softmax uncertainty."""
    out = tmp_path / "tabular.png"
    runpy.run_path(str(EXAMPLE))["main"](["--out", str(out)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"figure: {out}"
    rows = [line.rsplit(maxsplit=5) for line in lines[1:-1]]
    assert [row[1] for row in rows] == ["softmax", "daedl"] * 4
    for softmax, daedl in zip(rows[2::2], rows[3::2], strict=True):
        assert "unknown cultivar" in daedl[0]
        assert float(daedl[5]) > 0.9 > float(softmax[3])
    assert imread(out).shape[:2] == (450, 1920)
