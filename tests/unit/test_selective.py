"""Threshold targets: guarantees by simulation, ties, serialisation, and thresholds of a classifier."""

import copy
import json
import pickle
import re
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom, binomtest

import daedl
from daedl import MaxErrorRate, MaxRejectionRate, figures
from daedl.networks import MLP
from daedl.prediction import Prediction
from daedl.selective import Target, Thresholds, accepts, choose
from daedl.selective.error import COVERAGES, clopper_pearson

fit = partial(daedl.fit, accelerator="cpu", progress=False, learning_rate=1e-2)


def draw(samples, seed):
    """Two correlated scores, and an error probability that increases with both."""
    generator = torch.Generator().manual_seed(seed)
    epistemic, other = torch.rand(2, samples, generator=generator)
    aleatoric = (epistemic + other) / 2
    return {"epistemic": epistemic, "aleatoric": aleatoric}, ((epistemic + aleatoric) / 2) ** 4


def errors(risk, seed):
    return torch.rand(len(risk), generator=torch.Generator().manual_seed(seed + 10**6)) < risk


def calibrated(samples, seed, target, on):
    scores, risk = draw(samples, seed)
    return choose(scores, errors(risk, seed), target, on, seed)


@pytest.mark.parametrize(("on", "samples", "rate"), [("epistemic", 99, 0.1), ("both", 79, 0.2)])
def test_rejection_rate_is_bounded(on, samples, rate):
    """The rejection probability of a new image, averaged over 400 calibration sets."""
    new, _ = draw(20_000, 10**5)
    target = MaxRejectionRate(rate)
    rejected = torch.tensor(
        [
            1 - accepts(calibrated(samples, seed, target, on).limits, new).double().mean()
            for seed in range(400)
        ]
    )
    noise = 4 * rejected.std() / 20
    assert rejected.mean() <= rate + noise
    # One score attains the bound; two correlated scores miss it by less than three images.
    assert rejected.mean() >= rate - (0 if on == "epistemic" else 3 / samples) - noise


@pytest.mark.parametrize("on", ["epistemic", "aleatoric", "both"])
def test_error_rate_is_bounded(on):
    """The share of 400 calibration sets that violate the bound is at most δ, up to chance."""
    rate, delta = 0.05, 0.2
    new, risk = draw(50_000, 10**5)
    violations, coverage = 0, []
    for seed in range(400):
        try:
            thresholds = calibrated(2000, seed, MaxErrorRate(rate, delta), on)
        except ValueError:  # no thresholds, so nothing is violated
            coverage.append(0.0)
            continue
        accepted = accepts(thresholds.limits, new)
        coverage.append(accepted.double().mean().item())
        violations += risk[accepted].mean().item() > rate
    assert binomtest(violations, 400, delta, alternative="greater").pvalue > 1e-3
    # The bound is useful: coverage is far above the smallest candidate.
    assert coverage.count(0.0) < 40
    assert sum(coverage) / 400 > 0.3


def test_simulation_detects_a_rule_without_guarantee():
    """The largest rank whose empirical error rate is low enough violates the bound too often."""
    rate, violations = 0.05, 0
    new, risk = draw(50_000, 10**5)
    for seed in range(200):
        scores, own = draw(1000, seed)
        ordered, order = scores["epistemic"].sort()
        error = errors(own, seed)[order].cumsum(0) / torch.arange(1, 1001)
        limit = ordered[(error <= rate).nonzero().max()]
        violations += risk[new["epistemic"] <= limit].mean().item() > rate
    assert binomtest(violations, 200, 0.2, alternative="greater").pvalue < 1e-3


@given(st.integers(0, 50), st.integers(1, 50), st.floats(0.001, 0.5))
def test_clopper_pearson_inverts_the_binomial_distribution(errors, correct, delta):
    samples = errors + correct
    limit = clopper_pearson(errors, samples, delta)
    assert limit == pytest.approx(beta.ppf(1 - delta, errors + 1, correct), rel=1e-12)
    assert binom.cdf(errors, samples, limit) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("samples", [0, 7])
def test_clopper_pearson_without_correct_samples_is_one(samples):
    assert clopper_pearson(samples, samples, 0.05) == 1


