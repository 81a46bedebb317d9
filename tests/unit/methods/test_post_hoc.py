"""What is read off a softmax network without another training: temperature, energy, largest logit."""

import math
import multiprocessing
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

import daedl
from daedl import SpectralNorm
from daedl.checks import NotFittedError
from daedl.methods import Softmax
from daedl.methods.adats import AdaTS
from daedl.methods.ddu import DDU
from daedl.methods.energy import Energy
from daedl.methods.knn import NearestNeighbours
from daedl.methods.mahalanobis import Mahalanobis
from daedl.methods.max_logit import MaxLogit
from daedl.methods.post_hoc import tempered
from daedl.methods.temperature import Temperature, TemperatureScaling, best_temperature
from daedl.networks import MLP
from daedl.outputs import Outputs

ALL = (TemperatureScaling, Energy, MaxLogit, Mahalanobis, NearestNeighbours, DDU, AdaTS)
FITTED = (TemperatureScaling, Mahalanobis, NearestNeighbours, DDU, AdaTS)
LOGITS = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64)
OUT = Outputs(torch.zeros(1, 2, dtype=torch.float64), LOGITS)
fit = partial(daedl.fit, accelerator="cpu", progress=False)


def sampled(scale, count=4000, seed=0):
    """Logits (N, 5), and classes (N,) drawn from their softmax; the logits then multiplied by `scale`."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, 5, generator=generator)
    targets = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return scale * logits, targets


@pytest.mark.parametrize("kind", [Mahalanobis, NearestNeighbours, DDU])
def test_scores_of_half_precision_are_finite_and_tell_far_apart(kind, blobs):
    features, targets = blobs
    method = kind()
    logits = torch.zeros(len(features), 3)
    fitted = method.fit(Outputs(features, logits), targets)
    far = torch.stack([torch.zeros(4), torch.full((4,), 2e3), torch.full((4,), 2e4)]).half()
    epistemic = method.predict(Outputs(far, logits[:3].half()), fitted).epistemic
    assert torch.isfinite(epistemic).all()
    if kind is not NearestNeighbours:  # which knows directions alone
        assert epistemic[1] < epistemic[2]


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0, 20.0])
def test_temperature_is_the_optimum_that_scipy_finds(scale):
    logits, targets = sampled(scale)

    def nll(log_temperature):
        log_probs = log_softmax(logits.double().numpy() / np.exp(log_temperature), axis=1)
        return -log_probs[np.arange(len(targets)), targets].mean()

    found = best_temperature(logits, targets)
    expected = minimize_scalar(nll, bounds=(-2, 4), method="bounded", options={"xatol": 1e-9})
    assert math.log(found) == pytest.approx(expected.x, abs=1e-6)
    # The classes were drawn at temperature 1, so that the scale is what is to be found.
    assert found == pytest.approx(scale, rel=0.1)


@given(gap=st.floats(0.5, 40), right=st.integers(51, 99))
@settings(max_examples=50, deadline=None)
def test_temperature_in_closed_form(gap, right):
    """Two classes a gap g apart, a share r of them right: sigmoid(g / T) = r."""
    logits = torch.tensor([[gap, 0.0]], dtype=torch.float64).expand(100, 2)
    targets = (torch.arange(100) >= right).long()
    expected = min(max(gap / math.log(right / (100 - right)), 0.1), 100)
    assert best_temperature(logits, targets) == pytest.approx(expected, rel=1e-9)


def test_temperature_stays_within_bounds():
    logits = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    # Without an error the loss falls all the way to T = 0; all wrong, all the way to infinity.
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
def test_no_temperature_changes_a_class(temperature):
    logits = torch.randn(300, 10, generator=torch.Generator().manual_seed(0))
    p = tempered(logits, torch.full((300,), temperature))
    assert torch.equal(p.labels, logits.argmax(-1))
    assert p.probs.dtype == torch.float32
    # Not even in logits whose quotient leaves the range of float32.
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


def test_largest_logit():
    p = MaxLogit().predict(OUT, None)
    assert p.epistemic.tolist() == [-2.0]
    assert torch.equal(p.probs, Softmax().predict(OUT, None).probs)


def test_energy_between_largest_logit_and_probability():
    """−E = max z − ln max p, as the paper takes the softmax apart; without warmth it is max z."""
    logits = 3 * torch.randn(100, 7, generator=torch.Generator().manual_seed(0)).double()
    out = Outputs(logits, logits)
    energy, largest = Energy().predict(out, None), MaxLogit().predict(out, None)
    expected = largest.epistemic + energy.probs.amax(-1).log()
    torch.testing.assert_close(energy.epistemic, expected)
    cold = Energy(temperature=1e-4).predict(out, None)
    torch.testing.assert_close(cold.epistemic, largest.epistemic, rtol=0, atol=1e-3)


@pytest.mark.parametrize("method", [Energy(), MaxLogit()], ids=lambda m: m.name)
def test_scores_of_logits_rise_as_all_logits_fall(method):
    """A level common to all classes is what softmax can't see."""
    lower = Outputs(OUT.features, LOGITS - 5)
    high, low = method.predict(OUT, None), method.predict(lower, None)
    torch.testing.assert_close(low.probs, high.probs)
    torch.testing.assert_close(low.epistemic, high.epistemic + 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [80.0, 1e-30])
