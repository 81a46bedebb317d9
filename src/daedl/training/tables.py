"""Number of epochs, batch size, gradient clipping, weights and held-out samples for training on tables."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

# The validation loss of fewer held-out samples is too noisy for early stopping (chosen).
MIN_HELD_OUT = 10
# Samples per step: 32 for up to 6,400 samples, then in proportion: an epoch has 100 to 200 steps.
# It determines the time with a small network. At most 512: larger batches are hardly faster (chosen).
SMALLEST_BATCH, LARGEST_BATCH, STEPS_PER_EPOCH = 32, 512, 100
# Samples seen in training, and bounds on the number of epochs (chosen).
SEEN, MIN_EPOCHS, MAX_EPOCHS = 500_000, 20, 50
# Largest gradient norm. The evidence e^z of an outlier can exceed that of all other samples, and its
# gradient would then dominate training (chosen).
GRADIENT_CLIP = 1.0


def table_batch_size(samples: int) -> int:
    """Returns the largest power of two with at least `STEPS_PER_EPOCH` steps, within the bounds."""
    power: int = 1 << (max(samples // STEPS_PER_EPOCH, 1).bit_length() - 1)
    return min(max(power, SMALLEST_BATCH), LARGEST_BATCH)


def table_epochs(samples: int) -> int:
    """Returns the number of epochs in which training sees `SEEN` samples, within the bounds."""
    return min(max(SEEN // samples, MIN_EPOCHS), MAX_EPOCHS)


def drop_unweighted(
    samples: NDArray[Any],
    labels: NDArray[Any],
    targets: NDArray[np.int64],
    weights: NDArray[np.float64],
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64], NDArray[np.float64]]:
    """Drops samples of weight 0 and scales the other weights to a mean of 1."""
    used = weights > 0
    if missing := sorted(set(targets.tolist()) - set(targets[used].tolist())):
        names = ", ".join(str(labels[targets == number][0]) for number in missing)
        raise ValueError(
            f"all samples of {names} have weight 0; expected a positive weight in every class: remove the "
            "samples of this class"
        )
    return samples[used], labels[used], targets[used], weights[used] / weights[used].mean()


def select_held_out(
    targets: NDArray[np.int64], fraction: float, random: np.random.RandomState
) -> NDArray[np.bool_]:
    """Returns a mask (N,) of held-out samples, stratified; all false if fewer than MIN_HELD_OUT.

    Counts are rounded down, which leaves at least one training sample per class.
    """
    held_out = np.zeros(len(targets), dtype=bool)
    for c in np.unique(targets):
        members = random.permutation(np.flatnonzero(targets == c))
        held_out[members[: int(fraction * len(members))]] = True
    return held_out if held_out.sum() >= MIN_HELD_OUT else np.zeros_like(held_out)
