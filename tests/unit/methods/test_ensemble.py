"""Ensembles of any method, trained jointly or joined afterwards."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import daedl
from daedl.methods import (
    DAEDL,
    EDL,
    FEDL,
    IEDL,
    KLPN,
    SNGP,
    EDLPlus,
    Ensemble,
    MCDropout,
    NatPN,
    PostNet,
    Softmax,
    build,
    build_for,
)
from daedl.networks import MLP, FeatureModule, Members
from daedl.outputs import Outputs
from daedl.spectral import normalization, remove_spectral_norm

fit = partial(daedl.fit, accelerator="cpu", progress=False, learning_rate=1e-2)


def trained(method, blobs, seed, epochs=2):
    torch.manual_seed(seed)
    classifier = daedl.Classifier(MLP(4, 3, hidden=(8,)), method)
    fit(classifier, blobs, blobs, max_epochs=epochs, seed=seed)
    return classifier


@pytest.mark.parametrize("method", [Softmax(), DAEDL()], ids=lambda m: m.name)
def test_joined_members_predict_the_mean(method, blobs, tmp_path):
    members = [trained(method, blobs, seed) for seed in range(3)]
    joined = daedl.ensemble(members)
    each = [member.predict(blobs[0]) for member in members]
    p = joined.predict(blobs[0])
    mean = torch.stack([one.probs for one in each]).mean(0)
    torch.testing.assert_close(p.probs, mean)
    assert torch.equal(p.labels, p.probs.argmax(-1))
    if each[0].epistemic is None:
        entropy = torch.special.entr(mean.double()).sum(-1)
        inner = torch.stack([torch.special.entr(one.probs.double()).sum(-1) for one in each])
        torch.testing.assert_close(
            p.epistemic.double(), entropy - inner.mean(0), atol=1e-6, rtol=1e-4
        )
    else:
        own = torch.stack([one.epistemic for one in each]).mean(0)
        torch.testing.assert_close(p.epistemic, own)
    joined.save(tmp_path / "model.daedl")
    again = daedl.Classifier.load(tmp_path / "model.daedl")
    assert torch.equal(again.predict(blobs[0]).probs, p.probs)
    # The members are copies.
    with torch.no_grad():
        next(members[0].network.parameters()).zero_()
    assert torch.equal(joined.predict(blobs[0]).probs, p.probs)


def test_members_have_different_weights_and_independent_gradients(blobs):
    torch.manual_seed(0)
    classifier = daedl.Classifier(MLP(4, 3, hidden=(8,)), Ensemble(member=EDL(), size=3))
    first, second, third = classifier.network.members
    assert not torch.equal(*(each.classifier[0].weight for each in (first, second)))
    images, targets = blobs[0][:50], blobs[1][:50]
    classifier.method.training_loss(classifier.network, images, targets, 4).backward()
    together = third.classifier[0].weight.grad.clone()
    third.zero_grad()
    EDL().training_loss(third, images, targets, 4).backward()
    torch.testing.assert_close(together, third.classifier[0].weight.grad)


@pytest.mark.parametrize(
    "member",
    [KLPN(), MCDropout(num_passes=3), NatPN(warmup_epochs=1), DAEDL()],
    ids=lambda m: m.name,
)
def test_members_with_noise_passes_phases_and_state(member, blobs, tmp_path):
    torch.manual_seed(0)
    network = MLP(4, 3, hidden=(8,))
    method = Ensemble(member=member.resolved(network), size=2)
    classifier = daedl.Classifier(network, method)
    fit(classifier, blobs, blobs, max_epochs=2)
    p = classifier.predict(blobs[0])
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(610))
    classifier.save(tmp_path / "model.daedl")
    again = daedl.Classifier.load(tmp_path / "model.daedl")
    assert again.method == method
    assert torch.equal(again.predict(blobs[0]).probs, p.probs)


def test_passes_and_fit_follow_from_the_member():
    assert Ensemble(size=4).passes == 4
    assert Ensemble(size=4, member=MCDropout(num_passes=5)).passes == 20
    assert not Ensemble().needs_fit
    assert Ensemble(member=DAEDL()).needs_fit
    assert Ensemble(member=build("temperature")).fit_split == "validation"


def test_post_hoc_members_share_training():
    assert Ensemble(member=build("energy")).training_method() == Ensemble()
    assert Ensemble(member=DAEDL()).training_method() == Ensemble(
        member=EDLPlus(spectral=DAEDL().spectral)
    )


def test_members_by_name():
    assert build("ensemble", member="edl", size=3) == Ensemble(member=EDL(), size=3)


def test_normalisation_of_the_network_applies_to_every_member():
    network = daedl.spectral_normalize(MLP(4, 3, hidden=(8,)))
    members = daedl.Classifier(network, Ensemble(size=3)).network.members
    assert [normalization(each) for each in members] == [daedl.SpectralNorm()] * 3


def test_feature_modules_are_reinitialised():
    own = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    members = daedl.Classifier(FeatureModule(own, "1", (4,)), Ensemble(size=2)).network.members
    assert members[0].module is own
    assert not torch.equal(*(each.module[0].weight for each in members))


class Scale(nn.Module):
    """A layer without `reset_parameters`."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(3))

    def forward(self, values):
        return values * self.factor


def test_layers_without_reset_parameters_are_rejected():
    own = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), Scale())
    with pytest.raises(ValueError, match=r"'module.3' has no reset_parameters"):
        daedl.Classifier(FeatureModule(own, "1", (4,)), Ensemble(size=2))


