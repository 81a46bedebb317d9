"""Sample-dependent adaptive temperature scaling."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Laplace, Normal, kl_divergence

from daedl.checks import require_whole
from daedl.distributed import gather_across
from daedl.methods.post_hoc import PostHoc, gather_rows, tempered
from daedl.outputs import Outputs
from daedl.prediction import Prediction

# Published, as are the widths below.
LATENT = 16
LEARNING_RATE = 5e-4
BATCH = 128
FLOOR = 1e-3  # of scales and temperatures
# Features beyond this are taken as this: squares of squares stay within float32, so that nothing ends as
# infinity minus infinity (chosen, far above what networks give).
REACH = 1e9


def layers(*widths: int) -> nn.Sequential:
    """Linear layers of these widths with ELU between them."""
    parts = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ELU())]
    return nn.Sequential(*parts[:-1])


class AdaptiveTemperature(nn.Module):
    """T(f) from how well a latent v ~ q(v | f) fits each class: g(ln p(v | 1), …, ln p(v | C)).

    q(v | f) and the class-conditional priors p(v | c) are Gaussians with diagonal covariances.
    """

    noise: Tensor

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.sizes = {"num_features": num_features, "num_classes": num_classes}
        trunk = layers(num_features, 1024, 512, 512)
        self.encoder = nn.Sequential(trunk, nn.Softplus(), nn.Linear(512, 2 * LATENT))
        self.classes = nn.Linear(num_classes, 2 * LATENT, bias=False)  # a column for each class
        self.temperature = layers(num_classes, 128, 128, 1)
        # The published code draws v anew whenever it is asked. Here all images share one draw, so that
        # a prediction depends neither on when it is made nor on the other images of its batch.
        self.register_buffer("noise", torch.randn(LATENT))

    def posterior(self, features: Tensor) -> Normal:
        """q(v | f), (B, 16), of features (B, H)."""
        return _gaussian(self.encoder(features))

    def priors(self) -> Normal:
        """p(v | c) of every class, (C, 16)."""
        return _gaussian(self.classes.weight.T)

    def of_latent(self, latent: Tensor) -> Tensor:
        """T (B,) of latents v (B, 16)."""
        log_densities = self.priors().log_prob(latent[:, None]).sum(-1)  # type: ignore[no-untyped-call]
        return F.softplus(self.temperature(log_densities)).clamp_min(FLOOR)[:, 0]

    def forward(self, features: Tensor) -> Tensor:
        """T (B,) of features (B, H)."""
        q = self.posterior(features.to(self.noise.dtype).clamp(-REACH, REACH))
        return self.of_latent(q.mean + q.stddev * self.noise)

    def loss(self, features: Tensor, logits: Tensor, targets: Tensor, decoder: nn.Module) -> Tensor:
        """Mean over the batch of the negative ELBO and the tempered cross-entropy, scalar.

            KL(q(v | f) ‖ p(v | y)) − ln Laplace(f; decoder(v), 1) − ln softmax(z / T(v))_y

        with one v ~ q(v | f) a sample, for features (B, H), logits (B, C) and targets (B,). The published
        code draws another v for T, which has the same expectation.
        """
        q, p = self.posterior(features), self.priors()
        latent = q.rsample()
        divergence = kl_divergence(q, Normal(p.mean[targets], p.stddev[targets])).sum(-1)
        decoded = Laplace(decoder(latent), 1.0)
        likelihood: Tensor = decoded.log_prob(features).sum(-1)  # type: ignore[no-untyped-call]
        scaled = logits / self.of_latent(latent)[:, None]
        return (divergence - likelihood + F.cross_entropy(scaled, targets, reduction="none")).mean()

    def settings(self) -> dict[str, Any]:
        """What, beside the tensors of `state_dict()`, rebuilds this; JSON-able."""
        return self.sizes


@dataclass(frozen=True, kw_only=True)
class AdaTS(PostHoc):
    """p = softmax(z / T(f)): a temperature for each sample, from a variational autoencoder of features.

    The autoencoder, with a prior for each class, and the network that reads T off its latent are trained
    together on held-out data; see `AdaptiveTemperature`. No prediction changes its class, and there is no
    epistemic score.

    Attributes:
        epochs: of training them.
        samples: held-out samples that are trained on, drawn at random if there are more; published.
        seed: of their initial weights, the order of samples and all noise, that of prediction too.
    """

    name = "adats"
    paper = "Joy et al., Sample-dependent Adaptive Temperature Scaling for Improved Calibration, AAAI 2023"
    published_training = (
        "an ordinary softmax network, then Adam at 5e-4, batches of 128, 100 epochs on 5,000 held-out "
        "images, in the published demo those of the test set"
    )
    extra_cost = (
        "a pass over the validation data and 100 epochs of small networks on their features"
    )
    extra_data = "held-out"
    caveats = (
        "Features are not standardised, as published: where they are large, their reconstruction "
        "outweighs the calibration. If the network makes no error on the validation data, temperatures "
        "fall to their floor 1e-3, and probabilities are 0 and 1."
    )
    fit_split = "validation"

    epochs: int = 100
    samples: int = 5000
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("epochs", self.epochs, 1, "100 as published")
        require_whole("samples", self.samples, 1, "5000 as published")
        require_whole("seed", self.seed, 0, "0")

    def fit(self, outputs: Outputs, targets: Tensor) -> AdaptiveTemperature:
        """Train the autoencoder and the temperature on validation features and logits, on the CPU.

        In several processes each does so on all samples.
        """
        features = gather_rows(outputs.features).to("cpu", torch.float32).clamp(-REACH, REACH)
        logits = gather_rows(outputs.logits).to("cpu", torch.float32)
        targets = gather_across(targets).cpu()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.default_generator.manual_seed(self.seed)
            kept = torch.randperm(len(targets))[: self.samples]
            features, logits, targets = features[kept], logits[kept], targets[kept]
            adaptive = AdaptiveTemperature(features.shape[1], logits.shape[1])
            # Only training needs the decoder, so it isn't kept.
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
        """Probabilities softmax(z / T(f))."""
        return tempered(outputs.logits, self.require_fitted(fitted)(outputs.features))

    def restore(
        self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
    ) -> AdaptiveTemperature:
        """The encoder, the priors and the temperature from a model file."""
        with torch.device("meta"):  # no initial weights, hence no random numbers
            adaptive = AdaptiveTemperature(**settings)
        adaptive.load_state_dict(tensors, assign=True)
        return adaptive.requires_grad_(False)


def _gaussian(parameters: Tensor) -> Normal:
    """The Gaussian with means and, through softplus, scales (..., 16) from parameters (..., 32)."""
    mean, scale = parameters.chunk(2, -1)
    return Normal(mean, F.softplus(scale).clamp_min(FLOOR))
