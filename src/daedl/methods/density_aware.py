"""Density-aware prediction, shared by `DAEDL` and `Retrofit`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, cast

from torch import Tensor, nn

from daedl.density import NORMALIZERS, DensityScorer
from daedl.density.fitting import RANK, Covariance, require_density_settings
from daedl.density.shrinkage import Shrinkage
from daedl.distributed import gather_across
from daedl.methods.base import Method
from daedl.methods.post_hoc import gather_rows
from daedl.methods.temperature import best_temperature
from daedl.names import look_up
from daedl.networks import Network
from daedl.outputs import Outputs
from daedl.prediction import Prediction

# Covariance of features of embeddings. With 120 classes of 100 sentences each, the density alone detects 30
# left-out classes with an AUROC of 94.6 if tied, and 88.1 with the largest left-out density (one split of
# CLINC150's training data; features divided by their norms).
TIED: Covariance = "tied"


@dataclass(frozen=True, kw_only=True)
class DensityAware:
    """Predicts α = exp(s(f) · z), s the normalised log density of the features.

    A mixin, listed before the method that defines the training. It is not a `Method` itself, so that
    the defaults of that method's settings hold.

    Attributes:
        covariance: "full" as in the paper, "tied", "diagonal", "low-rank", "block", "tied-low-rank" for many
            classes, or "auto", which selects one by the leave-one-out density of the training samples; see
            `daedl.density.fit_gaussians`. For embeddings "auto" is "tied", which fits few samples per class.
        shrinkage: see `daedl.density.GaussianDensity.fit`.
        normalizer: "minmax" as in the paper; "smooth-quantile", robust to training outliers; or
            "half-quantile", which also changes in-distribution probabilities less.
        leave_one_out: compute the normaliser's range from leave-one-out densities of the training
            samples. The paper uses in-sample densities; with few samples and many features, most new
            in-distribution samples then fall below the range.
        rank: directions per class of a low-rank covariance; at most as many as are affordable.
        normalize_features: divide features, or each part of features of several blocks, by their L2
            norms first (Müller and Hein, Mahalanobis++, ICML 2025). "auto" does so unless inputs are
            vectors or embeddings. Features of vectors grow without limit with the input, which the norm
            shows; embeddings are normalised themselves.
        temperature: calibrate probabilities softmax(s z / T) by one temperature T, fitted to held-out data.
            The order of the classes and the epistemic score do not depend on T.
    """

    name: ClassVar[str]
    state: ClassVar[Any] = DensityScorer
    since: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"rank": RANK, "normalize_features": False, "temperature": False}
    )

    covariance: Covariance = "auto"
    shrinkage: Shrinkage = "auto"
    normalizer: str = "half-quantile"
    leave_one_out: bool = True
    rank: int = RANK
    normalize_features: bool | Literal["auto"] = "auto"
    temperature: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        # Invalid values are rejected here rather than after training.
        require_density_settings(self.covariance, self.shrinkage, self.rank)
        look_up(NORMALIZERS, self.normalizer, "normalizer")
        if not (isinstance(self.normalize_features, bool) or self.normalize_features == "auto"):
            raise ValueError(
                f"normalize_features is {self.normalize_features!r}; expected True, False or 'auto'"
            )

    @property
    def needs_held_out(self) -> bool:
        """Whether a temperature is fitted."""
        return self.temperature

    def resolved(self, network: Network) -> Method:
        """Replace settings that are "auto" by their values for `network`."""
        method = cast(Method, super().resolved(network))  # type: ignore[misc]
        embeddings, changed = network.plain.takes_embeddings, dict[str, Any]()
        if self.normalize_features == "auto":
            changed["normalize_features"] = not embeddings and len(network.input_shape) != 1
        if self.covariance == "auto" and embeddings:
            changed["covariance"] = TIED
        return replace(method, **changed)

    def fit(self, outputs: Outputs, targets: Tensor) -> DensityScorer:
        """Fit the density and the normaliser to the training features."""
        return DensityScorer.fit(
            outputs.features,
            targets,
            outputs.logits.shape[-1],
            self.covariance,
            self.shrinkage,
            self.normalizer,
            self.leave_one_out,
            self.rank,
            self.normalize_features is True,
            outputs.parts,
        )

    def fit_held_out(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> nn.Module:
        """Widen the range of the normaliser, and fit T, the temperature of softmax(s z / T)."""
        scorer = cast(DensityScorer, fitted)
        scorer.normalizer = scorer.normalizer.widened(
            gather_across(scorer(outputs.features)[0].cpu())
        )
        if self.temperature:
            logits = scorer(outputs.features)[1].to(outputs.logits)[:, None] * outputs.logits
            # Targets are on the CPU, which has float64 unlike some devices.
            logits, targets = gather_rows(logits.cpu()), gather_across(targets)
            # Half an error more than were seen, as under Jeffreys' prior: few samples without an error would
            # put T at its lower bound.
            scorer.temperature = best_temperature(logits, targets, 0.5 / (len(targets) + 1))
        return scorer

    def refit(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> DensityScorer:
        """Merge more training features into the density, and update the normaliser."""
        scorer = cast(DensityScorer, fitted)
        return scorer.merged(outputs.features, targets, self.shrinkage, self.leave_one_out)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> Prediction:
        """Dirichlet with α = exp(s z); density and logits come from the same forward pass."""
        scorer = cast(DensityScorer, cast(Method, self).require_fitted(fitted))
        log_density, score = scorer(outputs.features)
        score = score.to(outputs.logits.dtype)
        # At s = 0 all α are equal, so labels are computed from the logits.
        return Prediction.from_dirichlet(
            score[:, None] * outputs.logits,
            labels=outputs.logits.argmax(-1),
            density_score=score,
            log_density=log_density,
            temperature=scorer.temperature,
        )
