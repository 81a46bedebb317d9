"""Predictions: class probabilities and uncertainty scores, in the same form for every method."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from daedl.checks import require_finite
from daedl.dirichlet import Dirichlet
from daedl.names import names_or_numbers
from daedl.predicted import UNLIKE, Predicted, finite_list
from daedl.selective import Thresholds

# The largest exponent whose exponential is finite in float64.
MAX_EXPONENT = 709.0
# Log concentrations below this count as no evidence: all α are within 1% of 1 (chosen).
NO_EVIDENCE = 0.01


@dataclass(frozen=True, eq=False)
class Prediction(Predicted):
    """Predictions for B inputs over C classes.

    `p[i]`, `p[2:5]` and `p[mask]` select inputs; `p.to(...)` moves all tensors. `p.numpy()`, `p.to_dict()`,
    `p.records()` and `p.to_frame()` use the same names as the commands, the server and ONNX graphs.

    Attributes:
        probs: expected class probabilities (B, C).
        labels: predicted classes (B,).
        aleatoric: uncertainty between classes (B,), usually 1 − max_c probs; larger = more uncertain.
        epistemic: uncertainty due to lack of evidence (B,), usually −ln α₀; larger = more uncertain. None
            if the method does not estimate it.
        log_alpha: log concentrations of the predicted Dirichlet (B, C), if the method predicts one. Its mean
            is `probs`, unless the method calibrates these by a temperature.
        density_score: log density of the features, normalised to [0, 1], (B,), if the method has a density.
        log_density: log p(features) (B,), if the method has a density; ln (N p) with N training samples for
            PostNet.
        thresholds: limits for accepting predictions, if the classifier was calibrated.
        class_names: names of the C classes, if the classifier has them.
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
        """Builds a prediction from class probabilities (B, C); `aleatoric` defaults to 1 − max_c probs."""
        require_finite(probs, "probs")
        return cls(
            probs=probs,
            labels=probs.argmax(-1),
            aleatoric=_rest_of_max(probs) if aleatoric is None else aleatoric,
            epistemic=epistemic,
        )

    @classmethod
    def from_several(cls, probs: Tensor) -> "Prediction":
        """Builds a prediction from K class distributions per input (B, K, C).

        The probabilities are the mean p̄; the epistemic score is the mutual information
        H(p̄) − (1/K) Σ_k H(p_k) = (1/K) Σ_k Σ_c p_kc ln(p_kc / p̄_c).
        """
        require_finite(probs, "probs")
        # In float32, probabilities within 1e-7 of 1 would tie.
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
        temperature: float = 1.0,
    ) -> "Prediction":
        """Builds a prediction from log concentrations (B, C).

        The paper's scores max_c m_c and α₀ are confidences; only this function changes their sign. `labels`
        are required where all concentrations can tie. Probabilities are those of α^(1/T), T the
        `temperature`; the epistemic score is that of α.
        """
        require_finite(log_alpha, "log_alpha")
        dirichlet = Dirichlet(log_alpha)
        probs = dirichlet.mean if temperature == 1 else Dirichlet(log_alpha / temperature).mean
        return cls(
            probs=probs,
            labels=log_alpha.argmax(-1) if labels is None else labels,
            aleatoric=_rest_of_max(probs),
            epistemic=-dirichlet.log_precision,
            log_alpha=log_alpha,
            density_score=density_score,
            log_density=log_density,
        )

    def columns(self) -> dict[str, Tensor]:
        """Returns the tensors that the method provides, by their public names.

            probs (B, C)      label (B,)          aleatoric (B,)     epistemic (B,)
            log_alpha (B, C)  alpha0 (B,)         density_score (B,) log_density (B,)
            accept (B,), if the classifier was calibrated

        alpha0 is the sum of the concentrations.
        """
        named = {
            "label": self.labels,
            "probs": self.probs,
            "aleatoric": self.aleatoric,
            "epistemic": self.epistemic,
            "log_alpha": self.log_alpha,
            "alpha0": None if self.log_alpha is None else self.dirichlet.precision,
            "density_score": self.density_score,
            "log_density": self.log_density,
            "accept": None if self.thresholds is None else self.accept,
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def to_dict(self) -> dict[str, list[Any]]:
        """Returns `columns()` as JSON-able lists, with `class_name` and `reason` if they are available."""
        lists: dict[str, list[Any]] = {name: each.tolist() for name, each in self.columns().items()}
        if self.class_names is not None:
            lists["class_name"] = [self.class_names[label] for label in lists["label"]]
        if self.thresholds is not None:
            lists["reason"] = self.reason
        return lists

    def table(self) -> dict[str, NDArray[Any]]:
        """Returns arrays by the names of `records`; `probs` and `log_alpha` are (B, C), the others (B,)."""
        columns = self.columns()
        if self.log_alpha is not None:  # in float64, to avoid overflow
            log_alpha0 = self.dirichlet.log_precision.double()
            columns["alpha0"] = log_alpha0.clamp_max(MAX_EXPONENT).exp()
        columns["probability"] = self.probs.gather(1, self.labels[:, None])[:, 0]
        # NumPy has no bfloat16.
        arrays = {
            name: (each.float() if each.dtype == torch.bfloat16 else each).cpu().numpy()
            for name, each in columns.items()
        }
        label = arrays.pop("label")
        named = np.array(names_or_numbers(self.class_names, self.probs.shape[1]), dtype=object)
        first = {"label": label, "class_name": named[label], "probability": arrays["probability"]}
        last = {} if self.thresholds is None else {"reason": np.array(self.reason, object)}
        return first | arrays | last

    def records(self) -> list[dict[str, Any]]:
        """Returns one JSON-able record per input.

        Each has `label`, `class_name`, `probability` (of that class), the scores of `columns()`, `accept` and
        `reason` if the classifier was calibrated, and `probs` by class name. NaN and infinity become None.
        """
        names = names_or_numbers(self.class_names, self.probs.shape[1])
        columns = {
            name: finite_list(torch.from_numpy(values))
            if values.dtype.kind == "f"
            else values.tolist()
            for name, values in self.table().items()
            if values.ndim == 1
        }
        return [
            {**dict(zip(columns, row, strict=True)), "probs": dict(zip(names, probs, strict=True))}
            for *row, probs in zip(*columns.values(), self.probs.tolist(), strict=True)
        ]

    @property
    def dirichlet(self) -> Dirichlet:
        """The predicted Dirichlet distribution."""
        if self.log_alpha is None:
            raise ValueError(
                "this method predicts probabilities, not a Dirichlet; expected a method such as 'edl' or "
                "'daedl': use .probs, or train another method"
            )
        return Dirichlet(self.log_alpha)

    @property
    def alpha(self) -> Tensor:
        """Concentrations α (B, C)."""
        return self.dirichlet.alpha

    @property
    def alpha0(self) -> Tensor:
        """Precision α₀ = Σ_c α_c (B,)."""
        return self.dirichlet.precision

    @property
    def reason(self) -> list[str]:
        """Why each prediction is rejected; "" if it is accepted.

        "unlike the training data" if the epistemic score or the density exceeds its limit; otherwise, for
        the aleatoric score, "between classes 3 and 8", the two most probable classes. The first reason has
        priority, because the most probable classes are not informative for OOD inputs.
        """
        unlike = self._exceeded("epistemic", "density")
        values, pairs = self.probs.topk(min(2, self.probs.shape[1]))
        # Without evidence all classes tie, so that no pair of classes can be named.
        ties = values[:, 0] == values[:, -1]
        if self.log_alpha is not None:
            ties |= self.log_alpha.abs().amax(-1) < NO_EVIDENCE
        return [
            "" if accepted else UNLIKE if is_unlike or tied else self._between(pair)
            for accepted, is_unlike, tied, pair in zip(
                self.accept.tolist(), unlike, ties.tolist(), pairs.tolist(), strict=True
            )
        ]

    def _between(self, pair: Sequence[int]) -> str:
        names = [str(c) if self.class_names is None else self.class_names[c] for c in sorted(pair)]
        return f"between classes {' and '.join(names)}"


def _rest_of_max(probs: Tensor) -> Tensor:
    """Returns 1 − max_c probs (B,) as the sum of the other classes, which keeps values below rounding."""
    return probs.scatter(-1, probs.argmax(-1, keepdim=True), 0.0).sum(-1)
