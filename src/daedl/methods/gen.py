"""Generalised entropy score."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from daedl.checks import Count, Positive
from daedl.methods.post_hoc import PostHoc
from daedl.outputs import Outputs


@dataclass(frozen=True, kw_only=True)
class GEN(PostHoc):
    """Epistemic: Σ_c p_c^γ (1 − p_c)^γ over the M largest p = softmax(z).

    Attributes:
        gamma: γ; published.
        classes: M, at most the number of classes; published as 100 for the 1,000 of ImageNet.
    """

    name = "gen"
    paper = "Liu et al., GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection, CVPR 2023"
    caveats = (
        "Depends on the probabilities only: where the network is confident far from the training data, "
        "the score is low. Published combinations with scores of the features are omitted."
    )

    gamma: Positive = 0.1
    classes: Count = 100

    def score(self, outputs: Outputs, fitted: nn.Module | None) -> Tensor:
        log_p = outputs.logits.log_softmax(-1).topk(outputs.logits.shape[-1]).values
        # 1 − p of the largest p is the sum of the others: with a small γ its rounding to 0 would matter.
        others = log_p[:, 1:]
        log_rest = torch.cat([others.logsumexp(-1, keepdim=True), (-others.exp()).log1p()], -1)
        return (self.gamma * (log_p + log_rest))[:, : self.classes].exp().sum(-1)
