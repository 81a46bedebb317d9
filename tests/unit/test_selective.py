"""Thresholds: their guarantees by simulation, what they do with ties, and where they are kept."""

import copy
import pickle
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

import daedl
from daedl import MaxErrorRate, MaxRejectionRate
from daedl.networks import MLP
from daedl.prediction import Prediction
from daedl.selective import (
    COVERAGES,
    Thresholds,
    accepts,
    choose,
    clopper_pearson,
)

fit = partial(daedl.fit, accelerator="cpu", progress=False, learning_rate=1e-2)


def draw(samples, seed):
    """Two related scores, and the probability of an error, which rises with both."""
    generator = torch.Generator().manual_seed(seed)
    epistemic, other = torch.rand(2, samples, generator=generator)
    aleatoric = (epistemic + other) / 2
    return {"epistemic": epistemic, "aleatoric": aleatoric}, ((epistemic + aleatoric) / 2) ** 4


def errors(risk, seed):
    return torch.rand(len(risk), generator=torch.Generator().manual_seed(seed + 10**6)) < risk


def calibrated(samples, seed, target, on):
    scores, risk = draw(samples, seed)
    return choose(scores, errors(risk, seed), target, on, seed)


@pytest.mark.parametrize(("on", "samples", "share"), [("epistemic", 99, 0.1), ("both", 79, 0.2)])
def test_no_more_known_images_are_rejected_than_asked(on, samples, share):
    """The mean over calibrations of the probability to reject a new image."""
    new, _ = draw(20_000, 10**5)
    rejected = torch.tensor(
        [
            1
            - accepts(calibrated(samples, seed, MaxRejectionRate(share), on).limits, new)
            .double()
            .mean()
            for seed in range(400)
        ]
    )
    noise = 4 * rejected.std() / 20
    assert rejected.mean() <= share + noise
    # One score meets it; two that reject the same images stay below, but not far.
    assert rejected.mean() >= (share if on == "epistemic" else 0.6 * share) - noise


@pytest.mark.parametrize("on", ["epistemic", "aleatoric", "both"])
def test_errors_among_accepted_images_stay_below_the_limit(on):
    """Of 400 calibrations no more break their promise than δ says, up to chance."""
    share, delta = 0.05, 0.2
    new, risk = draw(50_000, 10**5)
    broken, coverage = 0, []
    for seed in range(400):
        try:
            found = calibrated(2000, seed, MaxErrorRate(share, delta), on)
        except ValueError:  # nothing is promised, so nothing broken
            coverage.append(0.0)
            continue
        accepted = accepts(found.limits, new)
        coverage.append(accepted.double().mean().item())
        broken += risk[accepted].mean().item() > share
    assert binomtest(broken, 400, delta, alternative="greater").pvalue > 1e-3
    # It is worth something too: well above the smallest coverage that is tried.
    assert coverage.count(0.0) < 40
    assert sum(coverage) / 400 > 0.3


def test_a_limit_without_a_guarantee_would_break_its_promise():
    """The simulation can fail: the largest rank whose error itself is low enough breaks it half the time."""
    share, broken = 0.05, 0
    new, risk = draw(50_000, 10**5)
    for seed in range(200):
        scores, own = draw(1000, seed)
        ordered, order = scores["epistemic"].sort()
        share_wrong = errors(own, seed)[order].cumsum(0) / torch.arange(1, 1001)
        limit = ordered[(share_wrong <= share).nonzero().max()]
        broken += risk[new["epistemic"] <= limit].mean().item() > share
    assert binomtest(broken, 200, 0.2, alternative="greater").pvalue < 1e-3


@given(st.integers(0, 50), st.integers(1, 50), st.floats(0.001, 0.5))
def test_clopper_pearson_is_the_share_at_which_so_few_errors_get_unlikely(errors, more, delta):
    samples = errors + more
    limit = clopper_pearson(errors, samples, delta)
    assert binom.cdf(errors, samples, limit) == pytest.approx(delta, rel=1e-6)
    assert clopper_pearson(samples, samples, delta) == 1


