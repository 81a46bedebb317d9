"""Posterior networks: evidence from one normalising flow per class, in a small latent space."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl import losses
from daedl.checks import Count, NonNegative
from daedl.density.flow import RadialFlow
from daedl.dirichlet import Dirichlet
from daedl.methods.latent import LatentMethod
from daedl.networks import Network
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class PosteriorMethod(LatentMethod):
    """Abstract base of PostNet and NatPN: α = 1 + evidence from the density of a latent.

    Trained with E[−ln π_y] − λ H(Dir(α)).

    Attributes:
        latent: dimension of the latent.
        depth: radial layers per flow.
        entropy_weight: λ, weight of the differential entropy.
    """

    depth: Count = 6
    entropy_weight: NonNegative = 1e-5

    @abstractmethod
    def log_alpha(self, logits: Tensor) -> Tensor:
        """ln α (B, C) from the logits (B, C) of the head."""

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        log_alpha = self.log_alpha(outputs.logits)
        uce = losses.uncertain_cross_entropy(log_alpha, targets, "none")
        return uce - self.entropy_weight * Dirichlet(log_alpha).differential_entropy

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Dirichlet prediction with `log_density`, the logsumexp of the logits.

        Far from the data all α round to 1: labels come from the logits, and `log_density` still ranks
        images where α₀ is constant.
        """
        logits = outputs.logits
        return Prediction.from_dirichlet(
            self.log_alpha(logits), labels=logits.argmax(-1), log_density=logits.logsumexp(-1)
        )


class PostNetHead(nn.Module):
    """BatchNorm of the latent, then one flow per class; `log_counts` (C,) are ln N_c."""

    log_counts: Tensor

    def __init__(self, latent: int, depth: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(latent)
        self.flow = RadialFlow(num_classes, latent, depth)
        self.register_buffer("log_counts", torch.zeros(num_classes))

    def forward(self, outputs: Outputs) -> Outputs:
        """Normalised latent (B, latent), and logits ln N_c + ln q_c (B, C)."""
        if self.training and len(outputs.logits) == 1:
            raise ValueError(
                "a training batch has one image; expected at least two, for the batch normalisation of "
                "the latent: change the batch size, or use a loader with drop_last=True"
            )
        latent = self.norm(outputs.logits)
        return Outputs(latent, self.log_counts + self.flow(latent))


@dataclass(frozen=True, kw_only=True)
class PostNet(PosteriorMethod):
    """α_c = 1 + N_c q_c(z), trained with E[−ln π_y] − λ H(Dir(α)), summed over the batch.

    z is a batch-normalised latent of dimension 6, q_c the density of class c from a radial flow, N_c the
    number of training samples of class c. Logits are ln N_c + ln q_c(z), so ln α = softplus(logits) and
    their logsumexp is ln N + ln q(z). `daedl.fit` sets N_c through `set_class_counts`. The other budgets
    of the paper's code are not implemented.

    Attributes:
        reduction: the published code sums over the batch.
    """

    name = "postnet"
    title = "PostNet"
    paper = (
        "Charpentier, Zügner and Günnemann, Posterior Network: Uncertainty Estimation without OOD "
        "Samples via Density-Based Pseudo-Counts, NeurIPS 2020"
    )
    # From the names of the published checkpoints; the published notebooks differ.
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cifar10": {"entropy_weight": 1e-5}}
    published_training = (
        "Adam 1e-4 (CIFAR-10: 2.5e-4), batch size 64, at most 200 epochs, early stopping on the "
        "validation loss, in float64"
    )
    extra_cost = (
        "one flow of 6 radial layers per class, in 6 dimensions: small compared to the network"
    )
    caveats = (
        "All information about classes and OOD must fit into the low-dimensional latent, and nothing "
        "prevents the encoder from mapping OOD data onto training data. The class counts of the training "
        "data act as a prior."
    )

    entropy_weight: NonNegative = 1e-6
    reduction: Literal["mean", "sum"] = "sum"

    def head(self, num_classes: int) -> PostNetHead:
        return PostNetHead(self.latent, self.depth, num_classes)

    def set_class_counts(self, network: Network, counts: Tensor) -> None:
        """Set ln N_c; the initial value is N_c = 1."""
        head = cast(PostNetHead, network.get_submodule("head"))
        # `fit` rejects a class without samples with its own error.
        head.log_counts.copy_(counts.double().clamp_min(1).log())

    def log_alpha(self, logits: Tensor) -> Tensor:
        return F.softplus(logits)
