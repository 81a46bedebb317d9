"""Nonparametric uncertainty quantification: Nadaraya and Watson's estimate among training features."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl.checks import require_above_zero, require_whole
from daedl.distributed import gather_across
from daedl.methods.knn import distance, nearest
from daedl.methods.post_hoc import PostHoc, as_float_like, gather_rows
from daedl.outputs import Outputs
from daedl.prediction import Prediction

# Bandwidths to choose from; published.
_GRID = 5
# Training samples that choose among them (chosen: seconds for 48,000 features of 576).
_TUNING = 2000


class NadarayaWatson(nn.Module):
    """Training features (N, H) about their mean, their labels (N,), and ln τ² of others; see `NUQ`."""

    center: Tensor
    stored: Tensor
    labels: Tensor
    squares: Tensor
    log_prior: Tensor

    def __init__(
        self,
        center: Tensor,
        stored: Tensor,
        labels: Tensor,
        num_classes: int,
        k: int,
        log_weight: float,
        bandwidth: float,
    ) -> None:
        super().__init__()
        if k >= len(stored):
            raise ValueError(
                f"k is {k} but there are {len(stored)} training features; expected more of them than "
                "neighbours: lower k, or fit to more samples"
            )
        self.num_classes, self.k = num_classes, k
        self.log_weight, self.bandwidth = log_weight, bandwidth
        shares = torch.bincount(labels, minlength=num_classes).to(stored) / len(labels)
        self.register_buffer("center", center)
        self.register_buffer("stored", stored)
        self.register_buffer("labels", labels)
        self.register_buffer("squares", stored.square().sum(1), persistent=False)
        self.register_buffer("log_prior", log_weight + shares.log(), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """ln τ² (B,) of features (B, H)."""
        # About the mean of the training features: an offset common to all of them costs digits.
        found = self._neighbours(features.to(self.stored) - self.center, self.k)
        return torch.cat([_log_tau_squared(self._log_scores(*each)) for each in found])

    def tune(self, own: Tensor) -> None:
        """Take the bandwidth with which the training samples `own` (M,) are classified best.

        Each of them is left out from its own neighbours. Candidates go in equal ratios from the
        smallest distance to a neighbour to the largest; of equally good ones it is the largest.
        """
        parts = zip(*self._neighbours(self.stored[own], self.k + 1), strict=True)
        distances, indices = (torch.cat(part) for part in parts)
        distances = distances.masked_fill(indices == own[:, None], math.inf)
        apart = distances[(distances > 0) & (distances < math.inf)].double()
        if not len(apart):
            self.bandwidth = 1.0  # all are the same, and so is their kernel
            return
        truth, found = self.labels[own], {}
        for step in torch.linspace(0, 1, _GRID).tolist():
            self.bandwidth = float(apart.min() ** (1 - step) * apart.max() ** step)
            classes = self._log_scores(distances, indices).argmax(-1)
            found[self.bandwidth] = int((classes == truth).sum())
        self.bandwidth = max(found, key=lambda bandwidth: (found[bandwidth], bandwidth))

    def _neighbours(self, centered: Tensor, k: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Distances (B, k) to the nearest of `stored`, and their indices (B, k), by blocks of rows."""
        for block, indices in nearest(centered, self.stored, self.squares, k):
            # One neighbour after the other, as the features of all would take k times the memory.
            columns = [distance(block, self.stored, column) for column in indices.unbind(1)]
            yield torch.stack(columns, 1), indices

    def _log_scores(self, distances: Tensor, indices: Tensor) -> Tensor:
        """ln(S_c + ν π_c) (B, C) from neighbours (B, k)."""
        log_kernel = -0.5 * (distances / self.bandwidth).square()
        theirs = F.one_hot(self.labels[indices], self.num_classes).bool()
        nothing = log_kernel.new_tensor(-math.inf)
        log_sums = torch.where(theirs, log_kernel[..., None], nothing).logsumexp(1)
        return torch.logaddexp(log_sums, self.log_prior)

    def settings(self) -> dict[str, Any]:
        """What, beside the tensors of `state_dict()`, rebuilds this; JSON-able."""
        return {
            "num_classes": self.num_classes,
            "k": self.k,
            "log_weight": self.log_weight,
            "bandwidth": self.bandwidth,
        }


