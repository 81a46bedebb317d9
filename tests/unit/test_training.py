"""Training: defaults, best weights, early stopping, resuming, several processes, invalid input."""

import random
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import daedl
from daedl.data.loaders import in_order
from daedl.density.fitting import FLOAT32_AGREEMENT
from daedl.networks import MLP, ConvNet
from daedl.training.checkpoint import Checkpoint
from daedl.training.randomness import seed_epoch

fit = partial(daedl.fit, accelerator="cpu", progress=False)


def model(method="daedl", **arguments):
    torch.manual_seed(0)
    return daedl.Classifier(MLP(4, 3, hidden=(16, 16)), method, **arguments)


def batch_norm_model():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    return daedl.Classifier(daedl.networks.FeatureModule(layers, features="2", input_shape=(4,)))


def weights(classifier):
    return {name: value.clone() for name, value in classifier.network.state_dict().items()}


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


def test_training_learns_and_reports(blobs):
    features, targets = blobs
    classifier = model()
    train, val = (features[:400], targets[:400]), (features[400:], targets[400:])
    history = fit(classifier, train, val, max_epochs=20, learning_rate=1e-2)
    assert history.epochs[-1].train_loss < 0.8 * history.epochs[0].train_loss
    assert [round(e.learning_rate / 1e-2, 6) for e in history.epochs[:3]] == [1, 0.95, 0.9025]
    assert daedl.metrics.accuracy(classifier.predict(features).labels, targets) > 0.8
    assert history.density_effect is not None
    assert history.density_effect.flips == 0
    assert not classifier.training


def test_early_stopping_restores_the_best_weights(blobs):
    """With a large learning rate the validation loss soon stops decreasing."""
    features, targets = blobs
    classifier = model("edl+")
    history = fit(
        classifier,
        (features[:400], targets[:400]),
        (features[400:], targets[400:]),
        max_epochs=40,
        learning_rate=0.05,
        lr_decay=1.0,
        patience=3,
    )
    losses = [epoch.val_loss for epoch in history.epochs]
    assert history.stopped_early
    assert history.best_epoch == int(np.argmin(losses))
    assert len(losses) == history.best_epoch + 1 + 3
    outputs, labels = classifier.collect([(features[400:], targets[400:])])
    again = float(classifier.method.loss(outputs, labels, float("inf")).double().mean())
    assert again == pytest.approx(min(losses), rel=1e-6)


def test_validation_uses_the_final_weight_of_an_annealed_loss(blobs):
    features, targets = blobs
    classifier = model("edl")
    history = fit(classifier, blobs, blobs, max_epochs=1)
    outputs, labels = classifier.collect([(features, targets)])
    full = float(classifier.method.loss(outputs, labels, 10).double().mean())
    assert history.epochs[0].val_loss == pytest.approx(full, rel=1e-6)
    assert full != pytest.approx(float(classifier.method.loss(outputs, labels, 0).mean()), rel=1e-3)


def test_without_validation_the_last_weights_are_kept(blobs):
    history = fit(model("softmax"), blobs, max_epochs=2)
    assert history.best_epoch == 1
    assert history.epochs[0].val_loss is None
    assert history.density_effect is None


def random_states():
    return torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # noqa: NPY002


def test_equal_seeds_give_equal_weights_and_preserve_the_random_state(blobs):
    ends = []
    for _ in range(2):
        classifier = model()
        before = random_states()
        fit(classifier, blobs, blobs, max_epochs=2, seed=7)
        after = random_states()
        assert torch.equal(before[0], after[0])
        assert (before[1] == after[1]).all()
        assert before[2] == after[2]
        ends.append(weights(classifier))
    assert same(*ends)
    other = model()
    fit(other, blobs, blobs, max_epochs=2, seed=8)
    assert not same(ends[0], weights(other))


def test_custom_optimiser_scheduler_and_clipping(blobs):
    classifier = model("softmax")
    before = weights(classifier)
    history = fit(
        classifier,
        blobs,
        blobs,
        max_epochs=3,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        scheduler=partial(ReduceLROnPlateau, factor=0.5, patience=0, threshold=0.99),
        gradient_clip=1e-4,
    )
    assert [e.learning_rate for e in history.epochs] == [0.1, 0.1, 0.05]
    # Every step is at most 0.1 * 1e-4 long, in 30 steps at most 3e-4.
    moved = (
        sum(float((before[k] - v).square().sum()) for k, v in weights(classifier).items()) ** 0.5
    )
    assert 0 < moved <= 3.1e-4


