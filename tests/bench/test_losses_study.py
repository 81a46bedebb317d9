"""The study of losses: rows that are kept, and their table."""

import pytest
import torch

from daedl.data import ImageSet
from daedl_bench import results
from daedl_bench.spec import catalogue
from daedl_bench.studies import losses
from daedl_bench.studies.losses import FILE, PROBLEMS, SCALED
from daedl_bench.studies.panel import tables
from daedl_bench.summary import Results


def test_every_loss_is_measured_once(tmp_path, monkeypatch):
    few = PROBLEMS["moons"]._replace(load=lambda seed, _: tables.wine(seed))
    monkeypatch.setattr(losses, "PROBLEMS", {**PROBLEMS, "moons": few})
    for _ in range(2):
        losses.main("moons", "0", None, tmp_path)
    rows = results.load(tmp_path / FILE)
    titles = list(losses.losses(2))
    assert [row.method for row in rows] == titles
    assert all(row.value is not None and row.value > 0.8 for row in rows)
    lines = losses.table(Results.load(tmp_path, catalogue())).splitlines()
    assert len(lines) == 2 + len(titles)
    assert lines[2].endswith("(1) | – | – | – | – |")  # the other problems were not measured


def test_photos_are_classified_after_training_from_scratch():
    labels = torch.arange(128) % 2  # dark and bright images
    noise = torch.randint(55, (128, 3, 9, 9), generator=torch.Generator().manual_seed(0))
    pixels = (noise + 200 * labels.view(-1, 1, 1, 1)).byte()
    images = ImageSet(pixels, labels, "noise", "train")
    chosen = losses.losses(2)
    assert set(losses.OF_PHOTOS) <= set(chosen)
    method = chosen[losses.FIRST_CROSS_ENTROPY]
    assert losses.accuracy_on_photos(images, images, method, seed=0) == 1


def test_weights_of_the_divergence():
    few, many = (
        [each.kl_weight for each in losses.losses(classes).values() if hasattr(each, "kl_weight")]
        for classes in (2, 1000)
    )
    # Constant, divided by C, divided by C squared above ten classes.
    assert few[:3] == pytest.approx([0.05, 0.25, 0.05])
    assert many[:3] == pytest.approx([500, 5, 0.05])


def test_logits_have_a_learned_scale():
    network = losses.scaled(True, 4, 3)
    assert network.classifier[-1].log_factor.requires_grad
    assert SCALED in losses.losses(3)
    assert PROBLEMS["clinc150"].embeddings
