"""Base class and helpers of methods that score a trained softmax network."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from daedl.distributed import gather_across
from daedl.methods.softmax import Softmax
from daedl.outputs import Outputs
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class PostHoc(Softmax):
    """Abstract base of methods trained as softmax, which can share one network and its outputs."""

    published_training = "ordinary softmax training"

    def training_method(self) -> Softmax:
        """Softmax with the same spectral normalisation and reduction."""
        return Softmax(**{each.name: getattr(self, each.name) for each in fields(Softmax)})

    def score(self, outputs: Outputs, fitted: nn.Module | None) -> Tensor:
        """Epistemic score (B,); `fitted` is not None if the method needs a fit."""
        raise NotImplementedError

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Probabilities softmax(z) with the epistemic score."""
        if self.needs_fit:
            self.require_fitted(fitted)
        # At least float32, because scores may overflow half precision.
        dtype = torch.promote_types(outputs.logits.dtype, torch.float32)
        score = self.score(outputs, fitted).to(outputs.logits.device, dtype)
        return Prediction.from_probs(outputs.logits.softmax(-1), score)


def tempered(logits: Tensor, temperature: Tensor) -> Prediction:
    """Prediction softmax(z / T) from logits (B, C) and temperatures (B,).

    The maximum is subtracted first, so that dividing by a small T can't overflow.
    """
    shifted = logits - logits.amax(-1, keepdim=True)
    probs = (shifted / temperature.to(logits)[:, None]).softmax(-1)
    # With a large T all probabilities can round to the same value: labels come from the logits.
    return replace(Prediction.from_probs(probs), labels=logits.argmax(-1))


def gather_rows(rows: Tensor) -> Tensor:
    """Concatenate the `rows` (N_r, H) of all processes to (sum of N_r, H), in every process."""
    return gather_across(rows.flatten()).view(-1, rows.shape[1])
