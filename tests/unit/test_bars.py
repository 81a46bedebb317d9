"""Progress of training where the output is no terminal."""

import re

import pytest
import torch

import daedl
from daedl.networks import MLP
from daedl.training import bars


def test_one_line_per_epoch_with_the_remaining_time(blobs, capsys):
    model = daedl.Classifier(MLP(4, 3), "edl")
    daedl.fit(model, blobs, blobs, max_epochs=3, accelerator="cpu")
    lines = capsys.readouterr().out.splitlines()
    results = r"loss [\d.]+, validation [\d.]+, accuracy [\d.]+%"
    assert len(lines) == 3
    for number, line in enumerate(lines[:2], 1):
        assert re.fullmatch(rf"epoch {number} of 3: {results}, at most \d+ s left", line)
    assert re.fullmatch(rf"epoch 3 of 3: {results}", lines[2])


def test_the_fit_of_the_density_is_announced(blobs, capsys):
    model = daedl.Classifier(MLP(4, 3), "daedl")
    daedl.fit(model, blobs, max_epochs=1, accelerator="cpu")
    assert capsys.readouterr().out.splitlines()[1:] == ["fitting the density"]


def test_nothing_is_printed_without_progress(blobs, capsys):
    model = daedl.Classifier(MLP(4, 3), "edl")
    daedl.fit(model, blobs, max_epochs=1, accelerator="cpu", progress=False)
    assert capsys.readouterr().out == ""


@pytest.fixture
def clock(monkeypatch):
    """A clock in seconds that a test advances."""

    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(bars, "time", clock)
    return clock


def test_long_epochs_print_lines_within(clock, capsys):
    batches = [(torch.zeros(1), torch.zeros(1))] * 5
    with bars.show_bars(True, 4, 1) as shown:
        for _ in shown.batches(batches, 1):
            clock.now += 40
        shown.epoch_done("loss 1")
    assert capsys.readouterr().out.splitlines() == [
        "epoch 2 of 4: batch 2 of 5, 2 min left in this epoch",
        "epoch 2 of 4: batch 4 of 5, 40 s left in this epoch",
        # Two more epochs of 200 s each; the completed one does not count.
        "epoch 2 of 4: loss 1, at most 7 min left",
    ]


def test_batches_of_unknown_number(clock, capsys):
    class Endless:
        def __iter__(self):
            yield from [None] * 2

    with bars.show_bars(True, 2, 0) as shown:
        for _ in shown.batches(Endless(), 0):
            clock.now += 61
    assert capsys.readouterr().out.splitlines() == [
        "epoch 1 of 2: batch 1",
        "epoch 1 of 2: batch 2",
    ]


def test_terminals_show_bars(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with bars.show_bars(True, 2, 0) as shown:
        assert len(list(shown.batches([(1, 2)] * 3, 0))) == 3
        shown.epoch_done("loss 1.5")
    printed = capsys.readouterr().out
    assert "3/3" in printed
    assert "loss 1.5" in printed
