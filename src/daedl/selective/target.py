"""The contract of a threshold rule, and the thresholds that it chooses."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor

from daedl.checks import Number
from daedl.names import look_up
from daedl.selective.conformal import Conformal

On = Literal["epistemic", "aleatoric", "both", "all"]
# Negative log density.
DENSITY = "density"
SCORES: Mapping[str, tuple[str, ...]] = {
    "epistemic": ("epistemic",),
    "aleatoric": ("aleatoric",),
    "both": ("epistemic", "aleatoric"),
    "all": ("epistemic", "aleatoric", DENSITY),
}
# Relative shift of a limit in an exported graph: about 16 float32 roundings (chosen).
SLACK = 1e-6
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class GuideLine(NamedTuple):
    """A line in the risk-coverage plot: vertical at a coverage, or horizontal at an error rate."""

    axis: Literal["coverage", "error"]
    value: float
    label: str


@dataclass(frozen=True)
class Target(ABC):
    """A guarantee, and the rule that chooses thresholds for it.

    Class attributes:
        kind: the name of the rule in model files.
        accepts_ties: whether scores equal to the score that sets a limit are accepted.
    """

    kind: ClassVar[str]
    accepts_ties: ClassVar[bool]

    @property
    @abstractmethod
    def guarantee(self) -> str:
        """The guarantee as a clause, without a capital letter or full stop."""

    @abstractmethod
    def limits(self, scores: Mapping[str, Tensor], wrong: Tensor, seed: int) -> dict[str, float]:
        """The largest accepted value of each score, all (n,) in float64, given the errors (n,).

        `seed` determines random splits.
        """

    def limits_density(self, samples: int) -> bool:
        """Whether the density has a limit by default, with this number of calibration samples."""
        del samples
        return False

    def break_ties(
        self, limits: Mapping[str, float], scores: Mapping[str, Tensor]
    ) -> dict[str, float]:
        """`limits`, changed where equal scores would make them useless.

        `scores` are all scores of the method, (n,) in float64, also those without a limit.
        """
        del scores
        return dict(limits)

    def guide_line(self) -> GuideLine | None:
        """The line that marks the target in the risk-coverage plot."""
        return None

    def choose(
        self, scores: Mapping[str, Tensor], wrong: Tensor, on: On | None = None, seed: int = 0
    ) -> "Thresholds":
        """Choose thresholds on n calibration samples.

        Arguments:
            scores: uncertainties (n,) by name, larger = more uncertain, as from `Prediction.scores()`.
            wrong: whether each prediction is wrong (n,).
            on: the scores to threshold; by default all that the method has, without the density if
                `limits_density` is false.
            seed: of the random split that some targets need for several scores.
        """
        exact = {name: values.double() for name, values in scores.items()}
        if on is None and {"epistemic", DENSITY} <= set(exact) and self.limits_density(len(wrong)):
            on = "all"
        used = {name: exact[name] for name in _score_names(scores, on)}
        return self.chosen(self.break_ties(self.limits(used, wrong, seed), exact), exact, wrong)

    def chosen(
        self, limits: Mapping[str, float], scores: Mapping[str, Tensor], wrong: Tensor
    ) -> "Thresholds":
        """The thresholds with these limits, and their effect on the calibration samples."""
        accepted = accepts(limits, scores)
        number = int(accepted.sum())
        error = int(wrong[accepted].sum()) / number if number else 0.0
        return Thresholds(limits, self, len(wrong), number / len(wrong), error)

    def describe(self, thresholds: "Thresholds") -> str:
        """The limits, their effect on the calibration samples, and the guarantee, as sentences."""
        limits = " or ".join(f"{name} > {limit:.4g}" for name, limit in thresholds.limits.items())
        return (
            f"Rejects {limits}. Of {thresholds.samples} calibration samples, {thresholds.coverage:.2%} are "
            f"accepted, of which {thresholds.error:.2%} are wrong. Guarantee: {self.guarantee}."
        )

    def for_graph(self, limits: Mapping[str, float]) -> dict[str, float]:
        """`limits` for another runtime, shifted so that ties are decided as in PyTorch; sorted by name.

        A limit is the score of a calibration sample, or just below it. Where the density removes all
        evidence, many images share that score, and a runtime that sums in another order rounds it
        differently.
        """
        slack = SLACK if self.accepts_ties else -SLACK
        return {name: limit + slack * abs(limit) for name, limit in sorted(limits.items())}

    def settings(self) -> dict[str, Any]:
        """JSON-compatible description for `restore`."""
        return {"kind": self.kind, **asdict(self)}

    @staticmethod
    def restore(settings: Mapping[str, Any]) -> "Target":
        """The target that `settings()` describes."""
        arguments = dict(settings)
        kinds = {each.kind: each for each in Target.__subclasses__()}
        target = look_up(kinds, arguments.pop("kind"), "threshold target")
        if "share" in arguments:  # the name of `rate` in earlier model files
            arguments["rate"] = arguments.pop("share")
        return target(**arguments)


@dataclass(frozen=True)
class Thresholds:
    """Limits on uncertainty scores, and how they were chosen.

    Attributes:
        limits: the largest accepted value of each thresholded score; "density" is the negative log density.
        target: the guarantee.
        samples: number of calibration samples.
        coverage: share of the calibration samples that is accepted.
        error: share of the accepted calibration samples that is wrong.
        conformal: intervals of a regressor.
    """

    limits: Mapping[str, float]
    target: Target
    samples: int
    coverage: float
    error: float
    conformal: Conformal | None = None

    def for_graph(self) -> "Thresholds":
        """The thresholds of an exported graph."""
        return replace(self, limits=self.target.for_graph(self.limits))

    @property
    def on(self) -> On:
        """The scores that were selected for thresholding."""
        names = {name for name in self.limits if name != DENSITY}
        if len(names) > 1:
            return "all" if DENSITY in self.limits else "both"
        return "epistemic" if "epistemic" in names else "aleatoric"

    def settings(self) -> dict[str, Any]:
        """JSON-compatible description for `restore`."""
        settings = {**asdict(self), "target": self.target.settings()}
        if self.conformal is None:
            del settings["conformal"]
        return settings

    @classmethod
    def restore(cls, settings: Mapping[str, Any]) -> "Thresholds":
        """The thresholds that `settings()` describes."""
        saved = msgspec.convert(settings, _Saved)
        for name, limit in saved.limits.items():
            Number().require(f"the limit of {name}", limit, "the limits of `daedl calibrate`")
        return cls(**{**msgspec.structs.asdict(saved), "target": Target.restore(saved.target)})

    def __str__(self) -> str:
        return self.target.describe(self)


class _Saved(msgspec.Struct, frozen=True):
    """Schema of `Thresholds.settings`."""

    limits: Annotated[
        dict[Literal["epistemic", "aleatoric", "density", "width"], float],
        msgspec.Meta(min_length=1),
    ]
    target: dict[str, Any]
    samples: Annotated[int, msgspec.Meta(ge=1)]
    coverage: _Share
    error: _Share
    conformal: Conformal | None = None


def accepts(limits: Mapping[str, float], scores: Mapping[str, Tensor]) -> Tensor:
    """Whether every score (B,) is at most its limit, (B,)."""
    # Compared in float64, the precision of the limits: a score that is the limit itself is accepted.
    return torch.stack([scores[name].double() <= limit for name, limit in limits.items()]).all(0)


def choose(
    scores: Mapping[str, Tensor],
    wrong: Tensor,
    target: Target,
    on: On | None = None,
    seed: int = 0,
) -> Thresholds:
    """`target.choose(...)`, after validating the type of `target`."""
    if not isinstance(target, Target):
        raise TypeError(
            f"target is {target!r}; expected a guarantee: daedl.MaxRejectionRate(0.05) to reject at most "
            "5% of in-distribution images, or daedl.MaxErrorRate(0.01) for at most 1% errors among the "
            "accepted images"
        )
    return target.choose(scores, wrong, on, seed)


def _score_names(scores: Mapping[str, Tensor], on: On | None) -> tuple[str, ...]:
    if on is None:
        on = "both" if "epistemic" in scores else "aleatoric"
    if on not in SCORES:
        raise ValueError(f"on is {on!r}; expected one of {', '.join(SCORES)}")
    for name in SCORES[on]:
        if name not in scores:
            raise ValueError(
                f"on is {on!r}, but the method has no {name} score; expected scores among "
                f"{', '.join(scores)}: pass on='aleatoric', or use another method"
            )
    return SCORES[on]


def require_rate(value: float, name: str) -> None:
    """Raise unless `value` is strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value}; expected a number between 0 and 1, such as 0.05")
