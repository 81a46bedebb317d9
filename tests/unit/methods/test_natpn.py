"""NatPN: worked numbers, bounds on the evidence, three training phases."""

import math
from functools import partial

import mpmath
import pytest
import torch

import daedl
from daedl.dirichlet import Dirichlet
from daedl.methods.natpn import NatPN, NatPNHead
from daedl.networks import MLP
from daedl.outputs import Outputs

fit = partial(daedl.fit, accelerator="cpu", progress=False)
CHI = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64).softmax(-1)


def model(**settings):
    torch.manual_seed(0)
    return daedl.Classifier(MLP(4, 3, hidden=(16, 16)), NatPN(**settings))


def out(log_q, chi=CHI):
    """Outputs of the head for a log density and class probabilities."""
    return Outputs(torch.zeros(1, 16, dtype=chi.dtype), log_q + chi.log())


def test_worked_numbers():
    prediction = NatPN().predict(out(-18.0), None)
    assert (prediction.alpha - 1).sum().item() == pytest.approx(9.47062, abs=5e-6)
    assert prediction.alpha[0].tolist() == pytest.approx([8.99126, 2.08150, 1.39786], abs=5e-6)
    assert prediction.log_density.item() == pytest.approx(-18)
    target = torch.tensor([0])
    uce = NatPN(entropy_weight=0).loss(out(-18.0), target, 0)
    assert uce.item() == pytest.approx(0.343132, abs=5e-7)
    assert NatPN().loss(out(-18.0), target, 0).item() == pytest.approx(0.343154, abs=5e-7)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [("constant", 0.0), ("exp-half", 8.0), ("exp", 16.0), ("normal", 20.2482)],
)
def test_budgets(budget, expected):
    """With q = 1 / N_H the total evidence is 1, distributed by χ."""
    alpha = NatPN(budget=budget).log_alpha(out(-expected).logits).exp()
    torch.testing.assert_close(alpha, 1 + CHI, atol=5e-5, rtol=0)


@pytest.mark.parametrize(("classes", "uce"), [(3, 1.5), (10, 2.82897)])
def test_far_from_the_data_the_dirichlet_is_uniform(classes, uce):
    chi = torch.rand(1, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    chi = chi / chi.sum()
    for log_q in (-1e3, -1e6):
        prediction = NatPN().predict(out(log_q, chi), None)
        torch.testing.assert_close(prediction.alpha, torch.ones_like(chi))
        loss = NatPN(entropy_weight=0).loss(out(log_q, chi), torch.tensor([1]), 0)
        assert loss.item() == pytest.approx(uce, abs=5e-6)
        entropy = prediction.dirichlet.differential_entropy.item()
        assert entropy == pytest.approx(-math.lgamma(classes), abs=1e-6)
        # All α are equal: the class is that of χ, and the density is not clamped.
        assert prediction.labels.item() == chi.argmax().item()
        assert prediction.scores()["density"].item() == pytest.approx(-log_q)


def test_epistemic_score_ranks_as_the_precision_without_its_bounds():
    logits = torch.linspace(-100, 60, 81, dtype=torch.float64)[:, None] + CHI.log()
    prediction = NatPN().predict(Outputs(torch.zeros(81, 16), logits), None)
    assert (prediction.epistemic.diff() < 0).all()
    precision = prediction.dirichlet.precision
    assert (precision.diff() >= 0).all()
    assert precision[0] == precision[1]
    assert precision[-2] == precision[-1]


@pytest.mark.parametrize("log_n", [0.0, 10.0, 20.0, 30.0])
def test_entropy_of_very_large_concentrations(log_n):
    """Up to α₀ = 1e13, where the published code uses an asymptotic formula."""
    log_q = log_n - 0.5 * math.log(4 * math.pi) * 16
    log_alpha = NatPN().log_alpha(out(log_q).logits)
    with mpmath.workdps(60):
        alpha = [1 + mpmath.exp(log_n) * mpmath.mpf(c) for c in CHI[0].tolist()]
        total = mpmath.fsum(alpha)
        expected = (
            mpmath.fsum(mpmath.loggamma(a) for a in alpha)
            - mpmath.loggamma(total)
            + (total - 3) * mpmath.digamma(total)
            - mpmath.fsum((a - 1) * mpmath.digamma(a) for a in alpha)
        )
        uce = mpmath.digamma(total) - mpmath.digamma(alpha[2])
    assert Dirichlet(log_alpha).differential_entropy.item() == pytest.approx(float(expected))
    in_float32 = Dirichlet(log_alpha.float()).differential_entropy.item()
    assert in_float32 == pytest.approx(float(expected), rel=1e-5, abs=1e-5)
    loss = NatPN(entropy_weight=0.5).loss(out(log_q), torch.tensor([2]), 0)
    assert loss.item() == pytest.approx(float(uce - expected / 2))


def test_gradient_passes_through_the_bounds_of_the_evidence():
    """Beyond the bounds, loss and gradient equal those at the bound."""
    target = torch.tensor([1])
    for sign in (-1, 1):
        ends = []
        for log_n in (30.0 * sign, 80.0 * sign):
            log_q = torch.tensor(log_n, dtype=torch.float64, requires_grad=True)
            method = NatPN(budget="constant", entropy_weight=1.0)
            loss = method.loss(out(log_q), target, 0)
            (gradient,) = torch.autograd.grad(loss.sum(), log_q)
            ends.append((loss.item(), gradient.item()))
        assert ends[0] == pytest.approx(ends[1], rel=1e-9)
        assert ends[1][1] != 0


def test_bound_is_exact_in_float32_at_any_distance():
    """Computing x + (bound − x) would result in n = 1 at ln q = −1e9."""
    chi = torch.full((1, 3), 1 / 3)
    for log_q in (-1e3, -1e6, -1e9, -1e30):
        log_alpha = NatPN().log_alpha(out(log_q, chi).logits)
        expected = torch.full((1, 3), math.exp(-30) / 3)
        torch.testing.assert_close(log_alpha, expected, rtol=1e-5, atol=0)


def test_head_returns_the_joint_log_density_of_latent_and_class():
    torch.manual_seed(0)
    head, latent = NatPNHead(16, 8, 5), torch.randn(7, 16)
    given = head(Outputs(torch.zeros(7, 2), latent))
    assert torch.equal(given.features, latent)
    torch.testing.assert_close(given.logits.logsumexp(-1), head.flow(latent)[:, 0])
    torch.testing.assert_close(given.logits.softmax(-1), head.classifier(latent).softmax(-1))
    assert len(head.flow.layers) == 8


def state(classifier):
    return {name: value.clone() for name, value in classifier.network.state_dict().items()}


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


def batches(blobs):
    """Seven batches."""
    features, targets = blobs
    return list(zip(features.split(100), targets.split(100), strict=True))


def test_warm_up_trains_only_the_flow(blobs, interrupting):
    classifier = model()
    before = state(classifier)
    flow = {name for name in before if name.startswith("head.flow")}
    assert len(flow) == 8 * 3
    with pytest.raises(KeyboardInterrupt):  # at the first batch of joint training
        fit(classifier, interrupting(batches(blobs), 3 * 7), blobs, max_epochs=2)
    assert changed(before, state(classifier)) == flow


def test_joint_training_trains_everything_and_fine_tuning_only_the_flow(blobs):
    without, tuned = model(finetune=False), model()
    start = state(without)
    fit(without, batches(blobs), blobs, max_epochs=2)
    fit(tuned, batches(blobs), blobs, max_epochs=2)
    assert changed(start, state(without)) == set(start)
    flow = {name for name in start if name.startswith("head.flow")}
    assert changed(state(without), state(tuned)) == flow
    # No parameter is frozen afterwards.
    assert all(parameter.requires_grad for parameter in tuned.network.parameters())


def test_flow_is_trained_where_all_evidence_is_at_its_bound(blobs):
    """Latents are so far from the base distribution that ln n is −30 for all."""
    classifier = model(warmup_epochs=3, finetune=False)
    with torch.no_grad():
        classifier.network.inner.classifier.logits.weight.mul_(100)
    assert (classifier.predict(blobs[0]).dirichlet.precision == 3).float().mean() > 0.9
    history = fit(classifier, batches(blobs), blobs, max_epochs=1, learning_rate=1e-2)
    losses = [epoch.val_loss for epoch in history.epochs if epoch.phase == "warm-up"]
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]


