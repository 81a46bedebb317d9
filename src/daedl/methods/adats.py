"""Sample-dependent adaptive temperature scaling."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Laplace, Normal, kl_divergence

from daedl.checks import Count, Whole
from daedl.distributed import gather_across
from daedl.methods.post_hoc import PostHoc, gather_rows, tempered
from daedl.outputs import Outputs
from daedl.prediction import Prediction

# Published, as are the widths below.
LATENT = 16
LEARNING_RATE = 5e-4
BATCH = 128
FLOOR = 1e-3  # lower bound of scales and temperatures
# Features are clamped to ± this value: fourth powers stay finite in float32, which avoids inf − inf
# (chosen, far above the features of trained networks).
REACH = 1e9


def layers(*widths: int) -> nn.Sequential:
    """Linear layers of these widths with ELU in between."""
    parts = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ELU())]
    return nn.Sequential(*parts[:-1])


class AdaptiveTemperature(nn.Module):
    """T(f) = g(ln p(v | 1), …, ln p(v | C)) of a latent v ~ q(v | f).

    q(v | f) and the class-conditional priors p(v | c) are Gaussians with diagonal covariances.
    """

    noise: Tensor

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.sizes = {"num_features": num_features, "num_classes": num_classes}
        trunk = layers(num_features, 1024, 512, 512)
        self.encoder = nn.Sequential(trunk, nn.Softplus(), nn.Linear(512, 2 * LATENT))
        self.classes = nn.Linear(num_classes, 2 * LATENT, bias=False)  # one column per class
        self.temperature = layers(num_classes, 128, 128, 1)
        # The published code draws a new v per prediction. Here all images share one noise vector, so that
        # predictions are deterministic and don't depend on the rest of the batch.
        self.register_buffer("noise", torch.randn(LATENT))

    def posterior(self, features: Tensor) -> Normal:
        """Posterior q(v | f), (B, 16), of features (B, H)."""
        return _gaussian(self.encoder(features))

    def priors(self) -> Normal:
        """Priors p(v | c) of all classes, (C, 16)."""
        return _gaussian(self.classes.weight.T)

    def of_latent(self, latent: Tensor) -> Tensor:
        """Temperatures T (B,) of latents v (B, 16)."""
        log_densities = self.priors().log_prob(latent[:, None]).sum(-1)  # type: ignore[no-untyped-call]
        return F.softplus(self.temperature(log_densities)).clamp_min(FLOOR)[:, 0]

    def forward(self, features: Tensor) -> Tensor:
        """Temperatures T (B,) of features (B, H)."""
        q = self.posterior(features.to(self.noise.dtype).clamp(-REACH, REACH))
        return self.of_latent(q.mean + q.stddev * self.noise)

    def loss(self, features: Tensor, logits: Tensor, targets: Tensor, decoder: nn.Module) -> Tensor:
        """Batch mean of the negative ELBO plus the tempered cross-entropy, scalar.

            KL(q(v | f) ‖ p(v | y)) − ln Laplace(f; decoder(v), 1) − ln softmax(z / T(v))_y

        with one v ~ q(v | f) per sample, for features (B, H), logits (B, C) and targets (B,). The
        published code draws a second v for T, which has the same expectation.
        """
        q, p = self.posterior(features), self.priors()
        latent = q.rsample()
        divergence = kl_divergence(q, Normal(p.mean[targets], p.stddev[targets])).sum(-1)
        decoded = Laplace(decoder(latent), 1.0)
        likelihood: Tensor = decoded.log_prob(features).sum(-1)  # type: ignore[no-untyped-call]
        scaled = logits / self.of_latent(latent)[:, None]
        return (divergence - likelihood + F.cross_entropy(scaled, targets, reduction="none")).mean()

    def settings(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        return self.sizes

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Rebuild encoder, priors and temperature network from a model file."""
        with torch.device("meta"):  # skips initialisation, which would draw random numbers
            adaptive = cls(**settings)
        adaptive.load_state_dict(tensors, assign=True)
        return adaptive.requires_grad_(False)


@dataclass(frozen=True, kw_only=True)
class AdaTS(PostHoc):
    """p = softmax(z / T(f)): a temperature per sample, from a variational autoencoder of the features.

    The autoencoder, which has one prior per class, and the network that maps its latent to T are trained
    jointly on held-out data; see `AdaptiveTemperature`. Predicted classes do not change; there is no
    epistemic score.

    Attributes:
        epochs: training epochs of both networks; published.
        samples: maximum number of held-out samples to train on, a random subset; published.
        seed: seed of initial weights, sample order and noise, including the noise at prediction.
    """

    name = "adats"
    title = "AdaTS"
    paper = "Joy et al., Sample-dependent Adaptive Temperature Scaling for Improved Calibration, AAAI 2023"
    published_training = (
        "ordinary softmax training, then Adam 5e-4, batch size 128, 100 epochs on 5,000 held-out images, "
        "which the published demo takes from the test set"
    )
    extra_cost = (
        "one pass over the validation data, and 100 epochs of small networks on their features"
    )
    extra_data = "held-out"
    caveats = (
        "Features are not standardised, as published: if they are large, the reconstruction term "
        "dominates the calibration. If the network makes no error on the validation data, temperatures "
        "fall to their lower bound 1e-3, and probabilities are 0 and 1."
    )
    state = AdaptiveTemperature
    fit_split = "validation"

    epochs: Count = 100
    samples: Count = 5000
    seed: Whole = 0

    def fit(self, outputs: Outputs, targets: Tensor) -> AdaptiveTemperature:
        """Train the autoencoder and the temperature on validation features and logits, on the CPU.

        In distributed training every process trains on all samples.
        """
        features = gather_rows(outputs.features).to("cpu", torch.float32).clamp(-REACH, REACH)
        logits = gather_rows(outputs.logits).to("cpu", torch.float32)
        targets = gather_across(targets).cpu()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.default_generator.manual_seed(self.seed)
            kept = torch.randperm(len(targets))[: self.samples]
            features, logits, targets = features[kept], logits[kept], targets[kept]
            adaptive = AdaptiveTemperature(features.shape[1], logits.shape[1])
            # The decoder is only needed for training.
            decoder = layers(LATENT, 1024, 512, 512, features.shape[1])
            parameters = [*adaptive.parameters(), *decoder.parameters()]
            optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)
            for _ in range(self.epochs):
                for rows in torch.split(torch.randperm(len(targets)), BATCH):
                    optimizer.zero_grad()
                    loss = adaptive.loss(features[rows], logits[rows], targets[rows], decoder)
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
        return adaptive.requires_grad_(False)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        return tempered(outputs.logits, self.require_fitted(fitted)(outputs.features))


def _gaussian(parameters: Tensor) -> Normal:
    """Gaussian with means and softplus scales (..., 16) from parameters (..., 32)."""
    mean, scale = parameters.chunk(2, -1)
    return Normal(mean, F.softplus(scale).clamp_min(FLOOR))
