"""Settings for training on images from scratch, selected by their size and number, and on embeddings."""

import copy
import math
import time
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.optim import AdamW

from daedl.classifier import Classifier
from daedl.data.augment import Chain, Crop, Flip
from daedl.data.batches import Augmentation, Batches
from daedl.networks import Backbone, lay_out
from daedl.training.optimizers import OneCycle

# Image size of the default widths of WhitenNet, and the smallest for its three blocks.
SIZE, SMALLEST_SIZE = 32, 9
WIDTHS = (64, 128, 128)
# Images per training, and bounds on the number of epochs (chosen): 36 epochs of 1,920 images.
IMAGES, MIN_EPOCHS, MAX_EPOCHS = 70_000, 10, 40
# Chosen, not compared with others: EDL+ on 1,920 photographs of four classes has 89.6% accuracy on 480
# held-out ones after 24 epochs, in 95 CPU seconds with bf16-mixed precision (one seed).
BATCH_SIZE, LEARNING_RATE, DECAY = 64, 3e-3, 0.05
CLIP = 1.0  # largest gradient norm, as selected on CIFAR-10 (docs/experiments.md)
# Of heads on embeddings, with the optimiser and the schedule of `daedl.fit`: AdamW with one cycle and a peak
# of 0.003 was 0.5 points less accurate on 112 known intents of CLINC150 (one split).
EMBEDDING_EPOCHS = 20
# Fine-tuning starts from a trained head, so it needs few epochs at a lower rate (chosen; for texts so that
# 15,000 queries take less than five minutes on two cores).
FINETUNE_EPOCHS, TEXT_EPOCHS, FINETUNE_RATE = 5, 3, 0.1
CROP = 8  # images are moved by at most 1 / CROP of their size, as usual on CIFAR: 4 of 32 pixels
TIMED_STEPS = 3


@dataclass(frozen=True)
class Recipe:
    """A network and how to train it.

    Attributes:
        network: name in `daedl.networks.NETWORKS`.
        arguments: arguments of the network, besides channels, classes and image size.
        max_epochs, batch_size: as for `daedl.fit`.
        learning_rate: largest rate of the cycle; without `one_cycle` the initial rate.
        one_cycle: AdamW with a one-cycle schedule instead of the paper's Adam with an exponential one.
        augment: random changes of training images.
    """

    network: str = "ConvNet"
    max_epochs: int = 50
    batch_size: int = 64
    learning_rate: float = 1e-3
    one_cycle: bool = False
    augment: Augmentation | None = None
    arguments: dict[str, Any] = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """Returns arguments of `daedl.fit`."""
        options: dict[str, Any] = {
            "max_epochs": self.max_epochs,
            "learning_rate": self.learning_rate,
        }
        if self.one_cycle:
            # Without early stopping: the loss falls most in the last epochs of a cycle.
            options |= {
                # Invariant to the scale of the loss, which some methods sum over a batch.
                "optimizer": partial(AdamW, lr=self.learning_rate, weight_decay=DECAY),
                "schedule": OneCycle(),
                "gradient_clip": CLIP,
                "patience": self.max_epochs,
            }
        return options


def image_recipe(channels: int, size: int, number: int) -> Recipe:
    """Returns the recipe for `number` training images with `channels` of `size` x `size` pixels.

    WhitenNet, with one more block of half the width for every doubling of the size above 32: an image of 224
    pixels then takes ten times as long as one of 32, not fifty. Colour images are flipped and moved, grey
    ones, which may be characters, only moved. Images below 9 pixels get the paper's ConvNet and training.
    """
    if size < SMALLEST_SIZE:
        return Recipe()
    doublings = max(round(math.log2(size / SIZE)), 0)
    first = [max(WIDTHS[0] >> doubling, 16) for doubling in range(doublings, 0, -1)]
    crop = Crop(max(size // CROP, 1), mode="reflect")
    return Recipe(
        network="WhitenNet",
        max_epochs=min(max(IMAGES // number, MIN_EPOCHS), MAX_EPOCHS),
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
        one_cycle=True,
        augment=Chain((Flip(), crop)) if channels == 3 else crop,
        arguments={"hidden": [*first, *WIDTHS]},
    )


def finetuning(recipe: Recipe, network: Backbone) -> Recipe:
    """Returns the recipe for training a head together with the last layers of its backbone.

    Call `network.freeze(network.finetuned)` before, after the head was trained with `recipe`.
    """
    epochs = FINETUNE_EPOCHS if network.input_shape else TEXT_EPOCHS
    return replace(
        recipe,
        learning_rate=recipe.learning_rate * FINETUNE_RATE,
        max_epochs=min(recipe.max_epochs, epochs),
    )


def embedding_recipe() -> Recipe:
    """Returns the recipe for a head on embeddings, such as `Classifier.for_embeddings` builds."""
    return Recipe(network="FeatureHead", max_epochs=EMBEDDING_EPOCHS)


def estimated_seconds(model: Classifier, train: Batches, epochs: int) -> float:
    """Returns the estimated time of training without validation, from a few steps of a copy."""
    trial = copy.deepcopy(model).train()
    lay_out(trial.network)
    seconds = []
    with torch.random.fork_rng(devices=[]):
        for inputs, targets in islice(train, TIMED_STEPS):
            started = time.perf_counter()
            loss = trial.method.training_loss(trial.network, trial.prepare(inputs), targets, 0)
            torch.autograd.backward(loss)
            seconds.append(time.perf_counter() - started)
    # The first step also allocates memory.
    return min(seconds) * len(train) * epochs