def test_the_rank_of_a_rejection():
    values = torch.arange(1.0, 20)
    scores = {"epistemic": values[torch.randperm(19)]}
    found = choose(scores, torch.zeros(19, dtype=torch.bool), MaxRejectionRate(0.1), "epistemic")
    assert found.limits == {"epistemic": 18.0}  # ⌈20 · 0.9⌉
    assert found.coverage == pytest.approx(18 / 19)


def test_scores_that_tie_at_the_end_are_handed_over():
    """Where evidence vanishes all scores are the same: known images there must not let unknown ones in."""
    epistemic = torch.cat([torch.linspace(-9, -4, 995), torch.full((5,), -2.3)])
    wrong = torch.zeros(1000, dtype=torch.bool)
    for on in ("epistemic", "both"):
        scores = {"epistemic": epistemic, "aleatoric": torch.linspace(0, 0.5, 1000)}
        found = choose(scores, wrong, MaxErrorRate(0.05), on)
        unknown = {"epistemic": torch.tensor([-2.3]), "aleatoric": torch.tensor([0.1])}
        assert not accepts(found.limits, unknown).item()
        assert found.coverage > 0.9


def test_rejections_that_would_let_in_all_without_evidence_are_refused():
    """Where more known images than may be rejected have no evidence, the limit would be no limit."""
    epistemic = torch.cat([torch.linspace(-9, -4, 900), torch.full((100,), -2.3)])
    wrong = torch.zeros(1000, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"10.00% of the calibration images share.*leave_one_out"):
        choose({"epistemic": epistemic}, wrong, MaxRejectionRate(0.05), "epistemic")
    found = choose({"epistemic": epistemic}, wrong, MaxRejectionRate(0.2), "epistemic")
    assert found.limits["epistemic"] < -4


def test_what_cannot_be_promised_is_refused():
    scores, wrong = {"epistemic": torch.rand(18)}, torch.zeros(18, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"18 calibration images can't tell.*expected at least 19"):
        choose(scores, wrong, MaxRejectionRate(0.05), "epistemic")
    with pytest.raises(ValueError, match=r"no threshold keeps errors at or below 1.00%.*give more"):
        choose(scores, wrong, MaxErrorRate(0.01), "epistemic")
    with pytest.raises(ValueError, match=r"no epistemic score.*take on='aleatoric'"):
        choose({"aleatoric": torch.rand(99)}, torch.zeros(99).bool(), MaxRejectionRate(), "both")
    with pytest.raises(ValueError, match="on is 'density'; expected epistemic, aleatoric, both"):
        choose(scores, wrong, MaxRejectionRate(), "density")
    for share in (0, 1, -0.1):
        with pytest.raises(ValueError, match="expected a share between 0 and 1"):
            MaxRejectionRate(share)
    with pytest.raises(ValueError, match="delta is 2"):
        MaxErrorRate(0.1, 2)


def test_coverages_fall():
    assert list(COVERAGES) == sorted(COVERAGES, reverse=True)
    assert len(set(COVERAGES)) == 20


@pytest.mark.parametrize("target", [MaxRejectionRate(0.2), MaxErrorRate(0.5, 0.1)])
def test_settings_bring_it_back(target):
    found = calibrated(200, 0, target, "both")
    assert Thresholds.restore(found.settings()) == found
    assert "of 200 calibration images" in str(found)


@pytest.fixture(scope="module")
def model(blobs):
    torch.manual_seed(0)
    model = daedl.Classifier(MLP(4, 3, hidden=(16, 16)), "daedl", ["ant", "bee", "cat"])
    fit(model, blobs, max_epochs=5)
    return model