@given(st.integers(0, 10**6), st.integers(39, 60), st.floats(0.05, 0.5), st.booleans())
def test_fewer_images_than_allowed_have_ranks_below_that_of_any_rejected_one(
    seed, samples, rate, tied
):
    """The ranks in the docstring, counted one by one among n + 1 images: the theorem without probability."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(3, samples + 1, generator=generator, dtype=torch.float64)
    if tied:
        values[0] = values[0].round()
    scores = dict(zip(("epistemic", "aleatoric", "density"), values, strict=True))
    calibration = {name: each[:-1] for name, each in scores.items()}
    target = MaxRejectionRate(rate)
    limits = target.limits(calibration, torch.zeros(samples).bool(), 0)
    ranks = [
        min(
            (int((each >= each[i]).sum()) - 1) * factor + offset / 3
            for offset, (each, factor) in enumerate(zip(values, (1, 1, 10), strict=True))
        )
        for i in range(samples + 1)
    ]
    if not accepts(limits, {name: each[-1:] for name, each in scores.items()}).item():
        assert sum(rank <= ranks[-1] for rank in ranks) <= rate * (samples + 1) + 1e-9


def test_rejection_limit_is_the_conformal_rank():
    values = torch.arange(1.0, 20)
    scores = {"epistemic": values[torch.randperm(19)]}
    thresholds = choose(scores, torch.zeros(19).bool(), MaxRejectionRate(0.1), "epistemic")
    assert thresholds.limits == {"epistemic": 18.0}  # ⌈20 · 0.9⌉
    assert thresholds.coverage == pytest.approx(18 / 19)


def test_error_rate_rejects_ties_at_the_maximum():
    """Without evidence all scores are equal: such calibration samples must not admit OOD images."""
    epistemic = torch.cat([torch.linspace(-9, -4, 995), torch.full((5,), -2.3)])
    scores = {"epistemic": epistemic, "aleatoric": torch.linspace(0, 0.5, 1000)}
    ood = {"epistemic": torch.tensor([-2.3]), "aleatoric": torch.tensor([0.1])}
    for on in ("epistemic", "both"):
        thresholds = choose(scores, torch.zeros(1000).bool(), MaxErrorRate(0.05), on)
        assert not accepts(thresholds.limits, ood).item()
        assert thresholds.coverage > 0.9


@pytest.mark.parametrize("on", ["epistemic", "both"])
@pytest.mark.parametrize("target", [MaxRejectionRate(0.2), MaxErrorRate(0.2)], ids=repr)
def test_identical_scores_raise_a_clear_error(target, on):
    constant = {"epistemic": torch.zeros(500), "aleatoric": torch.zeros(500)}
    with pytest.raises(ValueError, match=r"100\.00%"):
        choose(constant, torch.zeros(500).bool(), target, on)


def smallest_rate(error):
    """The rate that the message of an error suggests."""
    return float(re.search(r"rate of (0\.\d+), the smallest", str(error.value))[1])


def test_ties_without_a_density_are_rejected_with_the_smallest_rate():
    """If more images have no evidence than may be rejected, the limit would accept everything."""
    epistemic = torch.cat([torch.linspace(-9, -4, 900), torch.full((100,), -2.3)])
    wrong = torch.zeros(1000).bool()
    with pytest.raises(ValueError, match=r"10.00%.*leave_one_out") as error:
        choose({"epistemic": epistemic}, wrong, MaxRejectionRate(0.05), "epistemic")
    rate = smallest_rate(error)
    assert rate == pytest.approx(1 - 900 / 1001, abs=1e-4)
    thresholds = choose({"epistemic": epistemic}, wrong, MaxRejectionRate(rate), "epistemic")
    assert thresholds.limits["epistemic"] == -4
    with pytest.raises(ValueError, match="share the largest"):
        choose({"epistemic": epistemic}, wrong, MaxRejectionRate(rate - 2e-4), "epistemic")


def clipped(samples, seed):
    """Scores of images of which 70% are below the range of a clipped density score; density in N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    density = torch.randn(samples, generator=generator)
    score = (-0.5 - density).clamp(0, 1).double()
    logits = 3 + torch.rand(samples, generator=generator)
    return {
        "epistemic": -(score * logits).exp().add(3).log(),
        "aleatoric": 3 / (3 + (score * logits).exp()),
        "density": density,
    }


