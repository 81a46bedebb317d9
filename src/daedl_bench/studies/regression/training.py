"""Training with hyperparameters that a validation part of the training data selects."""

from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch.optim import AdamW

import daedl
from daedl.methods import regression
from daedl.methods.regression import DAER, Mean, RegressionMethod
from daedl.methods.regression.daer import FittedDensity
from daedl.networks import MLP
from daedl.regressor import Regressor
from daedl_bench.studies.regression.data import Part, validation

# Batches of at least 32 samples and at most 40 steps per epoch.
SMALLEST_BATCH, STEPS_PER_EPOCH = 32, 40
GRADIENT_CLIP = 5.0  # of this recipe, under which the rows are measured


class Candidate(NamedTuple):
    """Number of training steps, and the weight decay of AdamW."""

    steps: int
    weight_decay: float


# A short training with strong decay, and a long one (chosen on validation parts of the first two splits).
CANDIDATES = (Candidate(1500, 0.1), Candidate(4000, 1e-4))
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Trained:
    """A regressor that was trained on the whole training part.

    Attributes:
        chosen: the candidate with the smallest validation NLL.
        method: with what was fitted to the validation part as settings.
    """

    regressor: Regressor
    chosen: Candidate
    method: RegressionMethod


def train_one(
    train: Part, method: RegressionMethod, candidate: Candidate, hidden: int, seed: int
) -> Regressor:
    """Trains a network with one hidden layer on all samples, for the candidate's number of steps."""
    torch.manual_seed(seed)
    model = Regressor(MLP(train.features.shape[1], 1, (hidden,)), method)
    batch = max(SMALLEST_BATCH, len(train) // STEPS_PER_EPOCH)
    epochs = max(1, candidate.steps // -(-len(train) // batch))
    daedl.fit(
        model,
        train.data,
        max_epochs=epochs,
        batch_size=batch,
        learning_rate=LEARNING_RATE,
        schedule="one-cycle",
        optimizer=partial(AdamW, lr=LEARNING_RATE, weight_decay=candidate.weight_decay, fused=True),
        gradient_clip=GRADIENT_CLIP,
        seed=seed,
        accelerator="cpu",
        progress=False,
    )
    return model


def select(train: Part, name: str, hidden: int, seed: int) -> Trained:
    """Trains every candidate without a validation part, and the best one on all samples.

    What a method fits to held-out data is fitted to the validation part, and kept.
    """
    method = regression.build(name)
    fitting, held_out = validation(train, seed)
    best: tuple[float, Candidate, Regressor] | None = None
    for candidate in CANDIDATES:
        model = train_one(fitting, method, candidate, hidden, seed)
        model.fit_outputs_held_out(*model.collect(held_out.data))
        loss = nll(model, held_out)
        if best is None or loss < best[0]:
            best = loss, candidate, model
    assert best is not None
    _, chosen, validated = best
    method = with_evidence(method, validated)
    final = train_one(train, method, chosen, hidden, seed)
    keep_residuals(final, validated)
    return Trained(final, chosen, method)


def nll(model: Regressor, part: Part) -> float:
    """Mean −ln p(y)."""
    p = model.predict(part.features)
    return -float(p.nig.log_prob(part.targets.to(p.mean)).mean())


def with_evidence(method: RegressionMethod, validated: Regressor) -> RegressionMethod:
    """The method whose settings are what `validated` fitted to held-out data."""
    if isinstance(method, DAER) and isinstance(validated.fitted, FittedDensity):
        fitted = validated.fitted.evidence
        (counts,), (noise,), (sharpness,) = fitted.counts, fitted.noise, fitted.sharpness
        return replace(method, evidence=counts, noise=noise, sharpness=sharpness)
    return method


def keep_residuals(final: Regressor, validated: Regressor) -> None:
    """Residuals of held-out data remain the variance of "mean only": those of training data are smaller."""
    if isinstance(final.method, Mean):
        final.fitted = validated.fitted
