"""Density aware evidential regression."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from daedl.checks import Count, NonNegative, Number, Positive
from daedl.density import NORMALIZERS, DensityScorer
from daedl.density.fitting import RANK, Covariance, require_density_settings
from daedl.density.shrinkage import Shrinkage
from daedl.distributed import gather_across
from daedl.methods.post_hoc import gather_rows
from daedl.methods.regression.base import RegressionMethod
from daedl.methods.regression.beta_nll import BetaNLL
from daedl.methods.regression.evidence import Evidence, fit_evidence
from daedl.methods.regression.evidential import EvidentialRegression
from daedl.names import look_up, strip_prefix
from daedl.nig import NIG
from daedl.outputs import Outputs
from daedl.regression_prediction import RegressionPrediction
from daedl.spectral import SpectralNorm


class FittedDensity(nn.Module):
    """The density of the features, the marginal distribution of the targets, and the size of the evidence.

    Attributes:
        scorer: density and normaliser.
        mean, variance: of the training targets (D,).
        edges: inner limits of the bins of the targets, (bins − 1,).
        evidence: see `Evidence`.
    """

    mean: Tensor
    variance: Tensor
    edges: Tensor

    def __init__(
        self,
        scorer: DensityScorer,
        mean: Tensor,
        variance: Tensor,
        edges: Tensor,
        evidence: Evidence,
    ) -> None:
        super().__init__()
        self.scorer, self.evidence = scorer, evidence
        for name, value in (("mean", mean), ("variance", variance), ("edges", edges)):
            self.register_buffer(name, value)

    def settings(self) -> dict[str, Any]:
        """JSON-serialisable settings that rebuild this state together with `state_dict()`."""
        return {"scorer": self.scorer.settings(), **self.evidence.settings()}


@dataclass(frozen=True, kw_only=True)
class DAER(RegressionMethod):
    """The marginal NIG of the training targets, updated with s n observations of the network's prediction.

    The network predicts a mean γ and a variance σ², trained with β-NLL. s in [0, 1] is the normalised log
    density of its features, as in DAEDL, n the number of observations that the prediction is worth where
    s is 1, and w = (1 − s)^κ the weight of the marginal:

        ν' = w ν₀ + s n    γ' = (w ν₀ μ₀ + s n γ) / ν'    α' = w α₀ + s n / 2
        β' = w β₀ + s n τ σ² / 2 + w ν₀ s n (γ − μ₀)² / (2ν')

    Far from the training data s tends to 0 and the prediction to the marginal of the training targets; 1/ν',
    the epistemic variance relative to the noise, grows with the distance (docs/regression.md). n, κ and the
    factor τ of the variance maximise the likelihood of held-out data. With κ = 0 the update is that of a
    constant prior, which contradicts predictions far from its mean also where s is 1, and widens them.

    Attributes:
        objective: "beta-nll", or "evidential", the loss of deep evidential regression, whose ν, α and β are
            then the evidence.
        beta: β of the β-NLL.
        prior_nu, prior_alpha: ν₀ and α₀ of the marginal; β₀ follows from the variance of the targets.
        evidence, noise, sharpness: n, τ and κ before they are fitted to held-out data, or without such data
            (chosen); κ = 0 is kept.
        bins: Gaussians, one per bin of equally many targets, fewer where targets repeat. One Gaussian covers
            the gaps between groups of features, such as those of a grid of inputs (docs/regression.md).
        covariance, shrinkage, normalizer, leave_one_out, rank: see `DensityAware`.
    """

    name = "daer"
    title = "DAER"
    paper = "this library, after Yoon and Kim, ICML 2024 (future work)"
    extra_cost = "spectral normalisation; one pass over the training data for the density"
    caveats = (
        "In the limit intervals are those of the training targets, which do not cover targets beyond them. "
        "The density uses features: directions that the network ignores have no effect."
    )
    has_epistemic = True
    state = FittedDensity

    spectral: SpectralNorm | Literal["auto"] | None = "auto"
    objective: Literal["beta-nll", "evidential"] = "beta-nll"
    beta: float = 0.5
    prior_nu: Positive = 1.0
    prior_alpha: float = 2.0
    sharpness: NonNegative = 2.0
    evidence: Positive = 32.0
    noise: Positive = 1.0
    bins: Count = 5
    covariance: Covariance = "auto"
    shrinkage: Shrinkage = "auto"
    normalizer: str = "half-quantile"
    leave_one_out: bool = True
    rank: int = RANK

    def __post_init__(self) -> None:
        super().__post_init__()
        require_density_settings(self.covariance, self.shrinkage, self.rank)
        look_up(NORMALIZERS, self.normalizer, "normalizer")
        Number(1, above=True).require("prior_alpha", self.prior_alpha, "2.0")
        self.training_method()  # validates beta

    def training_method(self) -> BetaNLL | EvidentialRegression:
        """The method that trains the network: the density is fitted after training."""
        return self._trained_by

    @cached_property
    def _trained_by(self) -> BetaNLL | EvidentialRegression:
        # Once: every step of a training needs it, and its settings are validated.
        kind = BetaNLL if self.objective == "beta-nll" else EvidentialRegression
        own = {each.name for each in fields(self)}
        return kind(
            **{each.name: getattr(self, each.name) for each in fields(kind) if each.name in own}
        )

    @property
    def rows(self) -> int:
        return self.training_method().rows

    def loss(self, outputs: Outputs, targets: Tensor, epoch: float) -> Tensor:
        return self.training_method().loss(outputs, targets, epoch)

    def nig(self, outputs: Outputs) -> NIG:
        return self.training_method().nig(outputs)

    def fit(self, outputs: Outputs, targets: Tensor) -> FittedDensity:
        """Fit the density of the features, and the marginal of the targets."""
        every = gather_across(targets)
        edges = self._edges(every.mean(1))
        scorer = DensityScorer.fit(
            outputs.features,
            self._bin(targets, edges),
            len(edges) + 1,
            self.covariance,
            self.shrinkage,
            self.normalizer,
            self.leave_one_out,
            self.rank,
            parts=outputs.parts,
        )
        evidence = Evidence(
            *((each,) * every.shape[1] for each in (self.evidence, self.noise, self.sharpness))
        )
        return FittedDensity(scorer, every.mean(0), every.var(0, unbiased=False), edges, evidence)

    def fit_held_out(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> nn.Module:
        """Fit the size of the evidence, the factor of the variance and the weight of the marginal."""
        state = cast(FittedDensity, fitted)
        log_score = self._log_score(state.scorer(outputs.features)[1], outputs)
        unit = self._unit_evidence(outputs)
        parts = [gather_rows(each.cpu()) for each in (*vars(unit).values(), log_score)]
        state.evidence = fit_evidence(
            self.prior(state, parts[0]),
            NIG(*parts[:4]),
            parts[4],
            gather_across(targets),
            state.evidence,
        )
        return state

    def refit(self, fitted: nn.Module, outputs: Outputs, targets: Tensor) -> FittedDensity:
        """Merge more training features into the density; the marginal remains."""
        state = cast(FittedDensity, fitted)
        bins = self._bin(targets, state.edges.cpu())
        scorer = state.scorer.merged(outputs.features, bins, self.shrinkage, self.leave_one_out)
        return FittedDensity(scorer, state.mean, state.variance, state.edges, state.evidence)

    def predict(self, outputs: Outputs, fitted: nn.Module | None) -> RegressionPrediction:
        """Posterior of the marginal; density and evidence come from the same forward pass."""
        state = cast(FittedDensity, self.require_fitted(fitted))
        log_density, score = state.scorer(outputs.features)
        unit = self._unit_evidence(outputs)
        log_score = self._log_score(score, outputs)
        posterior = state.evidence.posterior(self.prior(state, unit.gamma), unit, log_score)
        return RegressionPrediction.of(
            posterior, density_score=score.to(unit.gamma), log_density=log_density
        )

    def prior(self, state: FittedDensity, like: Tensor) -> NIG:
        """The marginal NIG(μ₀, ν₀, α₀, β₀), whose predicted variance is that of the training targets (D,).

        β₀ (1 + ν₀) / (ν₀ (α₀ − 1)) = v.
        """
        mean, variance = state.mean.to(like), state.variance.to(like)
        nu, alpha = (torch.full_like(mean, value) for value in (self.prior_nu, self.prior_alpha))
        beta = variance * (alpha - 1) * nu / (1 + nu)
        return NIG(mean, nu.log(), alpha.log(), beta.log())

    def restore(self, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> FittedDensity:
        scorer = DensityScorer.restore(strip_prefix(tensors, "scorer."), settings["scorer"])
        return FittedDensity(
            scorer,
            tensors["mean"],
            tensors["variance"],
            tensors["edges"],
            Evidence.restore(settings),
        )

    def _unit_evidence(self, outputs: Outputs) -> NIG:
        """Evidence of one observation, or of deep evidential regression."""
        method = self.training_method()
        if isinstance(method, EvidentialRegression):
            return method.nig(outputs)
        return NIG.evidence(*method.parameters(outputs), 0.0)

    def _log_score(self, score: Tensor, outputs: Outputs) -> Tensor:
        """ln s, (B, 1)."""
        return score.to(outputs.logits).log()[:, None]

    def _edges(self, targets: Tensor) -> Tensor:
        """Inner limits of bins of about equally many targets (N,); equal targets share a bin."""
        levels = torch.linspace(0, 1, self.bins + 1)[1:-1].to(targets)
        quantiles = torch.quantile(targets[:1_000_000], levels, interpolation="lower")
        edges: Tensor = torch.unique(quantiles)
        return edges[edges < targets.max()]

    def _bin(self, targets: Tensor, edges: Tensor) -> Tensor:
        return torch.bucketize(targets.mean(1), edges.to(targets))