@pytest.mark.parametrize("on", ["epistemic", "aleatoric", "both"])
def test_the_density_decides_between_tied_images(on):
    """The guarantee holds although most images tie, and images of lower density are rejected."""
    rate, new = 0.1, clipped(20_000, 10**5)
    assert (new["epistemic"] == new["epistemic"].max()).double().mean() > 0.65
    rejected = []
    for seed in range(200):
        scores = clipped(99, seed)
        thresholds = choose(scores, torch.zeros(99).bool(), MaxRejectionRate(rate), on)
        assert thresholds.on == ("all" if on == "both" else on)
        assert "density" in thresholds.limits
        rejected.append(1 - accepts(thresholds.limits, new).double().mean())
    far = {name: values[:1] for name, values in new.items()} | {"density": torch.tensor([9.0])}
    assert not accepts(thresholds.limits, far).item()
    mean, noise = torch.stack(rejected).mean(), 4 * torch.stack(rejected).std() / 200**0.5
    assert mean <= rate + noise
    assert mean >= rate - (3 / 99 if on == "both" else 0) - noise


def test_a_density_that_contradicts_the_score_decides_nothing():
    scores = {"epistemic": torch.tensor([0.0] * 50 + [1.0] * 50), "density": torch.arange(100.0)}
    thresholds = choose(scores, torch.zeros(100).bool(), MaxRejectionRate(0.1), "epistemic")
    assert thresholds.limits == {"epistemic": 1.0, "density": 90.0}
    scores["density"] = -scores["density"]
    with pytest.raises(ValueError, match="share the largest"):
        choose(scores, torch.zeros(100).bool(), MaxRejectionRate(0.1), "epistemic")
    scores["density"] = torch.ones(100)
    with pytest.raises(ValueError, match="share the largest"):
        choose(scores, torch.zeros(100).bool(), MaxRejectionRate(0.1), "epistemic")


@pytest.mark.parametrize("on", ["epistemic", "both"])
def test_errors_suggest_the_nearest_guarantee(on):
    scores, risk = draw(20, 0)
    with pytest.raises(ValueError, match="too few") as error:
        choose(scores, errors(risk, 0), MaxRejectionRate(0.02), on)
    rate = smallest_rate(error)
    assert rate == pytest.approx({"epistemic": 1, "both": 2}[on] / 21, abs=1e-4)
    assert choose(scores, errors(risk, 0), MaxRejectionRate(rate), on).coverage == 1
    scores, risk = draw(300, 0)
    with pytest.raises(ValueError, match="smallest") as error:
        choose(scores, errors(risk, 0), MaxErrorRate(0.001), on)
    choose(scores, errors(risk, 0), MaxErrorRate(smallest_rate(error)), on)


@pytest.mark.parametrize("on", ["epistemic", "both"])
def test_images_that_an_error_rate_requires(on):
    """The number in the message suffices if all predictions are right; fewer do not."""
    target = MaxErrorRate(0.05)

    def attempt(samples):
        scores, _ = draw(samples, 0)
        scores["aleatoric"] = scores["epistemic"]
        return choose(scores, torch.zeros(samples).bool(), target, on)

    with pytest.raises(ValueError, match="at least") as error:
        attempt(30)
    needed = int(re.search(r"at least (\d+) even", str(error.value))[1])
    with pytest.raises(ValueError, match="at least"):
        attempt(needed - 10)
    if on == "epistemic":
        assert attempt(needed).coverage > 0.9


@pytest.mark.parametrize(
    ("scores", "samples", "target", "on", "keyword"),
    [
        (["epistemic"], 18, MaxRejectionRate(0.05), "epistemic", "at least 19"),
        (["epistemic", "aleatoric"], 38, MaxRejectionRate(0.05), "both", "at least 39"),
        (["epistemic"], 18, MaxErrorRate(0.01), "epistemic", "lowest upper bound"),
        (["epistemic"], 1, MaxErrorRate(0.01), "epistemic", "lowest upper bound"),
        (["aleatoric"], 99, MaxRejectionRate(), "both", "no epistemic score"),
        (["epistemic"], 99, MaxRejectionRate(), "density", "'density'"),
    ],
)
def test_impossible_targets_raise(scores, samples, target, on, keyword):
    with pytest.raises(ValueError, match=keyword):
        choose(
            {name: torch.rand(samples) for name in scores}, torch.zeros(samples).bool(), target, on
        )


