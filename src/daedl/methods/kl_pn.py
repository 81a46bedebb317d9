"""Prior networks trained with the forward KL divergence."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl import losses
from daedl.checks import NonNegative, Positive
from daedl.data import InputKind
from daedl.dirichlet import Dirichlet
from daedl.inputs import Inputs, form_of
from daedl.methods.base import Method
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class KLPN(Method):
    """α = exp(z), trained with (KL(Dir(β_y) ‖ Dir(α)) + γ KL(Dir(1) ‖ Dir(α′))) / t.

    β_y is 1 for every class, plus t for the true class. α′ is predicted for images of uniform noise, one
    per training image and redrawn at each step; no other OOD data are used. Pixels of the noise pass through
    the preprocessing of the classifier; without one (`preprocess=None`) they are uniform in [0, 1] of the
    network's input. The validation loss is the first term, so the best epoch is selected on in-distribution
    images.

    Attributes:
        target: t, the target evidence; 100 as in the later published code (the first code uses smoothed
            targets with a precision of 1000).
        noise_weight: γ.
    """

    name = "kl-pn"
    paper = "Malinin and Gales, Predictive Uncertainty Estimation via Prior Networks, NeurIPS 2018"
    published_training = (
        "first code: Adam 1e-3, times 0.95 per epoch, batch size 128, 50 epochs; later code, whose targets "
        "are used here: SGD, batch size 128, gradients clipped at 10; not published for the compared rows"
    )
    extra_cost = "twice the images: one noise image per training image"
    extra_data = "noise"
    caveats = (
        "Needs OOD images in training; noise does not represent natural OOD images. "
        "The forward divergence trains poorly where classes overlap."
    )
    # A second copy of the preprocessing, which noise passes through instead.
    removed = MappingProxyType({"pixel_mean": None, "pixel_std": None})

    target: Positive = 100.0
    noise_weight: NonNegative = 1.0

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
        preprocess: InputKind | None = None,
    ) -> Tensor:
        """Loss of the images plus loss of as many noise images, in one forward pass."""
        noise = _uniform(images) if preprocess is None else preprocess.noise(images)
        outputs = network(torch.cat([images, noise]))
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


def _uniform(images: Inputs) -> Tensor:
    """Uniform noise of the form of `images`."""
    if not isinstance(images, Tensor) or not images.is_floating_point():
        raise ValueError(
            f"the inputs are {form_of(images)}, for which there is no uniform noise; expected a tensor of "
            "floats: choose a method that is not trained with noise, such as 'daedl'"
        )
    return torch.rand_like(images)
