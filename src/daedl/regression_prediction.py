"""Predictions of numbers: a mean with its uncertainties and intervals, in the same form for every method."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from daedl.checks import Number
from daedl.data.scaling import Columns
from daedl.nig import NIG
from daedl.predicted import UNLIKE, Predicted, finite_list
from daedl.selective import MaxWidth, Thresholds

NOISY = "too noisy"
DENSITY_COLUMNS = ("density_score", "log_density")
LEVEL = 0.9  # of the bounds in `columns` and `records` (chosen)


@dataclass(frozen=True, eq=False)
class RegressionPrediction(Predicted):
    """Predictions for B inputs: tensors (B,) with one target, (B, D) with several.

    `p[i]`, `p[2:5]` and `p[mask]` select inputs; `p.to(...)` moves all tensors. `p.numpy()`, `p.records()`
    and `p.to_frame()` use the same names as the commands, the server and ONNX graphs.

    Attributes:
        mean: predicted mean γ.
        log_nu, log_alpha, log_beta: the other parameters of the predicted `NIG`; infinite counts, kept as
            e^60, for methods that predict a normal distribution.
        aleatoric: variance of the noise, E[σ²].
        epistemic: variance of the mean, Var[μ]; None if the method does not estimate it.
        density_score: log density of the features, normalised to [0, 1], (B,), if the method has a density.
        log_density: log p(features) (B,), if the method has a density.
        thresholds: limits for accepting predictions, and conformal intervals, if the regressor was
            calibrated.
        targets: names and units of the targets.
    """

    mean: Tensor
    log_nu: Tensor
    log_alpha: Tensor
    log_beta: Tensor
    aleatoric: Tensor
    epistemic: Tensor | None = None
    density_score: Tensor | None = None
    log_density: Tensor | None = None
    thresholds: Thresholds | None = None
    targets: Columns | None = None

    @classmethod
    def of(
        cls,
        nig: NIG,
        has_epistemic: bool = True,
        density_score: Tensor | None = None,
        log_density: Tensor | None = None,
    ) -> "RegressionPrediction":
        """Builds a prediction from distributions; `has_epistemic` if they have an epistemic part."""
        return cls(
            nig.gamma,
            nig.log_nu,
            nig.log_alpha,
            nig.log_beta,
            nig.aleatoric,
            nig.epistemic if has_epistemic else None,
            density_score,
            log_density,
        )

    @property
    def nig(self) -> NIG:
        """The predicted distributions, with densities, quantiles and CRPS."""
        return NIG(self.mean, self.log_nu, self.log_alpha, self.log_beta)

    @property
    def variance(self) -> Tensor:
        """Variance of the target, the sum of `aleatoric` and `epistemic`."""
        return self.nig.variance

    @property
    def std(self) -> Tensor:
        """Standard deviation of the target."""
        return self.variance.sqrt()

    def interval(self, level: float = LEVEL, conformal: bool = True) -> tuple[Tensor, Tensor]:
        """Returns lower and upper bounds that contain the target with probability `level`.

        If the regressor was calibrated, the interval is mean ± q std, and contains new targets at least with
        this probability (`daedl.selective.Conformal`), for each target alone. Otherwise, or with
        `conformal=False`, it is the central interval of the predicted distribution.
        """
        Number(0, above=True, limit=1).require("level", level, "0.9")
        calibrated = self.thresholds and self.thresholds.conformal
        if conformal and calibrated:
            factors = torch.tensor(calibrated.factors(level)).to(self.mean)
            reach = factors * self.std if self.mean.ndim > 1 else factors[0] * self.std
            return self.mean - reach, self.mean + reach
        low, high = self.nig.interval(level)
        return low.to(self.mean), high.to(self.mean)

    def scores(self) -> dict[str, Tensor]:
        """Returns the method's uncertainty scores by name, each (B,); larger = more uncertain.

        Aleatoric and epistemic are variances; with several targets, means of the variances relative to those
        of the training targets. If the thresholds limit the width of intervals, "width" is the width, with
        several targets the largest in standard deviations of the training targets.
        """
        scores = super().scores()
        if self.thresholds is not None and isinstance(self.thresholds.target, MaxWidth):
            scores["width"] = self.width(self.thresholds.target.level)
        return scores

    def width(self, level: float) -> Tensor:
        """Returns widths of the intervals (B,), with several targets the largest in their deviations."""
        low, high = self.interval(level)
        width = high - low
        return width if width.ndim == 1 else (width / self._units(width)).amax(-1)

    def joint(self, variances: Tensor) -> Tensor:
        """Returns one variance per input (B,), with several targets the mean in their units."""
        if variances.ndim == 1:
            return variances
        return (variances / self._units(variances).square()).mean(-1)

    def _units(self, like: Tensor) -> Tensor:
        return like.new_ones(()) if self.targets is None else self.targets.tensors(like)[1]

    def columns(self) -> dict[str, Tensor]:
        """Returns the tensors that the method provides, by their public names.

        mean, std, aleatoric, epistemic (B,) or (B, D), density_score (B,), log_density (B,); if the regressor
        was calibrated lower, upper, the bounds of level 0.9, and accept (B,).
        """
        named = {
            "mean": self.mean,
            "std": self.std,
            "aleatoric": self.aleatoric,
            "epistemic": self.epistemic,
            "density_score": self.density_score,
            "log_density": self.log_density,
        }
        if self.thresholds is not None:
            named["lower"], named["upper"] = self.interval()
            named["accept"] = self.accept
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def records(self) -> list[dict[str, Any]]:
        """Returns one JSON-able record per input; NaN and infinity become None.

        Each has mean, std, lower, upper, aleatoric and epistemic, with several targets one such record per
        target under `targets`; the scores of the density; `accept` and `reason` if the regressor was
        calibrated.
        """
        columns = self.columns()
        columns["lower"], columns["upper"] = self.interval()
        order = ("mean", "std", "lower", "upper", "aleatoric", "epistemic")
        numbers = {name: columns[name] for name in order if name in columns}
        shared = {name: columns[name] for name in DENSITY_COLUMNS if name in columns}
        records = _rows(numbers) if self.mean.ndim == 1 else self._nested(numbers)
        if shared:
            records = [a | b for a, b in zip(records, _rows(shared), strict=True)]
        if self.thresholds is not None:
            decisions = zip(records, columns["accept"].tolist(), self.reason, strict=True)
            records = [each | {"accept": yes, "reason": why} for each, yes, why in decisions]
        return records

    def _nested(self, columns: dict[str, Tensor]) -> list[dict[str, Any]]:
        """One record per input, with one per target under `targets`."""
        number = self.mean.shape[1]
        names = (self.targets and self.targets.names) or tuple(map(str, range(number)))
        each = [
            _rows({name: values[:, d] for name, values in columns.items()}) for d in range(number)
        ]
        return [{"targets": dict(zip(names, row, strict=True))} for row in zip(*each, strict=True)]

    @property
    def reason(self) -> list[str]:
        """Why each prediction is rejected; "" if it is accepted.

        "unlike the training data" if the epistemic score or the density exceeds its limit; otherwise the
        width of the interval, or "too noisy".
        """
        wide = f"interval wider than {self._limits.get('width', math.inf):.4g}"
        return [
            UNLIKE if unlike else wide if broad else NOISY if noisy else ""
            for unlike, broad, noisy in zip(
                self._exceeded("density", "epistemic"),
                self._exceeded("width"),
                self._exceeded("aleatoric"),
                strict=True,
            )
        ]


def _rows(columns: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Transposes columns (B,) to B JSON-able records."""
    lists = {name: finite_list(values) for name, values in columns.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]