def test_target_must_be_a_target():
    with pytest.raises(TypeError, match="MaxRejectionRate"):
        choose({"aleatoric": torch.rand(50)}, torch.zeros(50).bool(), 0.05)


@pytest.mark.parametrize("rate", [0, 1, -0.1])
def test_rates_are_between_0_and_1(rate):
    with pytest.raises(ValueError, match="rate is"):
        MaxRejectionRate(rate)
    with pytest.raises(ValueError, match="delta is"):
        MaxErrorRate(0.1, rate)


def test_coverages_decrease():
    assert list(COVERAGES) == sorted(set(COVERAGES), reverse=True)


@pytest.mark.parametrize("target", [MaxRejectionRate(0.2), MaxErrorRate(0.5, 0.1)], ids=repr)
def test_settings_round_trip_through_json(target):
    thresholds = calibrated(200, 0, target, "both")
    restored = Thresholds.restore(json.loads(json.dumps(thresholds.settings())))
    assert restored == thresholds
    assert str(restored) == target.describe(thresholds)
    for part in ("200 calibration samples", "epistemic >", f"{target.rate:.2%}"):
        assert part in str(thresholds)


@pytest.mark.parametrize(
    ("stored", "target"),
    [
        ({"kind": "reject", "share": 0.1}, MaxRejectionRate(0.1)),
        ({"kind": "error", "share": 0.01, "delta": 0.2}, MaxErrorRate(0.01, 0.2)),
    ],
)
def test_settings_of_earlier_model_files(stored, target):
    """Earlier files store `rate` as `share`."""
    settings = {"limits": {"epistemic": 1.5}, "samples": 9, "coverage": 0.9, "error": 0.1}
    restored = Thresholds.restore({**settings, "target": stored})
    assert restored == Thresholds({"epistemic": 1.5}, target, 9, 0.9, 0.1)


def test_unknown_kinds_are_named():
    with pytest.raises(ValueError, match="did you mean 'reject'"):
        Target.restore({"kind": "rejects", "rate": 0.1})


def test_limits_of_a_graph_keep_ties_on_their_side():
    limits = {"epistemic": -2.0, "aleatoric": 0.5}
    outwards, inwards = MaxRejectionRate().for_graph(limits), MaxErrorRate(0.1).for_graph(limits)
    assert list(outwards) == list(inwards) == ["aleatoric", "epistemic"]
    for name, limit in limits.items():
        assert inwards[name] < limit < outwards[name]
        assert outwards[name] == pytest.approx(limit, rel=2e-6)


def test_a_new_target_is_one_class(blobs):
    """A rule defined here works in a classifier, its file and the plot."""

    @dataclass(frozen=True)
    class KeepBest(Target):
        kind = "keep-best"
        accepts_ties = True
        number: int

        @property
        def guarantee(self):
            return "none"

        def limits(self, scores, wrong, seed):
            return {name: float(each.sort().values[self.number]) for name, each in scores.items()}

    model = daedl.Classifier(MLP(4, 3), "softmax")
    thresholds = model.calibrate([blobs], KeepBest(7))
    assert Thresholds.restore(thresholds.settings()) == thresholds
    assert "Guarantee: none" in str(thresholds)
    assert thresholds.for_graph().limits["aleatoric"] > thresholds.limits["aleatoric"]
    prediction = model.predict(blobs[0])
    assert int(prediction.accept.sum()) == 8
    (axes,) = figures.risk_coverage(prediction, blobs[1], thresholds).axes
    assert len(axes.lines) == 2  # one curve and the marker


@pytest.fixture(scope="module")
def model(blobs):
    torch.manual_seed(0)
    model = daedl.Classifier(MLP(4, 3, hidden=(16, 16)), "daedl", ["ant", "bee", "cat"])
    fit(model, blobs, max_epochs=5)
    return model


