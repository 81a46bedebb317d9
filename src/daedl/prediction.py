"""What every method returns: probabilities, and uncertainties that are larger when less is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from daedl.checks import require_finite
from daedl.dirichlet import Dirichlet
from daedl.selective import Thresholds, accepts

UNLIKE = "unlike the training data"


@dataclass(frozen=True)
class Prediction:
    """Predictions for B images over C classes.

    Attributes:
        probs: expected class probabilities (B, C).
        labels: predicted classes (B,).
        aleatoric: 1 − max_c probs (B,), or another measure of doubt between classes; larger = more
            uncertain.
        epistemic: −ln α₀ (B,), or another measure of missing knowledge; larger = more uncertain. None
            for a method that has none.
        log_alpha: log concentrations of the predicted Dirichlet (B, C), if the method predicts one.
        density_score: normalised log density of the features in [0, 1], (B,), if it has a density.
        log_density: log p(features) (B,), if it has a density; of PostNet ln N p, N the training samples.
        thresholds: which predictions to accept, if the classifier was calibrated.
        class_names: of the C classes, if the classifier has them.
    """

    probs: Tensor
    labels: Tensor
    aleatoric: Tensor
    epistemic: Tensor | None = None
    log_alpha: Tensor | None = None
    density_score: Tensor | None = None
    log_density: Tensor | None = None
    thresholds: Thresholds | None = None
    class_names: Sequence[str] | None = None

    @classmethod
    def from_probs(
        cls, probs: Tensor, epistemic: Tensor | None = None, aleatoric: Tensor | None = None
    ) -> "Prediction":
        """A prediction from class probabilities (B, C); `aleatoric` in place of 1 − max_c probs."""
        require_finite(probs, "probs")
        return cls(
            probs=probs,
            labels=probs.argmax(-1),
            aleatoric=_rest_of_max(probs) if aleatoric is None else aleatoric,
            epistemic=epistemic,
        )

    @classmethod
    def from_several(cls, probs: Tensor) -> "Prediction":
        """A prediction from K sets of class probabilities for each image (B, K, C).

        Their mean p̄, and as epistemic score how much they disagree, the mutual information
        H(p̄) − (1/K) Σ_k H(p_k) = (1/K) Σ_k Σ_c p_kc ln(p_kc / p̄_c).
        """
        require_finite(probs, "probs")
        # In float32 all that is within 1e-7 of 1 would tie.
        each = probs.double()
        top = each.argmax(-1, keepdim=True)
        each = each.scatter(-1, top, 1 - _rest_of_max(each).unsqueeze(-1))
        mean = each.mean(1)
        mutual = torch.xlogy(each, each) - torch.xlogy(each, mean.unsqueeze(1))
        epistemic = mutual.sum(-1).mean(1).clamp_min(0)
        return cls(
            probs=mean.to(probs),
            labels=mean.argmax(-1),
            aleatoric=_rest_of_max(mean).to(probs),
            epistemic=epistemic.to(probs),
        )

    @classmethod
    def from_dirichlet(
        cls,
        log_alpha: Tensor,
        labels: Tensor | None = None,
        density_score: Tensor | None = None,
        log_density: Tensor | None = None,
    ) -> "Prediction":
        """A prediction from log concentrations (B, C).

        The paper scores with max_c m_c and α₀, where larger means more certain; the sign is turned
        here and nowhere else. `labels` are given where all concentrations can tie.
        """
        require_finite(log_alpha, "log_alpha")
        dirichlet = Dirichlet(log_alpha)
        probs = dirichlet.mean
        return cls(
            probs=probs,
            labels=log_alpha.argmax(-1) if labels is None else labels,
            aleatoric=_rest_of_max(probs),
            epistemic=-dirichlet.log_precision,
            log_alpha=log_alpha,
            density_score=density_score,
            log_density=log_density,
        )

    @classmethod
    def cat(cls, parts: Sequence["Prediction"]) -> "Prediction":
        """Predictions of consecutive batches as one."""
        if not parts:
            raise ValueError("no predictions to join; expected at least one")
        joined: dict[str, Any] = {}
        for field in fields(cls):
            values = [getattr(part, field.name) for part in parts]
            tensors = isinstance(values[0], Tensor)
            joined[field.name] = torch.cat(values) if tensors else values[0]
        return cls(**joined)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def dirichlet(self) -> Dirichlet:
        """The predicted Dirichlet, for every other measure that it has in closed form."""
        if self.log_alpha is None:
            raise ValueError(
                "this method predicts probabilities, not a Dirichlet; use .probs, or a method such "
                "as 'edl' or 'daedl'"
            )
        return Dirichlet(self.log_alpha)

    @property
    def alpha(self) -> Tensor:
        """Concentrations α (B, C)."""
        return self.dirichlet.alpha

    @property
    def accept(self) -> Tensor:
        """Whether to act on each prediction (B,), or to hand it over to a person."""
        return accepts(self._limits, self.scores())

    @property
    def reason(self) -> list[str]:
        """Why each prediction should be handed over, "" where it is accepted.

        "unlike the training data" where the epistemic score is too large; else "between classes 3 and 8",
        those of the two largest probabilities, where the aleatoric one is. What is unlike the training
        data is between all classes, of which two would say nothing.
        """
        scores, limits = self.scores(), self._limits
        over = {name: ~accepts({name: limits[name]}, scores) for name in limits}
        unlike = over.get("epistemic", torch.zeros_like(self.labels, dtype=torch.bool)).tolist()
        values, pairs = self.probs.topk(min(2, self.probs.shape[1]))
        # Without any evidence all classes tie, and no two of them are what it is between.
        nowhere = (values[:, 0] == values[:, -1]).tolist()
        return [
            "" if accepted else UNLIKE if is_unlike or tied else self._between(pair)
            for accepted, is_unlike, tied, pair in zip(
                self.accept.tolist(), unlike, nowhere, pairs.tolist(), strict=True
            )
        ]

    @property
    def _limits(self) -> Mapping[str, float]:
        if self.thresholds is None:
            raise ValueError(
                "there are no thresholds to accept by; expected a calibrated classifier: call "
                "model.calibrate(loader, target=...) with held-out data first"
            )
        return self.thresholds.limits

    def _between(self, pair: Sequence[int]) -> str:
        names = [str(c) if self.class_names is None else self.class_names[c] for c in sorted(pair)]
        return f"between classes {' and '.join(names)}"

    def scores(self) -> dict[str, Tensor]:
        """Every uncertainty score that the method offers, by name, each (B,), larger = more uncertain."""
        scores = {"aleatoric": self.aleatoric}
        if self.epistemic is not None:
            scores["epistemic"] = self.epistemic
        if self.log_density is not None:
            scores["density"] = -self.log_density
        return scores


def _rest_of_max(probs: Tensor) -> Tensor:
    """1 − max_c probs (B,), as the sum of the others: 1 − p would tie all that rounds to 1."""
    return probs.scatter(-1, probs.argmax(-1, keepdim=True), 0.0).sum(-1)
