"""Training with hyperparameters that a validation part of the training data selects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch.optim import AdamW

import daedl
from daedl.methods import regression
from daedl.methods.regression import DAER, Mean, RegressionMethod
from daedl.methods.regression.daer import FittedDensity
from daedl.networks import MLP
from daedl.regressor import Regressor
from daedl.spectral import DEFAULT
from daedl_bench.studies.regression.data import Part, validation

# Batches of at least 32 samples and at most 40 steps per epoch.
SMALLEST_BATCH, STEPS_PER_EPOCH = 32, 40
GRADIENT_CLIP = 5.0  # of this recipe, under which the rows are measured


class Candidate(NamedTuple):
    """Number of training steps, weight decay of AdamW, and largest rate of the one-cycle schedule."""

    steps: int
    weight_decay: float
    learning_rate: float


class Trial(NamedTuple):
    """A trained candidate and its NLL on the validation part."""

    loss: float
    method: RegressionMethod
    candidate: Candidate
    model: Regressor


LOSS = attrgetter("loss")


# A short training with strong decay, and a long one with a large rate (chosen on validation parts of the
# first splits).
CANDIDATES = (Candidate(1500, 0.1, 0.01), Candidate(4000, 1e-3, 0.03))
# Settings of a method between which the validation part decides; others have their defaults. Spectral
# normalisation costs accuracy on smooth sets and helps on others (validation part of the first split).
VARIANTS: Mapping[str, Sequence[RegressionMethod]] = MappingProxyType(
    {DAER.name: (DAER(spectral=DEFAULT), DAER(spectral=None))}
)


@dataclass(frozen=True)
class Trained:
    """A regressor that was trained on the whole training part.

    Attributes:
        chosen: the candidate with the smallest validation NLL.
        method: the selected variant, with what was fitted to the validation part as settings.
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
        learning_rate=candidate.learning_rate,
        schedule="one-cycle",
        optimizer=partial(
            AdamW, lr=candidate.learning_rate, weight_decay=candidate.weight_decay, fused=True
        ),
        gradient_clip=GRADIENT_CLIP,
        seed=seed,
        accelerator="cpu",
        progress=False,
    )
    return model


def select(train: Part, name: str, hidden: int, seed: int) -> Trained:
    """Selects variant and candidate on a validation part, and trains the choice on all samples.

    Variants are compared with the first candidate alone. What a method fits to held-out data is fitted to the
    validation part, and kept.
    """
    fitting, held_out = validation(train, seed)

    def tried(method: RegressionMethod, candidate: Candidate) -> Trial:
        model = train_one(fitting, method, candidate, hidden, seed)
        model.fit_outputs_held_out(*model.collect(held_out.data))
        return Trial(nll(model, held_out), method, candidate, model)

    first, *others = CANDIDATES
    best = min(
        (tried(each, first) for each in VARIANTS.get(name, (regression.build(name),))), key=LOSS
    )
    best = min((best, *(tried(best.method, each) for each in others)), key=LOSS)
    method = with_evidence(best.method, best.model)
    final = train_one(train, method, best.candidate, hidden, seed)
    keep_residuals(final, best.model)
    return Trained(final, best.candidate, method)


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
