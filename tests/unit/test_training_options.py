"""Callbacks, loggers and weights of `fit`."""

import csv

import pytest
import torch
from lightning_fabric.loggers import CSVLogger

import daedl
from daedl.networks import MLP
from daedl.training import Callback


def model(method="softmax"):
    torch.manual_seed(0)
    return daedl.Classifier(MLP(4, 3, hidden=(16,)), method)


class Recorder(Callback):
    def __init__(self):
        self.calls = []

    def on_fit_start(self, model):
        self.calls.append(("start", model.network.num_classes))

    def on_epoch_end(self, metrics):
        self.calls.append(("epoch", metrics))

    def on_fit_end(self, history):
        self.calls.append(("end", len(history.epochs)))


def test_callbacks_are_called_for_every_epoch(blobs):
    recorder = Recorder()
    history = daedl.fit(model(), blobs, blobs, max_epochs=3, callbacks=[recorder], progress=False)
    assert [name for name, _ in recorder.calls] == ["start", "epoch", "epoch", "epoch", "end"]
    for number, (_, metrics) in enumerate(recorder.calls[1:-1]):
        epoch = history.epochs[number]
        assert metrics["epoch"] == number
        assert metrics["val_accuracy"] == epoch.val_accuracy
        assert metrics["train_loss"] == epoch.train_loss


def test_callbacks_need_no_base_class(blobs):
    class Counter:
        epochs = 0

        def on_epoch_end(self, metrics):
            assert "val_loss" not in metrics  # without validation data
            self.epochs += 1

    counter = Counter()
    daedl.fit(model(), blobs, max_epochs=2, callbacks=[counter], progress=False)
    assert counter.epochs == 2
    with pytest.raises(TypeError, match="on_epoch_end"):
        daedl.fit(model(), blobs, max_epochs=1, callbacks=[print], progress=False)


def test_epochs_are_numbered_across_phases(blobs):
    recorder = Recorder()
    network = model("natpn")
    daedl.fit(network, blobs, blobs, max_epochs=2, callbacks=[recorder], progress=False)
    epochs = [metrics["epoch"] for name, metrics in recorder.calls if name == "epoch"]
    assert epochs == list(range(len(epochs)))
    assert len({metrics["phase"] for name, metrics in recorder.calls if name == "epoch"}) == 3


def test_fabric_loggers_receive_every_epoch(blobs, tmp_path):
    history = daedl.fit(
        model(), blobs, blobs, max_epochs=3, loggers=CSVLogger(tmp_path), progress=False
    )
    (path,) = tmp_path.rglob("metrics.csv")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [0, 1, 2]
    losses = [float(row["val_loss"]) for row in rows]
    assert losses == pytest.approx([epoch.val_loss for epoch in history.epochs])


@pytest.mark.parametrize("method", ["softmax", "daedl", "ensemble"])
def test_zero_weights_equal_removed_samples(blobs, method):
    """The weighted loss is the loss of the kept samples."""
    features, targets = blobs
    kept = torch.rand(len(targets), generator=torch.Generator().manual_seed(1)) < 0.7
    classifier = model(method)
    arguments = features, targets, 0
    torch.manual_seed(3)
    weighted = classifier.method.training_loss(classifier.network, *arguments, weights=kept.float())
    plain = classifier.method.training_loss(classifier.network, features[kept], targets[kept], 0)
    scale = 1.0 if classifier.method.reduction == "sum" else float(kept.float().mean())
    torch.testing.assert_close(weighted, scale * plain)


def test_class_weights_increase_recall(blobs):
    def recall(weights):
        classifier = model()
        daedl.fit(classifier, blobs, max_epochs=15, class_weights=weights, progress=False)
        rare = blobs[1] == 2
        return float((classifier.predict(blobs[0][rare]).labels == 2).float().mean())

    plain, heavy = recall(None), recall([1.0, 1.0, 50.0])
    assert heavy > plain
    assert heavy > 0.95
    assert recall("balanced") >= plain


def test_balanced_weights_are_inverse_frequencies(blobs):
    from daedl.training.fit import _class_weights

    counts = torch.bincount(blobs[1]).double()
    found = _class_weights("balanced", model(), [blobs]).double()
    torch.testing.assert_close(found, 610 / (3 * counts))


def test_sample_weights_equal_class_weights(blobs):
    features, targets = blobs
    weights = torch.where(targets == 2, 50.0, 1.0)
    by_sample, by_class = model(), model()
    daedl.fit(by_sample, (features, targets, weights), max_epochs=3, progress=False)
    daedl.fit(by_class, blobs, max_epochs=3, class_weights=[1, 1, 50], progress=False)
    torch.testing.assert_close(by_sample.predict(features).probs, by_class.predict(features).probs)


@pytest.mark.parametrize(
    ("weights", "keyword"),
    [
        ([1.0, 1.0], r"shape \(2,\)"),
        ([1.0, -1.0, 1.0], "from -1 to 1"),
        ([0.0, 0.0, 0.0], "positive"),
        ([1.0, float("nan"), 1.0], "NaN"),
        ("even", "'balanced'"),
    ],
)
def test_class_weights_are_validated(blobs, weights, keyword):
    with pytest.raises(ValueError, match=keyword):
        daedl.fit(model(), blobs, max_epochs=1, class_weights=weights, progress=False)


def test_sample_weights_are_validated(blobs):
    with pytest.raises(ValueError, match="weights of the training data"):
        daedl.fit(model(), (*blobs, -torch.ones(610)), max_epochs=1, progress=False)
