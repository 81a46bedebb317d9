"""Estimates of training times from a timed step."""

import pytest
from msgspec.structs import replace

from daedl_bench import estimate
from daedl_bench.spec import catalogue

SHIPPED = catalogue()
SMALL = replace(
    SHIPPED.protocols["mnist-paper"],
    split=(240, 60),
    network={"name": "ConvNet", "in_channels": 1, "num_classes": 3, "image_size": 8, "channels": 4},
    training={"batch_size": 32, "max_epochs": 2},
)


def test_an_epoch_is_its_steps_and_a_third_as_much_for_validation(monkeypatch):
    monkeypatch.setattr(estimate, "_step", lambda *_: 3.0)
    # 240 / 32 steps of training and 60 / 32 of validation.
    expected = 240 / 32 * 3 + 60 / 32 * 1
    assert estimate.epoch_seconds(SMALL, SHIPPED.method("edl")) == pytest.approx(expected)


def test_a_step_is_timed():
    assert 0 < estimate.epoch_seconds(SMALL, SHIPPED.method("daedl").training_method()) < 60


def test_methods_that_share_a_training_count_once():
    ablation = SHIPPED.experiment("ablation-mnist")
    assert len(ablation.methods) == 5
    of_each = ablation.protocol().training["max_epochs"]
    assert estimate.epochs(SHIPPED, ablation, ablation.protocol()) == 3 * of_each
    # An ensemble of five shares the first of its networks with softmax, which has seed 0 too.
    several = replace(ablation, methods=("softmax", "energy", "ensemble"))
    assert estimate.epochs(SHIPPED, several, several.protocol()) == 5 * of_each


def test_every_phase_counts():
    """NatPN warms up for 3 epochs and fine-tunes for as many as it is trained."""
    once = replace(SHIPPED.experiment("ablation-mnist"), methods=("natpn",))
    of_each = once.protocol().training["max_epochs"]
    assert estimate.epochs(SHIPPED, once, once.protocol()) == 3 + of_each + of_each


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.4, "7 s"), (130, "2 min"), (5940, "99 min"), (12000, "3 h 20 min")]
)
def test_durations_are_formatted(seconds, text):
    assert estimate.duration(seconds) == text


def test_a_budget_determines_the_number_of_epochs(monkeypatch):
    monkeypatch.setattr(estimate, "_step", lambda *_: 1.0)
    seconds = estimate.epoch_seconds(SMALL, SHIPPED.method("edl"))
    fitting = estimate.within(SMALL, SHIPPED.method("edl"), 3.5 * seconds / 60)
    assert fitting.training == {**SMALL.training, "max_epochs": 3}
    assert fitting.name == "mnist-paper-3-epochs"
    with pytest.raises(ValueError, match="budget"):
        estimate.within(SMALL, SHIPPED.method("edl"), 0.5 * seconds / 60)