@pytest.mark.parametrize("method", [Energy(), MaxLogit()], ids=lambda m: m.name)
def test_extreme_logits(method, size, dtype):
    p = method.predict(Outputs(OUT.features, size * LOGITS.sign().to(dtype)), None)
    assert torch.isfinite(p.epistemic).all()
    assert p.epistemic.dtype == dtype


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


@pytest.mark.parametrize("kind", FITTED)
def test_prediction_needs_a_fit(kind):
    loader = "val_loader" if kind.fit_split == "validation" else "train_loader"
    with pytest.raises(
        NotFittedError, match=rf"{kind.name} is not.*model.fit_post_hoc\({loader}\)"
    ):
        kind().predict(OUT, None)
    assert kind().needs_fit


def test_what_is_fitted_to_held_out_data_asks_for_them(blobs):
    assert [kind for kind in ALL if kind.fit_split == "validation"] == [TemperatureScaling, AdaTS]
    for method in (TemperatureScaling(), AdaTS()):
        classifier = daedl.Classifier(MLP(4, 3, hidden=(8,)), method)
        with pytest.raises(
            ValueError, match=rf"'{method.name}' is fitted to validation.*pass val="
        ):
            fit(classifier, blobs, max_epochs=1)


@pytest.mark.parametrize("kind", ALL)
def test_all_say_what_they_are(kind):
    assert kind.paper != Softmax.paper
    assert kind.caveats != Softmax.caveats
    assert kind.published_training
    assert kind.extra_cost
    assert kind(**kind().arguments()) == kind()


@pytest.mark.parametrize(
    "method", [TemperatureScaling(), Energy(), MaxLogit()], ids=lambda m: m.name
)
def test_saved_and_loaded_predicts_the_same(method, blobs, tmp_path):
    torch.manual_seed(0)
    classifier = daedl.Classifier(MLP(4, 3, hidden=(8,)), method)
    fit(classifier, blobs, blobs, max_epochs=1)
    classifier.save(tmp_path / "model.daedl")
    again = daedl.Classifier.load(tmp_path / "model.daedl", method=method)
    ours, theirs = classifier.predict(blobs[0]), again.predict(blobs[0])
    assert torch.equal(ours.probs, theirs.probs)
    assert all(torch.equal(ours.scores()[name], theirs.scores()[name]) for name in ours.scores())


def test_temperature_restored():
    method = TemperatureScaling()
    fitted = method.fit(*_outputs(3.0))
    again = method.restore(fitted.state_dict(), fitted.settings())
    assert again.temperature == fitted.temperature
    assert again.temperature != 1


def _fit_share(rank, folder, methods, outputs, targets):
    """In one of two processes: fit to every second sample, and leave what came of it."""
    meeting = f"file://{folder}/meeting"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    share = Outputs(*(part[rank::2] for part in outputs))
    fitted = [method.fit(share, targets[rank::2]) for method in methods]
    torch.save([(each.state_dict(), each.settings()) for each in fitted], folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_several_processes_fit_to_the_samples_of_all(blobs, tmp_path):
    features, targets = blobs[0][:301], blobs[1][:301]  # one more for the first process
    outputs = Outputs(features, 3 * torch.randn(301, 3, generator=torch.Generator().manual_seed(0)))
    methods = [TemperatureScaling(), Mahalanobis(), NearestNeighbours(k=5), DDU(), AdaTS(epochs=1)]
    context = multiprocessing.get_context("fork")
    arguments = (tmp_path, methods, outputs, targets)
    processes = [context.Process(target=_fit_share, args=(rank, *arguments)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    results = zip(*(torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)), strict=True)
    for method, parts in zip(methods, results, strict=True):
        first, second = (method.predict(outputs, method.restore(*part)) for part in parts)
        alone = method.predict(outputs, method.fit(outputs, targets))
        for name, score in first.scores().items():
            assert torch.equal(score, second.scores()[name])
            # AdaTS goes through the samples in the order in which it got them.
            if method.name != "adats":
                torch.testing.assert_close(score, alone.scores()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("temperature", [0, -1.0, math.inf, math.nan])
def test_energy_refuses_temperatures_without_sense(temperature):
    with pytest.raises(ValueError, match=r"temperature is .*; expected a finite number above 0"):
        Energy(temperature=temperature)


def _outputs(scale, seed=0):
    logits, targets = sampled(scale, seed=seed)
    return Outputs(logits, logits), targets


@pytest.mark.parametrize("kind", [DDU, Mahalanobis])
def test_the_shrinkage_that_was_asked_for_is_used(kind, blobs):
    outputs = Outputs(blobs[0], torch.zeros(len(blobs[0]), 3))
    fitted = kind(shrinkage=0.25).fit(outputs, blobs[1])
    assert fitted.amount.unique().tolist() == [0.25]
    again = kind(shrinkage=0.5).refit(fitted, outputs, blobs[1])
    assert again.amount.unique().tolist() == [0.5]
