"""Prior networks with the reverse KL divergence."""

from dataclasses import dataclass

from torch import Tensor

from daedl.dirichlet import Dirichlet
from daedl.methods.kl_pn import KLPN


@dataclass(frozen=True, kw_only=True)
class RKLPN(KLPN):
    """As KL-PN with the arguments of both divergences swapped: KL(Dir(α) ‖ Dir(β_y)) and so on.

    Averaged over ambiguous labels the reverse divergence asks for one Dirichlet between the classes, the
    forward one for a mixture of several peaks that none can be.
    """

    name = "rkl-pn"
    paper = (
        "Malinin and Gales, Reverse KL-Divergence Training of Prior Networks: Improved Uncertainty and "
        "Adversarial Robustness, NeurIPS 2019"
    )
    published_training = (
        "SGD, batches of 128, gradients clipped at 10; of the compared rows unpublished"
    )
    caveats = (
        "Needs images to call unknown in training; with noise alone it learns little of those that look "
        "like images."
    )

    def divergence(self, wanted: Dirichlet, predicted: Dirichlet) -> Tensor:
        """KL(predicted ‖ wanted), (B,)."""
        return predicted.kl(wanted)