class TestClassifier:
    def test_predictions_say_whether_and_why(self, model, blobs):
        found = model.calibrate([blobs], MaxRejectionRate(0.1))
        assert model.thresholds is found
        p = model.predict(blobs[0])
        assert p.accept.double().mean() >= 0.85
        assert p.accept.double().mean() == pytest.approx(found.coverage)
        for accepted, reason, probs, epistemic, aleatoric in zip(
            p.accept.tolist(), p.reason, p.probs, p.epistemic, p.aleatoric, strict=True
        ):
            assert accepted == (reason == "")
            if epistemic.item() > found.limits["epistemic"]:
                assert reason == "unlike the training data"
            elif aleatoric.item() > found.limits["aleatoric"]:
                two = sorted(["ant", "bee", "cat"][c] for c in probs.topk(2).indices)
                assert reason == f"between classes {two[0]} and {two[1]}"
        far = model.predict(1e4 * torch.ones(1, 4))
        assert not far.accept.item()
        assert far.reason == ["unlike the training data"]
        assert any(reason.startswith("between") for reason in p.reason)

    def test_thresholds_live_in_the_file(self, model, blobs, tmp_path):
        model.calibrate([blobs], MaxErrorRate(0.3), "epistemic")
        model.save(tmp_path / "m.daedl")
        expected = model.predict(blobs[0])
        for twin in (
            daedl.Classifier.load(tmp_path / "m.daedl"),
            pickle.loads(pickle.dumps(model)),
            copy.deepcopy(model),
        ):
            assert twin.thresholds == model.thresholds
            assert twin.predict(blobs[0]).reason == expected.reason
        parts = Prediction.cat([model.predict(blobs[0][:300]), model.predict(blobs[0][300:])])
        assert torch.equal(parts.accept, expected.accept)

    def test_what_is_between_all_classes_is_unlike_the_training_data(self, model, blobs):
        twin = copy.deepcopy(model)
        twin.calibrate([blobs], MaxRejectionRate(0.1), "aleatoric")
        far = twin.predict(1e4 * torch.ones(1, 4))
        assert far.reason == ["unlike the training data"]

    def test_other_weights_take_them_away(self, model, blobs, tmp_path):
        plain = daedl.Classifier(MLP(4, 3), "softmax")
        plain.calibrate([blobs])
        plain.load_state_dict(plain.state_dict())
        assert plain.thresholds is None
        how = {"max_epochs": 1, "checkpoint": tmp_path / "run.ckpt", "resume": True}
        fit(plain, blobs, **how)
        plain.calibrate([blobs])
        fit(plain, blobs, **how)  # nothing is left to train, but the weights are the checkpoint's
        assert plain.thresholds is None

    def test_refitting_and_training_take_them_away(self, model, blobs):
        twin = copy.deepcopy(model)
        twin.calibrate([blobs])
        twin.fit_post_hoc([blobs])
        assert twin.thresholds is None
        twin.calibrate([blobs])
        fit(twin, blobs, max_epochs=1)
        assert twin.thresholds is None

    def test_without_thresholds_there_is_nothing_to_accept_by(self, model, blobs):
        twin = copy.deepcopy(model)
        twin.thresholds = None
        with pytest.raises(ValueError, match=r"no thresholds.*call model.calibrate\(loader"):
            twin.predict(blobs[0]).accept  # noqa: B018

    def test_classes_without_names_are_numbers(self, blobs):
        softmax = daedl.Classifier(MLP(4, 3), "softmax")
        softmax.calibrate([blobs], MaxRejectionRate(0.5))
        reasons = set(softmax.predict(blobs[0]).reason)
        assert reasons <= {"", *(f"between classes {a} and {b}" for a, b in ("01", "02", "12"))}
        assert len(reasons) > 1


def test_what_is_promised_is_said_and_not_a_bare_share():
    scores = {"aleatoric": torch.rand(50)}
    with pytest.raises(
        TypeError, match=r"target is 0.05; expected .* daedl.MaxRejectionRate\(0.05\)"
    ):
        choose(scores, torch.zeros(50, dtype=torch.bool), 0.05)
