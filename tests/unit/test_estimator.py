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

from daedl.estimator import FEW, DAEDLClassifier, _held_out
from daedl.methods import DAEDL, Softmax
from daedl.networks import MLP, ConvNet
from daedl.spectral import SpectralNorm

EXAMPLE = Path(__file__).parents[2] / "examples" / "tabular.py"


def quick(method="daedl", **settings):
    """An estimator that is trained in a moment."""
    defaults = {"hidden": (16,), "max_epochs": 6, "batch_size": 64, "learning_rate": 3e-2}
    return DAEDLClassifier(method, **{**defaults, "random_state": 0, **settings})


# Repeating a sample changes the order of batches, and so the trained weights.
STOCHASTIC = {
    f"check_sample_weight_equivalence_on_{kind}_data": "batches are drawn at random"
    for kind in ("dense", "sparse")
}


@parametrize_with_checks(
    [quick(max_epochs=10, random_state=None)], expected_failed_checks=lambda _: STOCHASTIC
)
def test_scikit_learn_accepts_it(estimator, check):
    """Every check that scikit-learn has, none of them excused."""
    check(estimator)


@pytest.fixture(scope="module")
def table(blobs):
    """Three classes of samples (610, 4) with names for labels (610,)."""
    samples, targets = blobs
    return samples.double().numpy(), np.array(["ash", "birch", "cedar"])[targets.numpy()]


@pytest.fixture(scope="module")
def fitted(table):
    return quick().fit(*table)


class TestTools:
    def test_a_pipeline_passes_on_what_classifiers_have(self, table):
        samples, labels = table
        pipeline = make_pipeline(PolynomialFeatures(2, include_bias=False), quick())
        pipeline.fit(samples, labels)
        assert pipeline.score(samples, labels) > 0.8
        # 4 features, their squares and their products.
        assert pipeline[-1].n_features_in_ == 14
        density = pipeline[-1].predict_uncertainty(pipeline[:-1].transform(samples))["density"]
        np.testing.assert_array_equal(pipeline.score_samples(samples), -density)

    def test_a_search_over_settings_of_the_method(self, table):
        """A penalty that leaves no evidence to any class loses by the log loss."""
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
    def test_pickled_it_predicts_the_same(self, table, method):
        samples, labels = table
        estimator = quick(method, max_epochs=1).fit(samples, labels)
        twin = pickle.loads(pickle.dumps(estimator))
        np.testing.assert_array_equal(twin.predict_proba(samples), estimator.predict_proba(samples))
        before, after = (each.predict_uncertainty(samples) for each in (estimator, twin))
        assert list(after) == list(before) == twin.uncertainties_
        for name in before:
            np.testing.assert_array_equal(after[name], before[name])

    def test_a_clone_is_unfitted_and_alike(self, fitted, table):
        twin = clone(fitted)
        with pytest.raises(NotFittedError, match="not fitted"):
            twin.score_samples(table[0])
        np.testing.assert_array_equal(twin.fit(*table).predict(table[0]), fitted.predict(table[0]))