def test_likelihood_phases_minimise_minus_ln_q():
    warmup, joint, finetuning = NatPN(budget="exp").phases()
    assert [p.name for p in (warmup, joint, finetuning)] == [
        "warm-up",
        "training",
        "fine-tuning",
    ]
    assert (warmup.max_epochs, joint.max_epochs, finetuning.max_epochs) == (3, None, None)
    assert joint.method == NatPN(budget="exp")
    for phase in (warmup, finetuning):
        for log_q in (-1e4, -18.0, 50.0):
            loss = phase.method.loss(out(log_q), torch.tensor([0]), 0)
            assert loss.item() == pytest.approx(-log_q)


def test_phases_can_be_disabled():
    names = [[p.name for p in m.phases()] for m in (NatPN(warmup_epochs=0), NatPN(finetune=False))]
    assert names == [["training", "fine-tuning"], ["warm-up", "training"]]
    assert len(NatPN(warmup_epochs=0, finetune=False).phases()) == 1


@pytest.fixture(scope="module")
def whole(blobs, request):
    """Trained without interruption: 2 epochs per phase."""
    classifier, how = model(warmup_epochs=2), {"max_epochs": 2, "schedule": request.param}
    return classifier, fit(classifier, batches(blobs), blobs, **how), how


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whole", "after"),
    [
        *(("exponential", batches) for batches in (4, 14, 20, 28, 33, 41)),
        *(("one-cycle", batches) for batches in (14, 20)),
    ],
    indirect=["whole"],
)
def test_resumed_training_ends_with_the_same_weights(blobs, tmp_path, whole, after, interrupting):
    """Interrupted in the warm-up, after it, in the joint training, after it, and twice in the fine-tuning."""
    stopped, resumed = model(warmup_epochs=2), model(warmup_epochs=2)
    how = {**whole[2], "checkpoint": tmp_path / "run.ckpt", "resume": True}
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, interrupting(batches(blobs), after), blobs, **how)
    history = fit(resumed, batches(blobs), blobs, **how)
    assert not changed(state(whole[0]), state(resumed))
    seen = [[(e.phase, e.val_loss) for e in h.epochs] for h in (whole[1], history)]
    assert len(seen[0]) == 6
    assert seen[0] == seen[1]


def test_unknown_budget_is_rejected():
    with pytest.raises(ValueError, match="did you mean 'normal'"):
        NatPN(budget="norml")
