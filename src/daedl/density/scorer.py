"""A density with its normaliser: what DAEDL fits after training and multiplies the logits by."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from daedl.density import normalizer as normalizers
from daedl.density.gaussian import GaussianDensity
from daedl.density.leave_one_out import left_out_log_density
from daedl.density.normalizer import Normalizer
from daedl.density.shrinkage import Shrinkage
from daedl.density.statistics import ClassStatistics, Structure
from daedl.distributed import gather_across

# float32 is used for scoring where it agrees with float64 this closely on training features; it is
# twice as fast (chosen: far below any difference in score that matters).
FLOAT32_AGREEMENT = 1e-5
# Training features on which the agreement is measured.
_SAMPLE = 2048


class DensityScorer(nn.Module):
    """s = normalizer(log p(f)): the log density of features and its score in [0, 1].

    Attributes:
        reference: the mean score of training samples, each left out of its own fit, so that new ones like
            them have the same; None where nobody kept it.
    """

    def __init__(
        self, density: GaussianDensity, normalizer: Normalizer, reference: float | None = None
    ) -> None:
        super().__init__()
        self.density = density
        self.normalizer = normalizer
        self.reference = reference

    @classmethod
    def fit(
        cls,
        features: Tensor,
        targets: Tensor,
        num_classes: int,
        covariance: Structure = "full",
        shrinkage: Shrinkage = "auto",
        normalizer: str = "minmax",
        leave_one_out: bool = False,
    ) -> "DensityScorer":
        """Fit to training features (N, H) with class indices (N,).

        The range of the normaliser comes from the training samples' log densities, as in the paper, or
        with `leave_one_out` from those that they would have had if they had not been in the fit. In
        several processes each passes its own samples, and all end with the density of all.
        """
        kind, targets = normalizers.build(normalizer), targets.long()
        density = fit_gaussians(features, targets, num_classes, covariance, shrinkage)
        log_density = _training_log_density(density, features, targets, leave_one_out)
        normalizing = kind.fit(log_density)
        return cls(density, normalizing, _reference(density, normalizing, features, targets))

    def merged(
        self,
        features: Tensor,
        targets: Tensor,
        shrinkage: Shrinkage = "auto",
        leave_one_out: bool = False,
    ) -> "DensityScorer":
        """Fit to more training features (N, H) with class indices (N,) too; classes may be missing there.

        The density is that of all samples. The earlier ones are gone, so that their range is moved by
        how much their mean log density changed, which their statistics tell.
        """
        before, targets = self.density.statistics, targets.long()
        density = refit_gaussians(self.density, features, targets, shrinkage)
        shift = density.mean_log_density(before) - self.density.mean_log_density(before)
        log_density = _training_log_density(density, features, targets, leave_one_out)
        share = 1 - float(before.counts.sum() / density.counts.sum())
        joined = self.normalizer.shifted(shift).merged(log_density, share)
        reference = self.reference
        if reference is not None:
            moved = self.normalizer.inverse(reference) + shift
            earlier = float(joined(torch.tensor(moved, dtype=torch.float64)))
            added_to = _reference(density, joined, features, targets)
            reference = (1 - share) * earlier + share * added_to
        return DensityScorer(density, joined, reference)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Log density (B,), float64, and score (B,) in the type of `features` (B, H), beside them."""
        log_density = self.density(features)
        score = self.normalizer(log_density).to(features)
        if features.device.type == "mps":  # it has no float64
            log_density = log_density.float()
        return log_density.to(features.device), score

    def settings(self) -> dict[str, Any]:
        """What, beside the tensors of `state_dict()`, rebuilds this scorer; JSON-able."""
        normalizer = {"name": self.normalizer.name, **asdict(self.normalizer)}
        return {
            **self.density.settings(),
            "normalizer": normalizer,
            "reference": self.reference,
        }

    @classmethod
    def restore(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> "DensityScorer":
        """The scorer that gave this `state_dict()` and these `settings()`."""
        of = {name.removeprefix("density."): tensor for name, tensor in tensors.items()}
        arguments = dict(settings["normalizer"])
        normalizer = normalizers.build(arguments.pop("name"))(**arguments)
        return cls(GaussianDensity.restore(of, settings), normalizer, settings.get("reference"))


def fit_gaussians(
    features: Tensor,
    targets: Tensor,
    num_classes: int,
    covariance: Structure = "full",
    shrinkage: Shrinkage = "auto",
) -> GaussianDensity:
    """The density of training features (N, H) with class indices (N,), of all processes."""
    statistics = ClassStatistics.of(features, targets, num_classes, covariance)
    density = GaussianDensity.fit(statistics.across_processes(), shrinkage)
    return _fastest_faithful(density, features)


def refit_gaussians(
    density: GaussianDensity, features: Tensor, targets: Tensor, shrinkage: Shrinkage = "auto"
) -> GaussianDensity:
    """The density of what `density` was fitted to and of more training features (N, H) together."""
    statistics = density.statistics.with_samples(features, targets)
    return _fastest_faithful(GaussianDensity.fit(statistics, shrinkage), features)


def _training_log_density(
    density: GaussianDensity, features: Tensor, targets: Tensor, leave_one_out: bool
) -> Tensor:
    """Log densities of all processes' training samples, each left out of its own fit or not."""
    if leave_one_out:
        return gather_across(left_out_log_density(density, features.cpu(), targets.cpu()))
    return gather_across(density(features.cpu()))


def _reference(
    density: GaussianDensity, normalizer: Normalizer, features: Tensor, targets: Tensor
) -> float:
    """The mean score of some training samples, each left out of its own fit."""
    step = max(1, len(features) // _SAMPLE)
    left_out = left_out_log_density(density, features[::step].cpu(), targets[::step].cpu())
    return float(normalizer(gather_across(left_out)).mean())


def _fastest_faithful(density: GaussianDensity, features: Tensor) -> GaussianDensity:
    """The density in float32 if features are, and it agrees with float64 on them, else as it is."""
    if features.dtype == torch.float64:
        return density
    sample = features[:: max(1, len(features) // _SAMPLE)].cpu()
    single = density.cast(torch.float32)
    exact = density(sample)
    error = (single(sample) - exact).abs().max()
    # Processes must agree on the type, or their densities would differ in the seventh digit.
    worst = gather_across((error / exact.abs().median()).reshape(1)).max()
    return single if worst <= FLOAT32_AGREEMENT else density