class TestTraining:
    def test_it_learns_and_reports(self, fitted, table):
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

    def test_a_number_repeats_it_and_the_outside_random_state_is_untouched(self, fitted, table):
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

    def test_units_do_not_matter_and_constant_features_do_no_harm(self, fitted, table):
        samples, labels = table
        scaled = np.column_stack([samples * [1, 1e-6, 1e6, -3] + 1e3, np.full(len(samples), 7.0)])
        other = quick().fit(scaled, labels)
        assert other.score(scaled, labels) == pytest.approx(fitted.score(samples, labels), abs=0.05)
        assert np.isfinite(other.score_samples(scaled)).all()
        plain = quick(standardize=False).fit(samples, labels)
        assert torch.equal(plain._inputs(samples), torch.tensor(samples, dtype=torch.float64))

    def test_early_stopping_on_held_out_samples(self, table):
        estimator = quick(max_epochs=50, learning_rate=0.3, patience=2, validation_fraction=0.3)
        estimator.fit(*table)
        assert estimator.history_.stopped_early
        assert estimator.n_iter_ == estimator.history_.best_epoch + 1 + 2 < 50
        none = quick(max_epochs=2, validation_fraction=0).fit(*table)
        assert none.history_.epochs[0].val_loss is None
        assert none.density_effect_ is None

    def test_one_sample_far_out_does_not_end_the_training(self):
        """Its evidence is e^z: without a limit its gradient drowns all others in Adam's averages."""
        samples, labels = make_blobs(300, 4, centers=3, random_state=0)
        with_outlier = samples.copy()
        with_outlier[0] += 100
        estimator = quick(hidden=(16, 16), max_epochs=10, learning_rate=1e-2, random_state=1)
        assert estimator.fit(with_outlier, labels).score(samples, labels) > 0.95

    def test_every_class_gives_its_share_and_keeps_a_sample(self):
        targets = np.repeat([0, 1, 2], [100, 39, 1])
        held_out = _held_out(targets, 0.3, np.random.RandomState(0))
        assert np.bincount(targets[held_out], minlength=3).tolist() == [30, 11, 0]
        assert np.bincount(
            targets[_held_out(targets, 0.99, np.random.RandomState(0))]
        ).tolist() == [99, 38]
        few = np.zeros(10 * FEW - 1, dtype=int)
        assert not _held_out(few, 0.1, np.random.RandomState(0)).any()

    @pytest.mark.parametrize("method", ["daedl", "softmax", "ddu", "temperature"])
    def test_a_handful_of_samples_and_a_class_with_one(self, method):
        samples = np.random.default_rng(0).normal(size=(6, 3))
        estimator = quick(method, max_epochs=2).fit(samples, list("aaabbc"))
        assert estimator.history_.best_epoch in (0, 1)
        probs = estimator.predict_proba(samples)
        assert probs.shape == (6, 3)
        np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)

    def test_a_bad_density_is_told_on_request_and_not_by_a_warning(self):
        """The paper's range on 70 samples in 32 dimensions; a warning would be an error here."""
        generator = np.random.default_rng(0)
        samples, labels = generator.normal(size=(140, 20)), np.arange(140) % 2
        estimator = quick(
            hidden=(32,), method_settings={"leave_one_out": False}, validation_fraction=0.5
        ).fit(samples, labels)
        assert "saturated" in estimator.density_effect_.advice()


