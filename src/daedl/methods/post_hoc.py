"""What methods share that leave training alone: they read an ordinary softmax network in another way."""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn

from daedl.checks import NotFittedError
from daedl.distributed import gather_across
from daedl.methods.softmax import Softmax
from daedl.prediction import Prediction


@dataclass(frozen=True, kw_only=True)
class PostHoc(Softmax):
    """Trained as softmax, whose network and outputs all of these share; not a method itself."""

    published_training = "none of its own: an ordinary softmax network"

    def training_method(self) -> Softmax:
        """Softmax with the same spectral normalisation and reduction."""
        return Softmax(**{each.name: getattr(self, each.name) for each in fields(Softmax)})

    def require_fitted(self, fitted: nn.Module | None) -> nn.Module:
        """What `fit` returned; raise if that has not been called yet."""
        if fitted is None:
            loader = "train_loader" if self.fit_split == "training" else "val_loader"
            raise NotFittedError(
                f"{self.name} is not fitted to {self.fit_split} data yet; expected that before "
                f"prediction: call daedl.fit(model, ...) to train, or model.fit_post_hoc({loader}) for "
                "a network that is trained already"
            )
        return fitted


def tempered(logits: Tensor, temperature: Tensor) -> Prediction:
    """The prediction softmax(z / T) for logits (B, C) and temperatures (B,); the class is that of z.

    The largest logit is taken off first, so that dividing by a small T can't overflow.
    """
    below = logits - logits.amax(-1, keepdim=True)
    probs = (below / temperature.to(logits)[:, None]).softmax(-1)
    # A large T can round all classes to a tie, so the class is taken from the logits.
    return replace(Prediction.from_probs(probs), labels=logits.argmax(-1))


def gather_rows(rows: Tensor) -> Tensor:
    """Every process's `rows` (N_r, H) one after the other, (sum of N_r, H), in every process."""
    return gather_across(rows.flatten()).view(-1, rows.shape[1])


def beside(scores: Tensor, logits: Tensor) -> Tensor:
    """`scores` on the device and in the type of `logits`, but not in half precision: they may exceed it."""
    return scores.to(logits.device, torch.promote_types(logits.dtype, torch.float32))