def _log_tau_squared(log_scores: Tensor) -> Tensor:
    """ln(η (1 − η) / (S + ν)) (B,) of the largest η, from ln(S_c + ν π_c) (B, C)."""
    largest, top = log_scores.max(-1, keepdim=True)
    # Of the others, as 1 − η would round to 0.
    others = log_scores.scatter(-1, top, -math.inf).logsumexp(-1)
    return largest.squeeze(-1) + others - 3 * log_scores.logsumexp(-1)


@dataclass(frozen=True, kw_only=True)
class NUQ(PostHoc):
    """Epistemic: ln τ² = ln(η (1 − η) / (S + ν)) of the class with the largest η_c; p = softmax(z).

    f_i are the k nearest training features of f, with labels y_i, and π_c the shares of the classes:

        S_c = Σ_i exp(−‖f − f_i‖² / 2h²) [y_i = c],   S = Σ_c S_c,   η_c = (S_c + ν π_c) / (S + ν)

    η is Nadaraya and Watson's estimate of the classes' probabilities and τ² its asymptotic variance, but
    for a constant factor. The uncertainty U_e = 2 √(2/π) τ has the same order; the total, U_e + 1 − max_c
    η_c, is left out, as with many features the constant, 2 to the −H/2, hides U_e.

    Verified in the released code (stat-ml/NUQ), though not in the paper's text: the kernel, the prior
    ν π_c, ln τ² as the epistemic score, the candidates for h and their choice by accuracy. Other than there:
    - ν is e⁻¹⁰⁰, not 1. With ten classes τ² falls again where S < ν / 3, so that with 1 what is far away
      can seem better known than what is near. That was noticed on KMNIST and Fashion-MNIST, whose figures
      are no independent evidence for NUQ therefore.
    - h is chosen by leaving out each of 2,000 samples, not 3 of 10 parts; of equally good ones it is the
      largest, not the smallest. Neighbours are exact.
    - The code adds ν (1 − ln π_c) for the other classes where η needs ν (1 − π_c), as here.

    Attributes:
        k: published.
        log_weight: ln ν; chosen, see above.
        bandwidth: h, or None to choose it by cross-validation, as published.
        seed: of the samples that choose it.
    """

    name = "nuq"
    paper = (
        "Kotelevskii et al., Nonparametric Uncertainty Quantification for Single Deterministic Neural "
        "Network, NeurIPS 2022"
    )
    extra_cost = "one pass over the training data, and neighbours of 2,000 of them to choose h"
    caveats = (
        "The model file holds every training feature (48,000 of 576 are 111 MB), and each prediction is "
        "compared with all of them. Where neighbours disagree the score is high, however near they are; "
        "beyond about 14 h from all of them it is constant."
    )

    k: int = 20
    log_weight: float = -100.0
    bandwidth: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("k", self.k, 1, "20 as published")
        require_whole("seed", self.seed, 0, "0")
        if not -math.inf < self.log_weight < math.inf:
            raise ValueError(
                f"log_weight is {self.log_weight!r}; expected a finite number: take -100, or 0 as in the "
                "released code"
            )
        if self.bandwidth is not None:
            require_above_zero("bandwidth", self.bandwidth, "None to choose it by cross-validation")

    def fit(self, outputs: Outputs, targets: Tensor) -> NadarayaWatson:
        """Keep the training features and labels, of all processes, and choose the bandwidth."""
        features, labels = gather_rows(outputs.features.float()), gather_across(targets)
        center = features.mean(0)
        fitted = NadarayaWatson(
            center,
            features - center,
            labels,
            outputs.logits.shape[-1],
            self.k,
            self.log_weight,
            self.bandwidth or math.nan,
        )
        if self.bandwidth is None:
            generator = torch.Generator().manual_seed(self.seed)
            order = torch.randperm(len(labels), generator=generator)
            fitted.tune(order[:_TUNING].to(labels.device))
        return fitted

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Probabilities softmax(z), and ln τ²."""
        epistemic: Tensor = self.require_fitted(fitted)(outputs.features)
        return Prediction.from_probs(outputs.logits.softmax(-1), as_float_like(epistemic, outputs.logits))

    def restore(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> NadarayaWatson:
        """The training features from a model file."""
        return NadarayaWatson(tensors["center"], tensors["stored"], tensors["labels"], **settings)