def test_invalid_settings_are_rejected():
    with pytest.raises(ValueError, match="size is 1"):
        Ensemble(size=1)
    with pytest.raises(TypeError, match="not an ensemble"):
        Ensemble(member=Ensemble())
    with pytest.raises(TypeError, match="member is 3"):
        Ensemble(member=3)
    with pytest.raises(ValueError, match="on the member"):
        Ensemble(spectral=daedl.SpectralNorm())
    with pytest.raises(ValueError, match="2 networks"):
        daedl.Classifier(Members([MLP(4, 3), MLP(4, 3)]), Ensemble(size=3))


def test_feature_modules_are_loaded_without_reinitialising(blobs, tmp_path):

    def own():
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), Scale())
        return FeatureModule(layers, "1", (4,))

    members = [daedl.Classifier(own(), "daedl").fit_post_hoc([blobs]) for _ in range(2)]
    joined = daedl.ensemble(members)
    joined.save(tmp_path / "m.daedl")
    again = daedl.Classifier.load(tmp_path / "m.daedl", own())
    torch.testing.assert_close(again.predict(blobs[0]).probs, joined.predict(blobs[0]).probs)


def test_ties_are_resolved_by_majority_vote():
    logits = torch.zeros(2, 3, 3)
    tied = EDLPlus().predict(Outputs(torch.zeros(2, 1), logits[:, 0]), None).probs
    assert (tied == tied[0, 0]).all()

    class Fixed(EDLPlus):
        """All classes tie; the label comes from the features."""

        def predict(self, outputs, fitted):
            p = super().predict(outputs, fitted)
            return replace(p, labels=outputs.features[:, 0].long())

    named = torch.tensor([[2.0, 2, 0], [1, 0, 1]])[:, :, None]
    p = Ensemble(member=Fixed(), size=3).predict(Outputs(named, logits), None)
    assert p.labels.tolist() == [2, 1]


def test_different_classifiers_are_not_joined(blobs):
    one, other = trained(Softmax(), blobs, 0), trained(EDL(), blobs, 0)
    with pytest.raises(ValueError, match="members differ"):
        daedl.ensemble([one, other])
    with pytest.raises(ValueError, match="at least two"):
        daedl.ensemble([one])
    wide = daedl.Classifier(MLP(4, 3, hidden=(9,)), "softmax")
    with pytest.raises(ValueError, match="members differ"):
        daedl.ensemble([one, wide])


def test_epistemic_score_of_softmax_members_is_their_disagreement():
    logits = torch.tensor([[[4.0, 0, 0], [4, 0, 0]], [[4, 0, 0], [0, 4, 0]]])
    p = Ensemble(size=2).predict(Outputs(torch.zeros(2, 2, 1), logits), None)
    assert p.epistemic[0] == 0
    assert p.epistemic[1] > 0.4


@pytest.mark.parametrize("member", [PostNet(), FEDL(), SNGP(), DAEDL()], ids=lambda m: m.name)
def test_validation_accuracy_equals_that_of_the_predictions(member, blobs):
    """Up to ties if the member method is fitted after training, as DAEDL."""
    classifier = daedl.Classifier(MLP(4, 3, hidden=(8,)), Ensemble(member=member, size=3))
    history = fit(classifier, blobs, blobs, max_epochs=1)
    right = classifier.predict(blobs[0]).labels == blobs[1]
    tolerance = 0.05 if member.needs_fit else 1e-6
    assert history.epochs[0].val_accuracy == pytest.approx(
        float(right.float().mean()), abs=tolerance
    )


def test_members_without_their_spectral_normalisation_can_be_joined(blobs):
    members = [trained(DAEDL(), blobs, seed) for seed in range(2)]
    for each in members:
        remove_spectral_norm(each.network)
    mean = torch.stack([each.predict(blobs[0]).probs for each in members]).mean(0)
    joined = daedl.ensemble(members)
    torch.testing.assert_close(joined.predict(blobs[0]).probs, mean)
    assert normalization(joined.network) is None


def test_members_use_the_settings_published_for_the_dataset():
    assert build_for("cifar10", "ensemble", member="i-edl").member == build_for("cifar10", "i-edl")
    assert build_for("cifar10", "i-edl") != IEDL()
    assert build("ensemble", member="i-edl").member == IEDL()


def test_training_loss_is_the_sum_over_the_members(blobs):
    """Also for members with their own training loss; the reduction is that of the member."""
    torch.manual_seed(0)
    ensemble = Ensemble(member=KLPN(), size=3)
    network = ensemble.prepare(MLP(4, 3, hidden=(8,)))
    torch.manual_seed(1)
    total = ensemble.training_loss(network, *blobs, 0)
    torch.manual_seed(1)
    each = [ensemble.member.training_loss(one, *blobs, 0) for one in network.members]
    torch.testing.assert_close(total, sum(each))
    assert Ensemble(member=PostNet()).reduction == PostNet().reduction == "sum"
    assert Ensemble(member=Softmax()).reduction == "mean"


def test_members_have_phases_and_class_counts(blobs):
    ensemble = Ensemble(member=NatPN(), size=2)
    phases = [(each.name, each.trains) for each in ensemble.phases()]
    assert phases == [(each.name, each.trains) for each in NatPN().phases()]
    assert len(phases) == 3
    classifier = daedl.Classifier(MLP(4, 3, hidden=(8,)), Ensemble(member=PostNet(), size=2))
    fit(classifier, blobs, max_epochs=1)
    counts = torch.bincount(blobs[1]).float().log()
    for member in classifier.network.members:
        torch.testing.assert_close(member.head.log_counts, counts)
