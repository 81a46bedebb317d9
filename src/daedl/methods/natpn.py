"""Natural posterior networks: a classifier, and evidence from one normalising flow for all classes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

import torch.nn.functional as F
from torch import Tensor, nn

from daedl.density.flow import RadialFlow
from daedl.methods.base import Phase
from daedl.methods.postnet import Posterior
from daedl.names import look_up
from daedl.outputs import Outputs
from daedl.prediction import Prediction

# ln N_H for each dimension of the latent, by the name of the budget.
BUDGETS: Mapping[str, float] = MappingProxyType(
    {"constant": 0.0, "exp-half": 0.5, "exp": 1.0, "normal": 0.5 * math.log(4 * math.pi)}
)
# Published: ln n is kept within ± this.
LARGEST = 30.0


class NatPNHead(nn.Module):
    """Latent to a linear classifier χ and, beside it, one flow q."""

    def __init__(self, latent: int, depth: int, num_classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(latent, num_classes)
        self.flow = RadialFlow(1, latent, depth)

    def forward(self, outputs: Outputs) -> Outputs:
        """The latent (B, latent), and ln q + ln χ_c (B, C), whose logsumexp is ln q."""
        latent = outputs.logits
        return Outputs(latent, self.flow(latent) + self.classifier(latent).log_softmax(-1))


@dataclass(frozen=True, kw_only=True)
class NatPN(Posterior):
    """α = 1 + n χ, n = N_H q(z) kept within e^±30, trained with E[−ln π_y] − λ H(Dir(α)).

    χ is the softmax of a linear classifier on the latent z of H = 16 dimensions, q one radial flow, N_H
    a certainty budget. Three trainings: the flow alone is warmed up on −ln q(z), then all is trained
    together, then the flow alone again is fine-tuned on −ln q(z). Logits are ln q(z) + ln χ_c; the
    budget and the bounds come after them, so that the likelihood is seen as it is.

    Other than in the released code:
    - Every training has the batches, rate and schedule that `fit` is told. There all have batches of 1024
      and a rate of 1e-3, so that the flow alone takes far fewer steps.
    - Early stopping asks for any improvement; there for 1e-3 of the loss, 1e-2 of the likelihood.
    - Fine-tuning keeps the epoch with the highest likelihood of the validation data. A released version
      keeps the best checkpoint without saying that larger is better, which takes the lowest.
    - The aleatoric score is 1 − max m, as of most methods here; there it is the entropy of m.

    Attributes:
        budget: ln N_H is 0 ("constant"), H/2 ("exp-half"), H ("exp") or ½ ln(4π) H ("normal").
        warmup_epochs: of the first training; 0 for none.
        finetune: whether there is the third training, as long at most as `fit` says.
    """

    name = "natpn"
    paper = (
        "Charpentier et al., Natural Posterior Network: Deep Bayesian Uncertainty for Exponential "
        "Family Distributions, ICLR 2022"
    )
    published_training = (
        "Adam at 1e-3, batches of 1024, at most 100 epochs a training, early stopping on the "
        "validation loss (fine-tuning: on the likelihood)"
    )
    extra_cost = (
        "one flow of 8 radial layers on 16 numbers an image; warm-up and fine-tuning, which together "
        "may take as many epochs again"
    )
    caveats = (
        "One flow of radial layers hardly splits the latent into a cluster a class, so that what lies "
        "between classes may seem better known than the data. While the flow is trained alone, dropout "
        "in the encoder stays on, so that it is fitted to more spread latents than at prediction, and "
        "batch normalisation goes on averaging."
    )

    latent: int = 16
    depth: int = 8
    entropy_weight: float = 1e-5
    budget: str = "normal"
    warmup_epochs: int = 3
    finetune: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        look_up(BUDGETS, self.budget, "budget")
        epochs = self.warmup_epochs
        if not isinstance(epochs, int) or epochs < 0 or isinstance(epochs, bool):
            raise ValueError(
                f"warmup_epochs is {epochs!r}; expected a whole number from 0: take 3 as published, "
                "0 for no warm-up"
            )
        if not isinstance(self.finetune, bool):
            raise ValueError(
                f"finetune is {self.finetune!r}; expected True or False: take True as published"
            )

    def head(self, num_classes: int) -> NatPNHead:
        """A linear classifier and one flow."""
        return NatPNHead(self.latent, self.depth, num_classes)

    def phases(self) -> tuple[Phase, ...]:
        """Warm-up, joint training, fine-tuning."""
        likelihood = _Likelihood(**{each.name: getattr(self, each.name) for each in fields(self)})
        warmup = Phase(likelihood, "warm-up", self.warmup_epochs, trains="head.flow")
        finetuning = Phase(likelihood, "fine-tuning", trains="head.flow")
        return (
            *([warmup] if self.warmup_epochs else []),
            Phase(self),
            *([finetuning] if self.finetune else []),
        )

    def log_alpha(self, logits: Tensor) -> Tensor:
        """ln(1 + n χ_c), with ln n = ln q + ln N_H kept within its bounds."""
        log_q = logits.logsumexp(-1, keepdim=True)
        log_n = log_q + BUDGETS[self.budget] * self.latent
        # The gradient passes the bounds. Adding log_n − log_n keeps the value exact at any distance.
        bounded = log_n.detach().clamp(-LARGEST, LARGEST) + (log_n - log_n.detach())
        return F.softplus(bounded + logits.log_softmax(-1))

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """The Dirichlet; epistemic is −ln q(z), as in the paper's code.

        It orders images as −ln α₀ does, which ties beyond the bounds.
        """
        prediction = super().predict(outputs, fitted)
        return replace(prediction, epistemic=-outputs.logits.logsumexp(-1))


class _Likelihood(NatPN):
    """The training of the flow alone."""

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        """−ln q(z), (B,)."""
        del targets, epoch
        return -outputs.logits.logsumexp(-1)
