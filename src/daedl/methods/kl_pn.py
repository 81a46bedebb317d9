"""Prior networks with the forward KL divergence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl import losses
from daedl.dirichlet import Dirichlet
from daedl.methods.base import Method
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class KLPN(Method):
    """α = exp(z), trained with (KL(Dir(β_y) ‖ Dir(α)) + γ KL(Dir(1) ‖ Dir(α′))) / t.

    β_y is 1 for every class, plus t for the true one. α′ belongs to images of uniform noise, as many as
    known ones and drawn anew for each step: no other unknown data are seen. Validation has the first
    term alone, so that the epoch that is kept is chosen by known images.

    Attributes:
        target: t, the evidence asked for; 100 as in the later published code (the first one has smoothed
            targets with a precision of 1000).
        noise_weight: γ.
        pixel_mean, pixel_std: of each channel, by which the images are normalised; the noise is drawn
            between 0 and 1 and normalised likewise. None if the images are between 0 and 1 themselves.
    """

    name = "kl-pn"
    paper = "Malinin and Gales, Predictive Uncertainty Estimation via Prior Networks, NeurIPS 2018"
    # Not the prior networks' own: how the compared protocol normalises CIFAR-10.
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar10": {
            "pixel_mean": (0.4914, 0.4822, 0.4465),
            "pixel_std": (0.2023, 0.1994, 0.2010),
        }
    }
    published_training = (
        "first code: Adam 1e-3, times 0.95 an epoch, batches of 128, 50 epochs; the later one, whose "
        "targets these are: SGD, batches of 128, gradients clipped at 10; of the compared rows unpublished"
    )
    extra_cost = "twice the images: one of noise for each known one"
    extra_data = "noise"
    caveats = (
        "Needs images to call unknown in training; with noise alone it learns little of those that look "
        "like images. The forward divergence trains poorly where classes overlap."
    )

    target: float = 100.0
    noise_weight: float = 1.0
    pixel_mean: Sequence[float] | None = None
    pixel_std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.target > 0 or not self.noise_weight >= 0:
            raise ValueError(
                f"target is {self.target} and noise_weight {self.noise_weight}; expected a target above 0 "
                "and a weight from 0: take 100 and 1"
            )
        if (self.pixel_mean is None) != (self.pixel_std is None):
            raise ValueError(
                f"pixel_mean is {self.pixel_mean} and pixel_std {self.pixel_std}; expected both or neither"
            )
        for name in ("pixel_mean", "pixel_std"):  # lists where a model file held them
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))

    def noise(self, images: Tensor) -> Tensor:
        """Uniform noise like `images` (B, ...), normalised as they are."""
        noise = torch.rand_like(images)
        if self.pixel_mean is None or self.pixel_std is None:
            return noise
        channels = (-1, *[1] * (images.ndim - 2))
        mean, std = (
            torch.as_tensor(each).to(images).reshape(channels)
            for each in (self.pixel_mean, self.pixel_std)
        )
        return (noise - mean) / std

    def divergence(self, wanted: Dirichlet, predicted: Dirichlet) -> Tensor:
        """KL(wanted ‖ predicted), (B,)."""
        return wanted.kl(predicted)

    def training_loss(
        self,
        network: nn.Module,
        images: Tensor,
        targets: Tensor,
        epoch: int,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The loss of known images, and that of as many of noise; both in one pass."""
        outputs = network(torch.cat([images, self.noise(images)]))
        known, unknown = outputs.logits.chunk(2)
        flat = Dirichlet(torch.zeros_like(unknown))
        of_noise = self.divergence(flat, Dirichlet(unknown)) / self.target
        of_known = self.loss(Outputs(outputs.features[: len(images)], known), targets, epoch)
        return losses.reduce(of_known + self.noise_weight * of_noise, self.reduction, weights)

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """KL(Dir(β_y) ‖ Dir(α)) / t, (B,)."""
        del epoch
        onehot = F.one_hot(targets, outputs.logits.shape[-1]).to(outputs.logits)
        wanted = Dirichlet((1 + self.target * onehot).log())
        return self.divergence(wanted, Dirichlet(outputs.logits)) / self.target

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """The Dirichlet with α = exp(z)."""
        del fitted
        return Prediction.from_dirichlet(outputs.logits)