def test_one_cycle_schedule_steps_per_batch_and_resumes(blobs, tmp_path):
    whole, parted = model(), model()
    options = {"schedule": "one-cycle", "learning_rate": 1e-2, "batch_size": 32}
    history = fit(whole, blobs, blobs, max_epochs=4, **options)
    rates = [epoch.learning_rate for epoch in history.epochs]
    assert rates[0] == pytest.approx(1e-2 / 25)
    assert rates[1] == pytest.approx(1e-2, rel=0.1)
    assert rates[1] > rates[2] > rates[3] > 0
    given = model()
    steps = 4 * -(-len(blobs[0]) // 32)
    one_cycle = partial(OneCycleLR, max_lr=1e-2, total_steps=steps)
    fit(given, blobs, blobs, max_epochs=4, batch_size=32, learning_rate=1e-2, scheduler=one_cycle)
    assert same(weights(whole), weights(given))

    def stopping(batches):
        for number, batch in enumerate(batches):
            if stopping.left == 0 and number == 3:
                raise KeyboardInterrupt
            yield batch
        stopping.left -= 1

    stopping.left = 2
    checkpoint = tmp_path / "run.ckpt"
    from daedl.training import bars

    with pytest.MonkeyPatch.context() as patch:
        batches = bars.Bars.batches
        patch.setattr(bars.Bars, "batches", lambda self, *a: stopping(batches(self, *a)))
        with pytest.raises(KeyboardInterrupt):
            fit(parted, blobs, blobs, max_epochs=4, checkpoint=checkpoint, **options)
    fit(parted, blobs, blobs, max_epochs=4, checkpoint=checkpoint, resume=True, **options)
    assert same(weights(whole), weights(parted))


def test_checkpoint_of_another_schedule_is_rejected(blobs, tmp_path):
    checkpoint = tmp_path / "run.ckpt"
    options = {"checkpoint": checkpoint, "schedule": "one-cycle"}
    fit(model(), blobs, blobs, max_epochs=2, **options)
    with pytest.raises(ValueError, match="schedule"):
        fit(model(), blobs, blobs, max_epochs=4, resume=True, **options)
    checkpoint.unlink()
    fit(model(), blobs, blobs, max_epochs=2, checkpoint=checkpoint)
    with pytest.raises(ValueError, match="schedule"):
        fit(model(), blobs, max_epochs=2, checkpoint=checkpoint, resume=True, lr_decay=0.5)


def test_invalid_schedules_are_rejected(blobs):
    with pytest.raises(ValueError, match="one-cycel"):
        fit(model(), blobs, schedule="one-cycel")

    class Endless:
        def __iter__(self):
            yield blobs

    with pytest.raises(TypeError, match="no length"):
        fit(model(), Endless(), schedule="one-cycle")


def test_mixed_precision(blobs, monkeypatch):
    # oneDNN's bfloat16 kernels stop some virtual machines with an illegal instruction.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    classifier = model()
    history = fit(classifier, blobs, blobs, max_epochs=3, precision="bf16-mixed")
    assert history.epochs[-1].train_loss < history.epochs[0].train_loss
    assert next(classifier.network.parameters()).dtype == torch.float32
    assert torch.isfinite(classifier.predict(blobs[0]).log_alpha).all()


def test_density_fit_is_one_pass_over_every_sample(blobs):
    features, _ = blobs
    loader = DataLoader(TensorDataset(*blobs), batch_size=64, shuffle=True, drop_last=True)
    classifier = model()
    seen = []
    classifier.network.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    fit(classifier, loader, max_epochs=1)
    assert sum(len(batch) for batch in seen[: len(loader)]) == 576  # the last batch is dropped
    assert torch.equal(torch.cat(seen[len(loader) :]), features)
    assert int(classifier.fitted.density.counts.sum()) == 610


def test_density_is_fitted_to_fit_data(blobs):
    features, targets = blobs
    classifier = model()
    fit(
        classifier,
        (features + 0.1, targets),
        max_epochs=1,
        fit_data=(features[:300], targets[:300]),
    )
    outputs, labels = classifier.collect([(features[:300], targets[:300])])
    expected = outputs.features[labels == 0].double().mean(0)
    torch.testing.assert_close(classifier.fitted.density.means[0], expected)


def test_custom_samplers_are_kept(blobs):
    """Samples that the sampler excludes do not reach the density."""
    loader = DataLoader(
        TensorDataset(*blobs), batch_size=50, sampler=SubsetRandomSampler(range(450))
    )
    classifier = model()
    fit(classifier, loader, max_epochs=1)
    assert int(classifier.fitted.density.counts.sum()) == 450
    with pytest.raises(ValueError, match="several processes"):
        in_order(loader, rank=0, world_size=2)


def batch_sampled(blobs, sampler):
    """A loader with a batch sampler; its `sampler` attribute is a dummy."""
    return DataLoader(TensorDataset(*blobs), batch_sampler=BatchSampler(sampler, 50, False))


def test_batch_samplers_are_kept(blobs):
    order = torch.Generator().manual_seed(3)
    classifier = model()
    chosen = batch_sampled(blobs, SubsetRandomSampler(range(450), generator=order))
    fit(classifier, chosen, chosen, max_epochs=1)
    assert int(classifier.fitted.density.counts.sum()) == 450
    every = batch_sampled(blobs, RandomSampler(blobs[0]))
    in_turn = torch.cat([images for images, _ in in_order(every)])
    assert torch.equal(in_turn, blobs[0])
    assert len(next(iter(in_order(every)))[0]) == 50


def test_batch_samplers_resume_exactly(blobs, tmp_path):
    def loader():
        order = torch.Generator().manual_seed(3)
        return batch_sampled(blobs, SubsetRandomSampler(range(450), generator=order))

    whole, resumed = model("edl+"), model("edl+")
    fit(whole, loader(), max_epochs=4)
    fit(resumed, loader(), max_epochs=2, checkpoint=tmp_path / "c", patience=50)
    fit(resumed := model("edl+"), loader(), max_epochs=4, checkpoint=tmp_path / "c", resume=True)
    assert same(weights(whole), weights(resumed))


def test_iterable_datasets_train(blobs):
    class Stream(IterableDataset):
        def __iter__(self):
            return zip(*blobs, strict=True)

    classifier = model()
    fit(classifier, Stream(), max_epochs=1)
    assert int(classifier.fitted.density.counts.sum()) == len(blobs[0])


def test_class_counts_depend_on_the_seed_only(blobs):
    """A random sampler selects other samples in each pass."""
    found = []
    for outside in (1, 2):
        classifier = model("postnet")
        torch.manual_seed(outside)
        drawn = WeightedRandomSampler(torch.ones(len(blobs[0])), 200)
        loader = DataLoader(TensorDataset(*blobs), batch_size=50, sampler=drawn)
        fit(classifier, loader, max_epochs=1)
        found.append([each for name, each in classifier.network.named_buffers() if "count" in name])
    assert found[0]
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("arguments", "keyword"),
    [
        ({"gradient_clip": 0.0}, "gradient_clip is 0.0"),
        ({"gradient_clip": -1.0}, "gradient_clip is -1.0"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"max_epochs": 0}, "max_epochs is 0"),
        ({"max_epochs": 2.0}, "max_epochs is 2.0"),
        ({"patience": 0}, "patience is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_settings_are_validated(blobs, arguments, keyword):
    with pytest.raises(ValueError, match=keyword):
        fit(model(), blobs, **arguments)


def test_shares_of_processes_cover_every_sample_once(blobs):
    loader = DataLoader(TensorDataset(*blobs), batch_size=64, shuffle=True)
    parts = [torch.cat([x for x, _ in in_order(loader, rank, 3)]) for rank in range(3)]
    assert [len(part) for part in parts] == [204, 203, 203]
    together = torch.cat(parts)
    assert torch.equal(together.sort(0).values, blobs[0].sort(0).values)


def test_any_iterable_of_batches_trains(blobs):
    features, targets = blobs
    batches = list(zip(features.split(100), targets.split(100), strict=True))
    assert len(fit(model(), batches, batches, max_epochs=2).epochs) == 2


@pytest.mark.parametrize("after", [3, 12, 20])
def test_resumed_run_equals_an_uninterrupted_one(blobs, tmp_path, after, interrupting):
    features, targets = blobs
    batches = list(zip(features.split(100), targets.split(100), strict=True))
    whole = model()
    expected = fit(whole, batches, blobs, max_epochs=5)
    path = tmp_path / "run.ckpt"
    stopped = model()
    with pytest.raises(KeyboardInterrupt):
        fit(
            stopped, interrupting(batches, after), blobs, max_epochs=5, checkpoint=path, resume=True
        )
    resumed = model()
    history = fit(resumed, batches, blobs, max_epochs=5, checkpoint=path, resume=True)
    assert same(weights(whole), weights(resumed))
    assert [e.val_loss for e in history.epochs] == [e.val_loss for e in expected.epochs]
    assert torch.equal(whole.predict(features).log_alpha, resumed.predict(features).log_alpha)


def test_interrupted_training_discards_the_density(blobs, interrupting):
    classifier = model()
    fit(classifier, blobs, max_epochs=1)
    assert classifier.fitted is not None
    batches = list(zip(blobs[0].split(100), blobs[1].split(100), strict=True))
    with pytest.raises(KeyboardInterrupt):
        fit(classifier, interrupting(batches, 2), max_epochs=1)
    assert classifier.fitted is None


def test_reported_losses_are_means_over_samples(blobs):
    """Even if the last batch is smaller; the accuracy is that of the predictions."""
    batches = [(blobs[0][:600], blobs[1][:600]), (blobs[0][600:], blobs[1][600:])]
    for method in ("softmax", "edl"):
        classifier = model(method)
        before = classifier.network(blobs[0])
        expected = classifier.method.loss(before, blobs[1], 0).mean().item()
        frozen = partial(torch.optim.SGD, lr=1e-20)
        history = fit(classifier, batches, blobs, max_epochs=1, optimizer=frozen)
        assert history.epochs[0].train_loss == pytest.approx(expected, rel=1e-5)
        right = (classifier.predict(blobs[0]).labels == blobs[1]).double().mean()
        assert history.epochs[0].val_accuracy == pytest.approx(float(right))


def test_processes_draw_different_random_numbers():
    drawn = []
    for rank in (0, 1, 0):
        seed_epoch(3, 1, rank)
        drawn.append((torch.rand(1).item(), random.random()))
    assert drawn[0] == drawn[2]
    assert all(a != b for a, b in zip(*drawn[:2], strict=True))


def test_loaders_with_a_generator_resume_exactly(blobs, tmp_path):
    def loader():
        order = torch.Generator().manual_seed(3)
        return DataLoader(TensorDataset(*blobs), 64, shuffle=True, generator=order)

    whole, resumed = model("edl+"), model("edl+")
    fit(whole, loader(), max_epochs=4)
    fit(resumed, loader(), max_epochs=2, checkpoint=tmp_path / "c", patience=50)
    fit(resumed := model("edl+"), loader(), max_epochs=4, checkpoint=tmp_path / "c", resume=True)
    assert same(weights(whole), weights(resumed))


SCRIPT = """
import sys, time, torch, daedl
torch.set_num_threads(1)
torch.manual_seed(0)
images, targets = torch.rand(256, 1, 8, 8), torch.arange(256) % 3
class Slow(torch.utils.data.TensorDataset):
    def __getitem__(self, i):
        time.sleep(float(sys.argv[2]))
        return super().__getitem__(i)
loader = torch.utils.data.DataLoader(Slow(images, targets), 32, shuffle=True)
model = daedl.Classifier(daedl.networks.ConvNet(1, 3, image_size=8, channels=8), "daedl")
print("ready", flush=True)
daedl.fit(model, loader, (images, targets), max_epochs=6, accelerator="cpu", progress=False,
          checkpoint=sys.argv[1], resume=True)
model.save(sys.argv[1] + ".daedl")
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_killed_and_resumed_run_writes_the_same_file(tmp_path, monkeypatch):
    """After kill -9 during training, the resumed run writes the file of an uninterrupted run."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT]
    path, whole = tmp_path / "killed", tmp_path / "whole"
    # Slowed down, so that the kill hits training; data and random numbers do not change.
    process = subprocess.Popen([*command, str(path), "0.001"], stdout=subprocess.PIPE)
    process.stdout.readline()
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert path.exists()
    assert not path.with_name("killed.daedl").exists()
    for each in (path, whole):  # in this process, without imports
        monkeypatch.setattr(sys, "argv", ["", str(each), "0"])
        exec(SCRIPT, {})
    killed, whole = (each.with_suffix(".daedl") for each in (path, whole))
    assert killed.read_bytes() == whole.read_bytes()


def test_checkpoints_of_other_runs_and_damaged_ones_are_rejected(blobs, tmp_path):
    path = tmp_path / "run.ckpt"
    fit(model(), blobs, max_epochs=1, checkpoint=path)
    with pytest.raises(FileExistsError, match="pass resume=True"):
        fit(model(), blobs, max_epochs=1, checkpoint=path)
    with pytest.raises(ValueError, match=r"another run .*method"):
        fit(model("edl"), blobs, max_epochs=1, checkpoint=path, resume=True)
    with pytest.raises(ValueError, match=r"another run \(learning rate is 0.001 .*1e-05"):
        fit(model(), blobs, max_epochs=2, checkpoint=path, resume=True, learning_rate=1e-5)
    whole = path.read_bytes()
    # As earlier versions wrote them, without a digest.
    torch.save({**vars(Checkpoint.load(path)), "best_epoch": "last"}, path)
    with pytest.raises(ValueError, match=r"not a training checkpoint.*best_epoch"):
        fit(model(), blobs, max_epochs=1, checkpoint=path, resume=True)
    path.write_bytes(whole[:-2000] + bytes([whole[-2000] ^ 1]) + whole[-1999:])
    with pytest.raises(ValueError, match="digest"):
        fit(model(), blobs, max_epochs=1, checkpoint=path, resume=True)
    path.write_bytes(whole[:500])
    with pytest.raises(ValueError, match="not a training checkpoint"):
        fit(model(), blobs, max_epochs=1, checkpoint=path, resume=True)


@pytest.mark.slow
def test_density_of_two_processes_equals_that_of_one(blobs):
    """Trains in two processes, then refits the density in one process on the same network."""
    features, targets = blobs
    classifier = batch_norm_model()
    classifier.fit_post_hoc([blobs]).calibrate([blobs], daedl.MaxRejectionRate(0.5))
    history = fit(classifier, blobs, (features[:99], targets[:99]), max_epochs=2, devices=2)
    assert len(history.epochs) == 2
    # Training discards the thresholds, and all samples are counted.
    assert classifier.thresholds is None
    assert [each.samples for each in classifier.revisions] == [610]
    distributed = classifier.fitted
    classifier.fit_post_hoc([(features, targets)])
    single = classifier.fitted
    assert distributed.density.counts.tolist() == single.density.counts.tolist()
    for name in ("means", "scatter", "amount"):
        ours, theirs = getattr(distributed.density, name), getattr(single.density, name)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    outputs, _ = classifier.collect([(features, targets)])
    ours, theirs = (
        scorer.density.cast(torch.float64)(outputs.features) for scorer in (distributed, single)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    for end in ("low", "high"):
        ends = [getattr(scorer.normalizer, end) for scorer in (distributed, single)]
        tolerance = 1e-9 if single.density.dtype == torch.float64 else FLOAT32_AGREEMENT
        assert ends[0] == pytest.approx(ends[1], rel=tolerance)


def test_two_resumed_processes_equal_an_uninterrupted_run(blobs, tmp_path, two_processes):
    whole, resumed = model("edl+"), model("edl+")
    fit(whole, blobs, max_epochs=3, **two_processes)
    fit(model("edl+"), blobs, max_epochs=1, checkpoint=tmp_path / "c", **two_processes)
    fit(resumed, blobs, max_epochs=3, checkpoint=tmp_path / "c", resume=True, **two_processes)
    assert same(weights(whole), weights(resumed))


def test_methods_without_a_post_hoc_fit_need_no_extra_pass(blobs):
    classifier = model("edl")
    seen = []
    classifier.network.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    fit(classifier, blobs, max_epochs=1)
    assert sum(seen) == 610


def test_all_forms_of_data_give_the_same_weights(blobs):
    """Tuples and lists of tensors, NumPy arrays, a dataset."""
    ends = []
    for data in (blobs, list(blobs), tuple(x.numpy() for x in blobs), TensorDataset(*blobs)):
        classifier = model("edl+")
        fit(classifier, data, data, max_epochs=1)
        ends.append(weights(classifier))
    assert all(same(ends[0], end) for end in ends[1:])


def test_subclasses_of_dataloader_are_not_rebuilt(blobs):
    class Halving(DataLoader):
        def __iter__(self):
            return ((x / 2, y) for x, y in super().__iter__())

    classifier = model()
    fit(classifier, Halving(TensorDataset(*blobs), batch_size=610), max_epochs=1)
    outputs, labels = classifier.collect([(blobs[0] / 2, blobs[1])])
    expected = outputs.features[labels == 0].double().mean(0)
    torch.testing.assert_close(classifier.fitted.density.means[0], expected)


class Noisy(TensorDataset):
    """Draws a random number for every sample, as augmentation does."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.01 * torch.randn(4), y


def test_density_of_random_data_is_the_same_after_resuming(blobs, tmp_path):
    whole, resumed = model(), model()
    loader = DataLoader(Noisy(*blobs), batch_size=64, shuffle=True)
    fit(whole, loader, max_epochs=2, checkpoint=tmp_path / "c")
    fit(resumed, loader, max_epochs=2, checkpoint=tmp_path / "c", resume=True)
    assert same(weights(whole), weights(resumed))
    assert torch.equal(whole.fitted.density.scatter, resumed.fitted.density.scatter)


def test_failed_fit_changes_nothing(blobs):
    features, targets = blobs
    classifier = model()
    fit(classifier, blobs, max_epochs=1)
    before = classifier.predict(features).log_alpha
    with pytest.raises(ValueError, match="from 5 to 7"):
        fit(classifier, (features, targets + 5), max_epochs=1)
    assert torch.equal(classifier.predict(features).log_alpha, before)
    assert not classifier.training


def test_small_classes_dead_features_and_many_features():
    """Ten classes of 20 samples, one of 3, in 32 features of which one is constant."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.cat([torch.arange(9).repeat_interleave(20), torch.full((3,), 9)])
    images = torch.randn(10, 12, generator=generator)[targets] * 2
    images = images + 0.3 * torch.randn(183, 12, generator=generator)
    torch.manual_seed(0)
    network = MLP(12, 10, hidden=(32,))
    with torch.no_grad():  # a dead unit
        network.extractor.dense1[0].weight[5] = 0
        network.extractor.dense1[0].bias[5] = -1
    classifier = daedl.Classifier(network)
    history = fit(
        classifier, (images, targets), (images, targets), max_epochs=3, learning_rate=1e-2
    )
    shrunk = classifier.fitted.density.shrunk
    assert (classifier.collect([(images, targets)])[0].features[:, 5] == 0).all()
    assert (shrunk.amount > 0).all()
    assert torch.isfinite(shrunk.condition).all()
    assert "shrinkage" in str(history.density_effect)
    assert torch.isfinite(classifier.predict(images).log_alpha).all()


def test_training_under_no_grad_works(blobs):
    with torch.no_grad():
        assert len(fit(model(), blobs, max_epochs=1).epochs) == 1


def test_frozen_batch_norm_stays_frozen(blobs):
    classifier = batch_norm_model()
    fit(classifier, blobs, max_epochs=1)
    classifier.network.train()
    norm = classifier.network.module[1].eval()
    before = norm.running_mean.clone()
    classifier.predict(blobs[0])
    assert not norm.training
    assert classifier.network.module[0].training
    assert torch.equal(norm.running_mean, before)


class TestInvalidInput:
    def test_batches(self, blobs):
        features, targets = blobs
        with pytest.raises(TypeError, match="Tensor, Tensor, Tensor, Tensor"):
            fit(model(), [(features, targets, targets, targets)], max_epochs=1)
        with pytest.raises(TypeError, match="batch 0 of the validation data"):
            fit(model(), blobs, [(features, targets.tolist())], max_epochs=1)
        with pytest.raises(ValueError, match="validation data have no batch"):
            fit(model(), blobs, [], max_epochs=1)
        with pytest.raises(ValueError, match="labels of batch 0 of the validation data"):
            fit(model(), blobs, (features, targets + 1), max_epochs=1)

    def test_checkpoints(self, blobs, tmp_path):
        with pytest.raises(ValueError, match="without a checkpoint"):
            fit(model(), blobs, max_epochs=1, resume=True)
        with pytest.raises(OSError, match="missing"):
            fit(model(), blobs, max_epochs=1, checkpoint=tmp_path / "missing" / "c")
        loader = DataLoader(TensorDataset(*blobs), 64, num_workers=1, persistent_workers=True)
        with pytest.raises(ValueError, match="persistent_workers"):
            fit(model(), loader, max_epochs=1, checkpoint=tmp_path / "c")

    def test_infinite_inputs(self, blobs):
        features, targets = blobs
        features = features.clone()
        features[17, 2] = float("inf")
        with pytest.raises(ValueError, match=r"inputs.*NaN or infinite"):
            fit(model(), [(features, targets)], max_epochs=1)

    def test_nan_in_the_network(self, blobs):
        classifier = model("softmax")
        with torch.no_grad():
            classifier.network.classifier.logits.bias[1] = float("nan")
        with pytest.raises(ValueError, match=r"logits of epoch 0, batch 0.*NaN"):
            fit(classifier, blobs, max_epochs=1)

    def test_labels(self, blobs):
        features, targets = blobs
        with pytest.raises(ValueError, match=r"training data range from 1 to 3.*3 classes"):
            fit(model(), (features, targets + 1), max_epochs=1)
        with pytest.raises(TypeError, match=r"training data are torch.float32"):
            fit(model(), (features, targets.float()), max_epochs=1)
        with pytest.raises(ValueError, match="610, 600"):
            fit(model(), (features, targets[:600]), max_epochs=1)

    @pytest.mark.parametrize("method", ["softmax", "daedl"])
    def test_missing_class(self, blobs, method, tmp_path):
        features, targets = blobs
        some = targets < 2
        with pytest.raises(ValueError, match=r"none of 550 .*class 2"):
            fit(
                model(method),
                (features[some], targets[some]),
                max_epochs=3,
                checkpoint=tmp_path / "c",
            )
        assert not list(tmp_path.iterdir())

    def test_empty_data(self, blobs):
        with pytest.raises(ValueError, match="no batch"):
            fit(model(), [], max_epochs=1)
        with pytest.raises(ValueError, match="dataset is empty"):
            fit(model(), (blobs[0][:0], blobs[1][:0]), max_epochs=1)

    def test_shapes_and_types(self, blobs):
        features, targets = blobs
        with pytest.raises(ValueError, match=r"\(610, 3\).*\(batch, 4\)"):
            fit(model(), [(features[:, :3], targets)], max_epochs=1)

    def test_error_of_an_infinite_loss_names_the_tensor(self, blobs):
        class Bad(nn.Module):
            def forward(self, x):
                return x[:, :3] * torch.nan

        net = daedl.networks.FeatureModule(nn.Sequential(nn.Linear(4, 4), Bad()), "0", (4,))
        with pytest.raises(ValueError, match="logits of epoch 0"):
            fit(daedl.Classifier(net, "softmax"), blobs, max_epochs=1)


class Viewing(nn.Module):
    """A module with `view`, which requires contiguous channels-first tensors."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)
        self.linear = nn.Linear(4 * 8 * 8, 2)

    def forward(self, images):
        return self.linear(self.convolution(images).relu().view(len(images), -1))


def test_only_library_networks_train_with_channels_last(tmp_path):
    images, targets = torch.rand(64, 3, 8, 8), torch.arange(64) % 2
    own = daedl.Classifier(ConvNet(3, 2, image_size=8, channels=4), "softmax")
    wrapped = daedl.networks.FeatureModule(Viewing(), "convolution", (3, 8, 8))
    for classifier, kernel, expected in (
        (own, own.network.extractor.conv1[0], torch.channels_last),
        (daedl.Classifier(wrapped, "softmax"), wrapped.module.convolution, torch.contiguous_format),
    ):
        seen = []
        hook = kernel.register_forward_hook(
            lambda module, *_, seen=seen, expected=expected: seen.append(
                module.weight.is_contiguous(memory_format=expected)
            )
        )
        fit(classifier, (images, targets), max_epochs=1)
        hook.remove()
        assert seen
        assert all(seen)
        assert kernel.weight.is_contiguous()
    own.save(tmp_path / "own.daedl")
    loaded = daedl.Classifier.load(tmp_path / "own.daedl")
    assert torch.equal(loaded.predict(images).probs, own.predict(images).probs)
