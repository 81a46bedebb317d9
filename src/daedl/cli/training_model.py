"""The recipe and the classifier of `daedl train`, and an estimate of the time."""

from dataclasses import replace
from typing import Any, cast

import torch

from daedl import networks
from daedl.backbones import Pretrained
from daedl.classifier import Classifier
from daedl.data import Batches, ImageSet, Preprocess, TextSet
from daedl.methods import Method
from daedl.training import Recipe, embedding_recipe, estimated_seconds, image_recipe


def choose_recipe(network: str, training: ImageSet | TextSet, **given: Any) -> Recipe:
    """Returns the recipe for the data, or the paper's for a named network, with the options `given`."""
    if isinstance(training, TextSet):
        recipe = embedding_recipe()
    elif network:
        recipe = Recipe(network)
    else:
        channels, size, _ = training.shape
        recipe = image_recipe(channels, size, len(training))
    return replace(recipe, **{key: value for key, value in given.items() if value is not None})


def estimate(model: Classifier, batches: Batches, epochs: int) -> str:
    """Numbers of epochs and batches, and the estimated time."""
    seconds = estimated_seconds(model, batches, epochs)
    duration = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    return f"{epochs} epochs of {len(batches)} batches, about {duration}"


def build_model(
    recipe: Recipe,
    method: Method,
    images: ImageSet | TextSet,
    seed: int,
    pretrained: Pretrained | None,
) -> Classifier:
    """Builds the classifier, with initial weights drawn from `seed`."""
    names = images.names
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if pretrained is not None:
            return Classifier.from_backbone(pretrained, class_names=names, method=method)
        pictures = cast(ImageSet, images)
        channels, size, _ = pictures.shape
        network = networks.build(
            recipe.network,
            in_channels=channels,
            num_classes=pictures.num_classes,
            image_size=size,
            **recipe.arguments,
        )
        if not recipe.one_cycle:
            return Classifier(network, method, names)
        mean, std = pictures.mean_and_std()
        # A channel may be constant.
        std = tuple(max(each, 1 / 255) for each in std)
        return Classifier(network, method, names, Preprocess(channels, size, mean=mean, std=std))
