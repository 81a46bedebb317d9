"""Prior networks trained with the forward KL divergence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl import losses
from daedl.checks import NonNegative, Positive
from daedl.dirichlet import Dirichlet
from daedl.methods.base import Method
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class KLPN(Method):
    """α = exp(z), trained with (KL(Dir(β_y) ‖ Dir(α)) + γ KL(Dir(1) ‖ Dir(α′))) / t.

    β_y is 1 for every class, plus t for the true class. α′ is predicted for images of uniform noise, one
    per training image and redrawn at each step; no other OOD data are used. The validation loss is the
    first term, so the best epoch is selected on in-distribution images.

    Attributes:
        target: t, the target evidence; 100 as in the later published code (the first code uses smoothed
            targets with a precision of 1000).
        noise_weight: γ.
        pixel_mean, pixel_std: normalisation of the images per channel, applied to the noise as well,
            which is drawn from [0, 1]. None if the images are in [0, 1].
    """

    name = "kl-pn"
    paper = "Malinin and Gales, Predictive Uncertainty Estimation via Prior Networks, NeurIPS 2018"
    # Not from the paper: normalisation of CIFAR-10 in the compared protocol.
    published: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar10": {
            "pixel_mean": (0.4914, 0.4822, 0.4465),
            "pixel_std": (0.2023, 0.1994, 0.2010),
        }
    }
    published_training = (
        "first code: Adam 1e-3, times 0.95 per epoch, batch size 128, 50 epochs; later code, whose targets "
        "are used here: SGD, batch size 128, gradients clipped at 10; not published for the compared rows"
    )
    extra_cost = "twice the images: one noise image per training image"
    extra_data = "noise"
    caveats = (
        "Needs OOD images in training; noise alone teaches little about OOD images that look natural. "
        "The forward divergence trains poorly where classes overlap."
    )

    target: Positive = 100.0
    noise_weight: NonNegative = 1.0
    pixel_mean: Sequence[float] | None = None
    pixel_std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.pixel_mean is None) != (self.pixel_std is None):
            raise ValueError(
                f"pixel_mean is {self.pixel_mean} and pixel_std is {self.pixel_std}; expected both or "
                "neither: pass the normalisation of the images, or None for images in [0, 1]"
            )
        for name in ("pixel_mean", "pixel_std"):  # lists if read from a model file
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else tuple(value))

    def noise(self, images: Tensor) -> Tensor:
        """Uniform noise of the shape of `images` (B, ...), with the same normalisation."""
        noise = torch.rand_like(images)
        if self.pixel_mean is None or self.pixel_std is None:
            return noise
        channels = (-1, *[1] * (images.ndim - 2))
        mean, std = (
            torch.as_tensor(each).to(images).reshape(channels)
            for each in (self.pixel_mean, self.pixel_std)
        )
        return (noise - mean) / std

    def divergence(self, target: Dirichlet, predicted: Dirichlet) -> Tensor:
        """KL(target ‖ predicted), (B,)."""
        return target.kl(predicted)

    def training_loss(
        self,
        network: nn.Module,
        images: Tensor,
        targets: Tensor,
        epoch: int,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Loss of the images plus loss of as many noise images, in one forward pass."""
        outputs = network(torch.cat([images, self.noise(images)]))
        logits, noise_logits = outputs.logits.chunk(2)
        flat = Dirichlet(torch.zeros_like(noise_logits))
        noise_loss = self.divergence(flat, Dirichlet(noise_logits)) / self.target
        loss = self.loss(
            Outputs(outputs.features[: len(images)], logits, outputs.parts), targets, epoch
        )
        return losses.reduce(loss + self.noise_weight * noise_loss, self.reduction, weights)

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """KL(Dir(β_y) ‖ Dir(α)) / t, (B,)."""
        onehot = F.one_hot(targets, outputs.logits.shape[-1]).to(outputs.logits)
        target = Dirichlet((1 + self.target * onehot).log())
        return self.divergence(target, Dirichlet(outputs.logits)) / self.target

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        return Prediction.from_dirichlet(outputs.logits)
