"""Deep ensembles of any method."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from daedl.methods.base import Method
from daedl.methods.ensembled import Ensembled, FittedMembers, members_of, split
from daedl.methods.softmax import Softmax
from daedl.networks import Network
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class Ensemble(Ensembled, Method):
    """p̄ = (1/M) Σ_m p_m over M networks of the same architecture with different initial weights.

    The epistemic score is the mean of the members' epistemic scores, if the member method has one; else
    the mutual information H(p̄) − (1/M) Σ_m H(p_m). Members are trained jointly on the same batches, each
    with its own loss; `daedl.ensemble` joins classifiers that were trained separately. In the paper the
    order of batches also differs between members.

    Attributes:
        member: method of all members; softmax as published.
        size: M.
    """

    name = "ensemble"
    title = "Deep ensemble"
    paper = (
        "Lakshminarayanan et al., Simple and Scalable Predictive Uncertainty Estimation using Deep "
        "Ensembles, NeurIPS 2017"
    )
    published_training = "that of the members, 5 times"
    extra_cost = "M trainings"
    caveats = "Training, model file and prediction cost M times as much as for one member."

    members_are = Method
    member: Method = Softmax()  # noqa: RUF009 (frozen)

    @property
    def needs_class_counts(self) -> bool:
        return self.member.needs_class_counts

    def set_class_counts(self, network: Network, counts: Tensor) -> None:
        for each in members_of(network):
            self.member.set_class_counts(each, counts)

    def predict_labels(self, outputs: Outputs) -> Tensor:
        """Labels of the mean probabilities, or a majority vote if these need a fit or several passes."""
        if not self.member.needs_fit and self.member.passes == 1:
            return self.predict(outputs, None).labels
        votes = [self.member.predict_labels(one) for one in split(outputs)]
        return _majority(votes, outputs.logits.shape[-1])

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        parts = fitted.parts if isinstance(fitted, FittedMembers) else [None] * self.size
        predictions = [
            self.member.predict(one, part) for one, part in zip(split(outputs), parts, strict=True)
        ]
        joined = Prediction.from_several(torch.stack([each.probs for each in predictions], 1))
        # Without evidence all classes tie; the label is then a majority vote.
        top = joined.probs.topk(2).values
        voted = _majority([each.labels for each in predictions], joined.probs.shape[1])
        joined = replace(joined, labels=torch.where(top[:, 0] == top[:, 1], voted, joined.labels))
        own = [each.epistemic for each in predictions if each.epistemic is not None]
        return replace(joined, epistemic=torch.stack(own).mean(0)) if own else joined


def _majority(votes: Sequence[Tensor], num_classes: int) -> Tensor:
    """Majority label (B,) of several labels (B,); the smallest index if there is a tie."""
    return F.one_hot(torch.stack(list(votes)), num_classes).sum(0).argmax(-1)