class TestClassifier:
    def test_predictions_have_decisions_and_reasons(self, model, blobs):
        thresholds = model.calibrate([blobs], MaxRejectionRate(0.1))
        assert model.thresholds is thresholds
        p = model.predict(blobs[0])
        assert p.accept.double().mean() >= 0.85
        assert p.accept.double().mean() == pytest.approx(thresholds.coverage)
        for accepted, reason, probs, epistemic, aleatoric in zip(
            p.accept.tolist(), p.reason, p.probs, p.epistemic, p.aleatoric, strict=True
        ):
            assert accepted == (reason == "")
            if epistemic.item() > thresholds.limits["epistemic"]:
                assert reason == "unlike the training data"
            elif aleatoric.item() > thresholds.limits["aleatoric"]:
                two = sorted(["ant", "bee", "cat"][c] for c in probs.topk(2).indices)
                assert reason == f"between classes {two[0]} and {two[1]}"
        far = model.predict(1e4 * torch.ones(1, 4))
        assert not far.accept.item()
        assert far.reason == ["unlike the training data"]
        assert any(reason.startswith("between") for reason in p.reason)

    def test_thresholds_are_saved_and_copied(self, model, blobs, tmp_path):
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

    def test_equal_probabilities_are_unlike_the_training_data(self, model, blobs):
        """No two classes explain a rejection without evidence."""
        twin = copy.deepcopy(model)
        twin.calibrate([blobs], MaxRejectionRate(0.1), "aleatoric")
        far = twin.predict(1e4 * torch.ones(1, 4))
        assert far.reason == ["unlike the training data"]

    def test_loading_weights_drops_thresholds(self, blobs, tmp_path):
        plain = daedl.Classifier(MLP(4, 3), "softmax")
        plain.calibrate([blobs])
        plain.load_state_dict(plain.state_dict())
        assert plain.thresholds is None
        arguments = {"max_epochs": 1, "checkpoint": tmp_path / "run.ckpt", "resume": True}
        fit(plain, blobs, **arguments)
        plain.calibrate([blobs])
        fit(plain, blobs, **arguments)  # trains no epoch, but restores the checkpoint's weights
        assert plain.thresholds is None

    def test_training_and_fitting_drop_thresholds(self, model, blobs):
        twin = copy.deepcopy(model)
        twin.calibrate([blobs])
        twin.fit_post_hoc([blobs])
        assert twin.thresholds is None
        twin.calibrate([blobs])
        fit(twin, blobs, max_epochs=1)
        assert twin.thresholds is None

    def test_accept_requires_calibration(self, model, blobs):
        twin = copy.deepcopy(model)
        twin.thresholds = None
        with pytest.raises(ValueError, match="calibrate"):
            twin.predict(blobs[0]).accept  # noqa: B018

    def test_classes_without_names_are_numbered(self, blobs):
        softmax = daedl.Classifier(MLP(4, 3), "softmax")
        softmax.calibrate([blobs], MaxRejectionRate(0.5))
        reasons = set(softmax.predict(blobs[0]).reason)
        assert reasons <= {"", *(f"between classes {a} and {b}" for a, b in ("01", "02", "12"))}
        assert len(reasons) > 1


def test_the_density_has_a_limit_if_there_are_enough_images() -> None:
    """By default; the guarantee holds for the three scores together."""
    rate, repetitions, samples = 0.1, 400, 199
    rejected, far = 0.0, 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(repetitions):
        known = {
            name: torch.randn(2 * samples, generator=generator)
            for name in ("epistemic", "aleatoric", "density")
        }
        calibration = {name: values[:samples] for name, values in known.items()}
        thresholds = choose(calibration, torch.zeros(samples).bool(), MaxRejectionRate(rate))
        assert thresholds.on == "all"
        new = {name: values[samples:] for name, values in known.items()}
        rejected += float((~accepts(thresholds.limits, new)).double().mean())
        # An input far away with confident predictions: only the density shows it.
        ood = {"epistemic": torch.tensor([-9.0]), "aleatoric": torch.tensor([-9.0])}
        far += int(accepts(thresholds.limits, {**ood, "density": torch.tensor([9.0])}))
    assert rate - 3 / samples < rejected / repetitions < rate
    assert far == 0
    few = {name: values[:98] for name, values in calibration.items()}
    assert choose(few, torch.zeros(98).bool(), MaxRejectionRate(rate)).on == "both"
