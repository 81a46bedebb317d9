"""Recipes, optimisers, schedules, and the warning about accuracy at chance level."""

import warnings

import pytest
import torch
from torch import nn

import daedl
from daedl.data.augment import Chain, Crop
from daedl.networks import MLP, WhitenNet
from daedl.training import OneCycle, Recipe, estimated_seconds, image_recipe, sgd
from daedl.training.chance import chance_level, confusion_margins

QUIET = {"accelerator": "cpu", "progress": False}


@pytest.mark.parametrize(("size", "blocks"), [(9, 3), (32, 3), (64, 4), (224, 6)])
def test_recipes_build_a_network_for_any_size(size, blocks):
    recipe = image_recipe(3, size, 2000)
    assert len(recipe.arguments["hidden"]) == blocks
    network = WhitenNet(3, 4, size, **recipe.arguments)
    assert network(torch.rand(2, 3, size, size)).logits.shape == (2, 4)


def test_recipes_flip_colour_images_only_and_adapt_epochs():
    assert isinstance(image_recipe(3, 32, 2000).augment, Chain)
    assert isinstance(image_recipe(1, 28, 2000).augment, Crop)
    assert image_recipe(3, 32, 100).max_epochs == 40
    assert image_recipe(3, 32, 10**6).max_epochs == 10
    assert image_recipe(3, 8, 2000) == Recipe()


def test_estimated_time_leaves_the_model_unchanged_and_scales_with_epochs():
    model = daedl.Classifier(WhitenNet(1, 3, 12, hidden=(4, 4)), "softmax")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = torch.randint(0, 256, (64, 1, 12, 12), dtype=torch.uint8)
    data = daedl.ImageSet(images, torch.arange(64) % 3, "noise", "train")
    seconds = estimated_seconds(model, data.batches(16), 1000)
    assert seconds > 20 * estimated_seconds(model, data.batches(16), 1) > 0
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_sgd_groups_parameters_by_dimensions():
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    groups = sgd(0.4, weight_decay=0.1, factors={2: 0.5})(layers.parameters()).param_groups
    assert [(g["lr"], g["weight_decay"], len(g["params"])) for g in groups] == [
        (0.4, 0.1, 1),
        (0.2, 0.1, 1),
        (0.4, 0.0, 4),
    ]
    assert all(g["nesterov"] for g in groups)


def test_one_cycle_follows_its_shares():
    optimizer = sgd(2.0)([nn.Parameter(torch.zeros(3))])
    schedule = OneCycle(rise=0.5, start=0.25, end=0.01).build(optimizer, 9)
    rates = []
    for _ in range(9):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(rates) < 9:
            schedule.step()
    assert rates[0] == pytest.approx(0.5)
    assert max(rates) == pytest.approx(2.0, rel=0.2)
    assert rates[-1] == pytest.approx(0.02)


@pytest.mark.parametrize("steps", range(1, 9))
def test_one_cycle_has_a_rate_for_every_number_of_steps(steps):
    optimizer = sgd(2.0)([nn.Parameter(torch.zeros(3))])
    schedule = OneCycle().build(optimizer, steps)
    for _ in range(steps - 1):
        optimizer.step()
        schedule.step()
        assert 0 < optimizer.param_groups[0]["lr"] <= 2


def test_fit_takes_sgd_and_one_cycle(blobs):
    model = daedl.Classifier(MLP(4, 3, (16,)), "softmax", preprocess=None)
    options = {"max_epochs": 5, "optimizer": sgd(0.1), "schedule": OneCycle(), **QUIET}
    history = daedl.fit(model, blobs, blobs, **options)
    assert history.epochs[-1].val_accuracy > 0.8
    assert history.epochs[0].learning_rate == pytest.approx(0.01)


class TestChanceLevel:
    def test_is_the_majority_share_for_constant_predictions(self):
        targets = torch.tensor([0] * 900 + [1] * 100)
        level = chance_level(confusion_margins(torch.zeros(1000).long(), targets, 2))
        assert 0.9 < level < 0.92

    @pytest.mark.parametrize("classes", [2, 10, 1000])
    def test_is_above_the_accuracy_of_random_predictions(self, classes):
        generator = torch.Generator().manual_seed(0)
        predicted, targets = torch.randint(classes, (2, 5000), generator=generator)
        accuracy = float((predicted == targets).double().mean())
        level = chance_level(confusion_margins(predicted, targets, classes))
        assert accuracy < level < 1 / classes + 0.06

    def test_held_out_samples_of_one_class_show_no_chance_level(self, blobs):
        inputs, labels = blobs
        held_out = inputs[labels == 1], labels[labels == 1]
        model = daedl.Classifier(MLP(4, 3, (16,)), "softmax", preprocess=None)
        with warnings.catch_warnings():
            warnings.simplefilter("error", daedl.ChanceWarning)
            history = daedl.fit(model, blobs, held_out, max_epochs=1, **QUIET)
        assert history.epochs[0].val_accuracy is not None
        assert history.epochs[0].chance_level is None

    def test_fit_warns_if_labels_are_random(self):
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(600, 4, generator=generator)
        labels = torch.randint(150, (600,), generator=generator)
        labels[:150] = torch.arange(150)
        model = daedl.Classifier(MLP(4, 150, (8,)), "softmax", preprocess=None)
        with pytest.warns(daedl.ChanceWarning, match="not learned"):
            daedl.fit(model, (inputs, labels), (inputs, labels.flip(0)), max_epochs=1, **QUIET)

    def test_fit_does_not_warn_after_learning(self, blobs):
        model = daedl.Classifier(MLP(4, 3, (16,)), "softmax", preprocess=None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            daedl.fit(model, blobs, blobs, max_epochs=5, learning_rate=0.01, **QUIET)
