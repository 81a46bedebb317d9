"""Posterior networks: evidence from a normalising flow for each class, in a small latent space."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl import losses
from daedl.density.flow import RadialFlow
from daedl.dirichlet import Dirichlet
from daedl.methods.latent import LatentMethod
from daedl.networks import Network
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class PosteriorMethod(LatentMethod):
    """What PostNet and NatPN share: α = 1 + evidence from a latent's density, E[−ln π_y] − λ H(Dir(α)).

    Attributes:
        latent: dimensions of the latent.
        depth: radial layers of a flow.
        entropy_weight: λ, of the Dirichlet's differential entropy.
    """

    depth: int = 6
    entropy_weight: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("latent", "depth"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1 or value is True:
                raise ValueError(
                    f"{name} is {value!r}; expected a whole number from 1: "
                    f"take {getattr(type(self), name)} as published"
                )
        if not 0 <= self.entropy_weight < math.inf:
            raise ValueError(
                f"entropy_weight is {self.entropy_weight!r}; expected a finite number from 0: "
                f"take {type(self).entropy_weight} as published, 0 for the cross-entropy alone"
            )

    @abstractmethod
    def log_alpha(self, logits: Tensor) -> Tensor:
        """ln α (B, C) from what the head gives as logits (B, C)."""

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """ψ(α₀) − ψ(α_y) − λ H(Dir(α)), (B,)."""
        del epoch
        log_alpha = self.log_alpha(outputs.logits)
        uce = losses.uncertain_cross_entropy(log_alpha, targets, "none")
        return uce - self.entropy_weight * Dirichlet(log_alpha).differential_entropy

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """The Dirichlet; far from the data all α round to 1, so the class is taken from the logits.

        There α₀ ties too; `log_density`, the logsumexp of the logits, goes on telling them apart.
        """
        del fitted
        logits = outputs.logits
        return Prediction.from_dirichlet(
            self.log_alpha(logits), labels=logits.argmax(-1), log_density=logits.logsumexp(-1)
        )


class PostNetHead(nn.Module):
    """Latent to BatchNorm to a flow for each class; `log_counts` (C,) are ln N_c."""

    log_counts: Tensor

    def __init__(self, latent: int, depth: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(latent)
        self.flow = RadialFlow(num_classes, latent, depth)
        self.register_buffer("log_counts", torch.zeros(num_classes))

    def forward(self, outputs: Outputs) -> Outputs:
        """Normalised latent (B, latent), and ln N_c + ln q_c (B, C)."""
        if self.training and len(outputs.logits) == 1:
            raise ValueError(
                "a training batch holds one image; expected at least two, for the batch normalisation "
                "of the latent: choose another batch size, or a loader with drop_last=True"
            )
        latent = self.norm(outputs.logits)
        return Outputs(latent, self.log_counts + self.flow(latent))


@dataclass(frozen=True, kw_only=True)
class PostNet(PosteriorMethod):
    """α_c = 1 + N_c q_c(z), trained with E[−ln π_y] − λ H(Dir(α)), summed over the batch.

    z is a batch-normalised latent of 6 dimensions, q_c the density of class c by a radial flow, N_c the
    number of training samples of class c: logits are ln N_c + ln q_c(z), so that ln α = softplus(logits)
    and their logsumexp is ln N + ln q(z). `daedl.fit` fills in N_c, with `start`; the paper's code has
    other budgets than N_c itself, which are left out.

    Attributes:
        reduction: the published code sums over the batch.
    """

    name = "postnet"
    paper = (
        "Charpentier, Zügner and Günnemann, Posterior Network: Uncertainty Estimation without OOD "
        "Samples via Density-Based Pseudo-Counts, NeurIPS 2020"
    )
    # From the names of the published checkpoints; the notebooks beside them differ.
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {"cifar10": {"entropy_weight": 1e-5}}
    published_training = (
        "Adam at 1e-4 (CIFAR-10 2.5e-4), batches of 64, at most 200 epochs, early stopping on the "
        "validation loss, in float64"
    )
    extra_cost = (
        "one flow of 6 radial layers a class, on 6 numbers an image: small beside the network"
    )
    caveats = (
        "Everything that tells classes and OOD apart must pass through the latent's few dimensions, "
        "and nothing keeps the encoder from mapping OOD data onto known ones. The class counts of the "
        "training data act as a prior."
    )

    entropy_weight: float = 1e-6
    reduction: Literal["mean", "sum"] = "sum"

    def head(self, num_classes: int) -> PostNetHead:
        """BatchNorm and one flow a class."""
        return PostNetHead(self.latent, self.depth, num_classes)

    def set_class_counts(self, network: Network, counts: Tensor) -> None:
        """Fill in ln N_c; until then every class counts as one sample."""
        head = cast(PostNetHead, network.get_submodule("head"))
        # Training refuses a class without samples, with an error of its own.
        head.log_counts.copy_(counts.double().clamp_min(1).log())

    def log_alpha(self, logits: Tensor) -> Tensor:
        """ln(1 + N_c q_c)."""
        return F.softplus(logits)
