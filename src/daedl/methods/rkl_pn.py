"""Prior networks trained with the reverse KL divergence."""

from dataclasses import dataclass

from torch import Tensor

from daedl.dirichlet import Dirichlet
from daedl.methods.kl_pn import KLPN


@dataclass(frozen=True, kw_only=True)
class RKLPN(KLPN):
    """KL-PN with the arguments of both divergences swapped: KL(Dir(α) ‖ Dir(β_y)) and KL(Dir(α′) ‖ Dir(1)).

    Averaged over ambiguous labels, the reverse divergence is minimal at one Dirichlet between the classes;
    the target of the forward divergence is a multimodal mixture, which no Dirichlet can represent.
    """

    name = "rkl-pn"
    paper = (
        "Malinin and Gales, Reverse KL-Divergence Training of Prior Networks: Improved Uncertainty and "
        "Adversarial Robustness, NeurIPS 2019"
    )
    published_training = (
        "SGD, batch size 128, gradients clipped at 10; not published for the compared rows"
    )
    caveats = "Needs OOD images in training; noise does not represent natural OOD images."

    def divergence(self, target: Dirichlet, predicted: Dirichlet) -> Tensor:
        """KL(predicted ‖ target), (B,)."""
        return predicted.kl(target)
