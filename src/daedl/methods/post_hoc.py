"""Base class and helpers of methods that score a trained softmax network."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from daedl.checks import NotFittedError
from daedl.distributed import gather_across
from daedl.methods.softmax import Softmax
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class PostHoc(Softmax):
    """Abstract base of methods trained as softmax, which can share one network and its outputs."""

    published_training = "ordinary softmax training"

    def training_method(self) -> Softmax:
        """Softmax with the same spectral normalisation and reduction."""
        return Softmax(**{each.name: getattr(self, each.name) for each in fields(Softmax)})

    def require_fitted(self, fitted: nn.Module | None) -> nn.Module:
        """Return `fitted`; raise if it is None."""
        if fitted is None:
            loader = "train_loader" if self.fit_split == "training" else "val_loader"
            raise NotFittedError(
                f"{self.name} is not fitted to {self.fit_split} data; expected a fit before "
                f"prediction: call daedl.fit(model, ...) to train, or model.fit_post_hoc({loader}) if "
                "the network is already trained"
            )
        return fitted


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


def as_float_like(scores: Tensor, logits: Tensor) -> Tensor:
    """Move `scores` to the device and dtype of `logits`, but at least float32: they may overflow half."""
    return scores.to(logits.device, torch.promote_types(logits.dtype, torch.float32))
