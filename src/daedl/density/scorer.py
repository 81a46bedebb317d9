"""Density and normaliser: the score by which DAEDL multiplies the logits."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from daedl.checks import Number
from daedl.density.fitting import RANK, Covariance, fit_gaussians, refit_gaussians
from daedl.density.gaussian import GaussianDensity
from daedl.density.leave_one_out import left_out_log_density
from daedl.density.normalizer import NORMALIZERS, Normalizer
from daedl.density.shrinkage import Shrinkage
from daedl.distributed import every, gather_across, sum_across
from daedl.names import look_up, strip_prefix

# Training samples used for the reference, and the fewest for the range of many classes (chosen).
_SAMPLE = 2048
# Training samples whose leave-one-out densities determine the range (chosen): with 1,000 classes of 2,048
# features, those of 1.28 million samples would take several times as long as the fit.
RANGE = 2**16
# Classes above which fewer are used (chosen). The density of each depends on the means of all classes, which
# pass through memory for every class: 10,000 classes of three samples would take several minutes.
MANY = 1000


class DensityScorer(nn.Module):
    """s = normalizer(log p(f)): log density of features and score in [0, 1].

    Attributes:
        reference: mean leave-one-out score of the training samples, an estimate of the mean score of new
            in-distribution samples; None for models saved without it.
        temperature: T, by which probabilities softmax(s z / T) are calibrated on held-out data.
    """

    def __init__(
        self,
        density: GaussianDensity,
        normalizer: Normalizer,
        reference: float | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        # Below the least that is fitted; logits must not overflow (chosen).
        Number(1e-6).require("temperature", temperature, "1.0")
        if reference is not None and not 0 <= reference <= 1:
            raise ValueError(
                f"the mean score of the training samples is {reference}; expected a score from 0 to 1: fit "
                "the density again"
            )
        self.density = density
        self.normalizer = normalizer
        self.reference = reference
        self.temperature = temperature

    @classmethod
    def fit(
        cls,
        features: Tensor,
        targets: Tensor,
        num_classes: int,
        covariance: Covariance = "full",
        shrinkage: Shrinkage = "auto",
        normalizer: str = "minmax",
        leave_one_out: bool = False,
        rank: int = RANK,
        normalize_features: bool = False,
        parts: Sequence[int] = (),
    ) -> "DensityScorer":
        """Fit to training features (N, H) with class indices (N,); see `daedl.density.fit_gaussians`.

        The normaliser is fitted to the log densities of the training samples, as in the paper, or with
        `leave_one_out` to their leave-one-out log densities. In distributed training every process passes
        its own samples, and all return the density of all samples.
        """
        look_up(NORMALIZERS, normalizer, "normalizer")  # rather than after the fit
        targets = targets.long()
        density = fit_gaussians(
            features, targets, num_classes, covariance, shrinkage, rank, normalize_features, parts
        )
        return cls.of_samples(density, features, targets, normalizer, leave_one_out)

    @classmethod
    def of_samples(
        cls,
        density: GaussianDensity,
        features: Tensor,
        targets: Tensor,
        normalizer: str = "half-quantile",
        leave_one_out: bool = True,
    ) -> "DensityScorer":
        """Fit the normaliser of `density` to training features (N, H) with class indices (N,)."""
        log_density, left_out = _log_densities(density, features, targets, leave_one_out)
        return cls.of(density, log_density, left_out, normalizer)

    @classmethod
    def of(
        cls, density: GaussianDensity, log_density: Tensor, left_out: Tensor, normalizer: str
    ) -> "DensityScorer":
        """Fit the normaliser to `log_density` (N,), and the reference to leave-one-out log densities (M,)."""
        fitted = look_up(NORMALIZERS, normalizer, "normalizer").fit(log_density)
        return cls(density, fitted, float(fitted(left_out).mean()))

    def merged(
        self,
        features: Tensor,
        targets: Tensor,
        shrinkage: Shrinkage = "auto",
        leave_one_out: bool = False,
    ) -> "DensityScorer":
        """Merge in more training features (N, H) with class indices (N,), which need not cover all classes.

        The density is that of all samples. The earlier samples are not stored, so their range is shifted
        by the change of their mean log density, which follows from their statistics.
        """
        before, targets = self.density.statistics, targets.long()
        density = refit_gaussians(self.density, features, targets, shrinkage)
        shift = density.mean_log_density(before) - self.density.mean_log_density(before)
        log_density, left_out = _log_densities(density, features, targets, leave_one_out)
        share = 1 - float(before.counts.sum() / density.counts.sum())
        merged = self.normalizer.shifted(shift).merged(log_density, share)
        reference = self.reference
        if reference is not None:
            shifted = self.normalizer.inverse(reference) + shift
            earlier = float(merged(torch.tensor(shifted, dtype=torch.float64)))
            reference = (1 - share) * earlier + share * float(merged(left_out).mean())
        return DensityScorer(density, merged, reference, self.temperature)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Log density (B,), float64, and score (B,) in the dtype of `features` (B, H)."""
        log_density = self.density(features)
        score = self.normalizer(log_density).to(features)
        if features.device.type == "mps":  # it has no float64
            log_density = log_density.float()
        return log_density.to(features.device), score

    def settings(self) -> dict[str, Any]:
        """JSON-serialisable settings that rebuild this scorer together with `state_dict()`."""
        normalizer = {"name": self.normalizer.name, **asdict(self.normalizer)}
        return {
            **self.density.settings(),
            "normalizer": normalizer,
            "reference": self.reference,
            "temperature": self.temperature,
        }

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> "DensityScorer":
        """Rebuild a scorer from its `state_dict()` and `settings()`."""
        density = GaussianDensity.restore(strip_prefix(tensors, "density."), settings)
        arguments = dict(settings["normalizer"])
        kind = look_up(NORMALIZERS, arguments.pop("name"), "normalizer")
        normalizer = msgspec.convert(arguments, kind)
        reference = msgspec.convert(settings.get("reference"), float | None)
        return cls(density, normalizer, reference, settings.get("temperature", 1.0))


def range_step(number: int, classes: int) -> int:
    """k: the range is computed from the leave-one-out densities of every k-th of `number` samples."""
    most = max(_SAMPLE, RANGE * MANY**2 // max(MANY, classes) ** 2)
    return max(1, number // most)


def _log_densities(
    density: GaussianDensity, features: Tensor, targets: Tensor, leave_one_out: bool
) -> tuple[Tensor, Tensor]:
    """Log densities of the training samples of all processes: for the range, and for the reference.

    The latter are leave-one-out densities, of a subset if there are many samples; for a range of in-sample
    densities a smaller one is sufficient.
    """
    number = int(sum_across(torch.tensor(len(features))))
    some = every(
        range_step(number, len(density.counts)) if leave_one_out else max(1, number // _SAMPLE)
    )
    left_out = gather_across(left_out_log_density(density, features[some], targets[some]))
    return left_out if leave_one_out else gather_across(density(features.cpu())), left_out