class TestMethodsAndNetworks:
    def test_settings_reach_the_method(self, table):
        default = quick(max_epochs=1).fit(*table).model_.method
        assert default == DAEDL(spectral=SpectralNorm(coefficient=3.0), leave_one_out=True)
        settings = {"covariance": "tied", "leave_one_out": False}
        chosen = quick(max_epochs=1, method_settings=settings).fit(*table).model_.method
        assert chosen == DAEDL(
            spectral=SpectralNorm(coefficient=3.0), leave_one_out=False, covariance="tied"
        )

    @pytest.mark.parametrize("method", [DAEDL(normalizer="smooth-quantile"), Softmax()])
    def test_a_built_method_is_taken_as_it_is(self, table, method):
        assert quick(method, max_epochs=1).fit(*table).model_.method == method

    def test_a_network_of_ones_own_that_sees_images(self):
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
    def test_it_is_larger_far_away_than_inside(self, fitted, table):
        samples, _ = table
        far = samples[:50] + 100
        inside, outside = fitted.predict_uncertainty(samples), fitted.predict_uncertainty(far)
        assert list(inside) == ["aleatoric", "epistemic", "density"] == fitted.uncertainties_
        for name, scores in inside.items():
            assert scores.shape == (610,)
            assert np.quantile(scores, 0.9) < outside[name].min()
        assert fitted.score_samples(far).max() < fitted.score_samples(samples).min()

    def test_without_evidence_probabilities_are_uniform_and_agree_with_the_class(
        self, fitted, table
    ):
        far = np.concatenate([table[0] * 50, -table[0] * 50])
        probs, labels = fitted.predict_proba(far), fitted.predict(far)
        without = fitted.predict_uncertainty(far)["aleatoric"] > 0.666
        assert len(set(labels[without])) > 1
        np.testing.assert_allclose(probs[without], 1 / 3, atol=1e-3)
        np.testing.assert_array_equal(fitted.classes_[probs.argmax(1)], labels)
        np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)

    @pytest.mark.parametrize("size", [1e20, 1e300])
    def test_the_farthest_numbers_are_unknown_too(self, fitted, table, size):
        scores = fitted.predict_uncertainty(table[0][:5] * size)
        np.testing.assert_allclose(scores["epistemic"], -np.log(3), atol=1e-5)
        assert np.isfinite(scores["density"]).all()

    def test_a_method_without_a_density_has_no_score_samples(self, table):
        estimator = quick("softmax", max_epochs=1).fit(*table)
        assert list(estimator.predict_uncertainty(table[0])) == ["aleatoric"]
        assert not hasattr(estimator, "score_samples")
        with pytest.raises(AttributeError, match="no attribute 'score_samples'") as caught:
            estimator.score_samples(table[0])
        assert "'softmax' has no density; expected" in str(caught.value.__cause__)


class TestBadInput:
    def test_samples(self, fitted, table):
        samples, labels = table
        holes = np.where(samples == samples.max(), np.nan, samples)
        with pytest.raises(ValueError, match="contains NaN"):
            quick().fit(holes, labels)
        with pytest.raises(ValueError, match="contains NaN"):
            fitted.predict_uncertainty(holes)
        with pytest.raises(
            ValueError, match="X has 3 features, but DAEDLClassifier is expecting 4"
        ):
            fitted.score_samples(samples[:, :3])
        with pytest.raises(ValueError, match=r"y holds 1 class, .*'ash'.*; expected at least two"):
            quick().fit(samples[labels == "ash"], labels[labels == "ash"])
        with pytest.raises(ValueError, match="constant within every class"):
            quick().fit(samples[:3], ["a", "b", "c"])

    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"method": "dadel"}, ValueError, "unknown method 'dadel'.*did you mean 'daedl'"),
            ({"method": ["daedl"]}, TypeError, "expected a name such as 'daedl'"),
            ({"method_settings": {"depth": 3}}, ValueError, "unknown setting of daedl 'depth'"),
            ({"hidden": 64}, TypeError, r"hidden is 64; expected a sequence .* pass \(64,\)"),
            ({"hidden": (8, 0)}, ValueError, "a width of hidden is 0; expected"),
            ({"validation_fraction": 1.0}, ValueError, "validation_fraction is 1.0; expected"),
            ({"validation_fraction": "all"}, ValueError, "validation_fraction is 'all'; expected"),
            ({"max_epochs": 0}, ValueError, "max_epochs is 0; expected a whole number from 1"),
            (
                {"network": lambda f, c: MLP(f + 1, c)},
                ValueError,
                "takes 5 values for 3 classes; exp",
            ),
            (
                {"network": lambda f, c: MLP(f, 7)},
                ValueError,
                "takes 4 values for 7 classes; expected",
            ),
            (
                {"network": torch.nn.Linear},
                TypeError,
                "from_module",
            ),
        ],
    )
    def test_settings(self, table, settings, error, message):
        estimator = quick(**settings)
        with pytest.raises(error, match=message):
            estimator.fit(*table)
        with pytest.raises(NotFittedError):
            estimator.predict(table[0])


def test_the_example_runs_and_its_claim_holds(tmp_path, capsys):
    """In every question about an unknown class DAEDL's density does better than softmax's doubt."""
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
