"""Accept or hand over: thresholds on uncertainty scores, with guarantees that hold for finite samples.

Both guarantees are about new images drawn as the calibration images were, which must not have been used for
training; they say nothing about images of another kind, which is what the scores are for.

Rejections. With the scores s_(1) ≤ … ≤ s_(n) of n calibration images and the threshold s_(k),
k = ⌈(n + 1)(1 − x)⌉, a new image is rejected with a probability of at most x, over the draw of all n + 1
images: its rank among them is uniform (split conformal prediction; Vovk et al., 2005). Of two scores each
may reject x / 2.

Errors. Given s_(k), the k − 1 images below it are independent draws of images below that threshold, so that
their errors are binomial with the risk among accepted images. An upper limit of Clopper and Pearson at level
1 − δ / m for each of m fixed k holds for all of them at once with probability 1 − δ, and so for the largest k
whose limit is at most y (after Geifman and El-Yaniv, 2017). Of two scores, one half of the images sets m
pairs of thresholds, which are then fixed for the other half.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch
from scipy.stats import beta
from torch import Tensor

On = Literal["epistemic", "aleatoric", "both"]
SCORES: Mapping[str, tuple[str, ...]] = {
    "epistemic": ("epistemic",),
    "aleatoric": ("aleatoric",),
    "both": ("epistemic", "aleatoric"),
}
# Shares of accepted images that are tried for a limit on errors, fixed beforehand (chosen: finer towards
# all, where most classifiers end).
COVERAGES = (
    *(1.0, 0.995, 0.99, 0.98, 0.97, 0.96, 0.95, 0.925, 0.9, 0.875),
    *(0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1),
)


@dataclass(frozen=True)
class MaxRejectionRate:
    """Of known images at most `share` are rejected, on average over calibrations."""

    share: float = 0.05

    def __post_init__(self) -> None:
        _require_share(self.share, "share")


@dataclass(frozen=True)
class MaxErrorRate:
    """Of accepted known images at most `share` are wrong, with a probability of 1 − `delta`."""

    share: float
    delta: float = 0.05

    def __post_init__(self) -> None:
        _require_share(self.share, "share")
        _require_share(self.delta, "delta")


Target = MaxRejectionRate | MaxErrorRate
TARGETS: Mapping[str, type[Target]] = {"reject": MaxRejectionRate, "error": MaxErrorRate}


@dataclass(frozen=True)
class Thresholds:
    """Which predictions to accept, and how that was decided.

    Attributes:
        limits: the largest accepted value of each score that is looked at.
        target: what was asked for.
        samples: calibration images.
        coverage: share of them that is accepted.
        error: share of the accepted ones that is wrong.
    """

    limits: Mapping[str, float]
    target: Target
    samples: int
    coverage: float
    error: float

    def settings(self) -> dict[str, Any]:
        """What `restore` builds it from; JSON-able."""
        kind = next(name for name, each in TARGETS.items() if isinstance(self.target, each))
        return {**asdict(self), "target": {"kind": kind, **asdict(self.target)}}

    @classmethod
    def restore(cls, settings: Mapping[str, Any]) -> "Thresholds":
        """From `settings()`."""
        target = dict(settings["target"])
        built = TARGETS[target.pop("kind")](**target)
        return cls(**{**settings, "target": built})

    def __str__(self) -> str:
        limits = ", ".join(f"{name} above {limit:.4g}" for name, limit in self.limits.items())
        text = (
            f"reject {limits}: of {self.samples} calibration images {self.coverage:.2%} are accepted, of "
            f"which {self.error:.2%} are wrong"
        )
        match self.target:
            case MaxRejectionRate(share=share):
                return f"{text}; of new ones like them at most {share:.2%} are rejected, on average"
            case MaxErrorRate(share=share, delta=delta):
                return f"{text}; of new ones at most {share:.2%}, with a probability of {1 - delta:.4g}"


def accepts(limits: Mapping[str, float], scores: Mapping[str, Tensor]) -> Tensor:
    """Whether no score (B,) is above its limit, (B,)."""
    # In float64, in which the limits are: a limit that is a score of its own accepts it.
    inside = [scores[name].double() <= limit for name, limit in limits.items()]
    return torch.stack(inside).all(0)


def choose(
    scores: Mapping[str, Tensor],
    wrong: Tensor,
    target: Target,
    on: On | None = None,
    seed: int = 0,
) -> Thresholds:
    """Thresholds for `target` from n calibration images.

    Arguments:
        scores: uncertainties (n,) by name, larger = more uncertain, as `Prediction.scores()` gives them.
        wrong: whether each prediction is wrong (n,).
        on: which scores to look at; by default both, where a method has an epistemic one.
        seed: of the halves that "both" needs.
    """
    if not isinstance(target, MaxRejectionRate | MaxErrorRate):
        raise TypeError(
            f"target is {target!r}; expected what is promised: daedl.MaxRejectionRate(0.05) to hand over at "
            "most 5% of known images, or daedl.MaxErrorRate(0.01) for at most 1% errors among the accepted"
        )
    used = {name: scores[name].double() for name in _names(scores, on)}
    if isinstance(target, MaxRejectionRate):
        rank = _conformal_rank(len(wrong), target.share, len(used))
        limits = {name: float(values.sort().values[rank - 1]) for name, values in used.items()}
        for name, limit in limits.items():
            _require_no_tie(name, used[name], limit, target.share)
        return _thresholds(limits, used, wrong, target)
    tried = _one(used, wrong) if len(used) == 1 else _pairs(used, wrong, seed)
    return _thresholds(_certified(tried, target), used, wrong, target)


def _names(scores: Mapping[str, Tensor], on: On | None) -> tuple[str, ...]:
    if on is None:
        on = "both" if "epistemic" in scores else "aleatoric"
    if on not in SCORES:
        raise ValueError(f"on is {on!r}; expected {', '.join(SCORES)}")
    missing = [name for name in SCORES[on] if name not in scores]
    if missing:
        raise ValueError(
            f"on is {on!r}, but the method has no {missing[0]} score; expected one of its scores, "
            f"{', '.join(scores)}: take on='aleatoric', or another method"
        )
    return SCORES[on]


def _conformal_rank(samples: int, share: float, scores: int) -> int:
    """⌈(n + 1)(1 − x)⌉ of n samples, x the share of each score."""
    each = share / scores
    # What is a whole number but for rounding is meant to be one.
    rank = math.ceil((samples + 1) * (1 - each) - 1e-9)
    if rank > samples:
        raise ValueError(
            f"{samples} calibration images can't tell what rejects {share:.2%}; expected at least "
            f"{math.ceil(1 / each - 1e-9) - 1}: give more, or allow more rejections"
        )
    return rank


def _require_no_tie(name: str, values: Tensor, limit: float, share: float) -> None:
    """Raise if known images tie at the largest score there is: with them every unknown one would pass."""
    tied = float((values == values.max()).double().mean())
    if limit >= float(values.max()) and tied * len(values) > 1:
        raise ValueError(
            f"{tied:.2%} of the calibration images share the largest {name} score, {limit:.4g}, so that "
            f"rejecting at most {share:.2%} would accept whatever has no evidence at all; expected fewer: "
            "train with leave_one_out=True, look at the other score, or allow more rejections"
        )


class Tried(NamedTuple):
    """Limits that were fixed beforehand, and what they do to independent images."""

    limits: dict[str, float]
    accepted: int
    errors: int


def _one(scores: Mapping[str, Tensor], wrong: Tensor) -> list[Tried]:
    """Every coverage of a single score: the images below the one at the threshold are independent."""
    ((name, values),) = scores.items()
    ordered, order = values.sort()
    tried = []
    for rank in _ranks(len(values)):
        limit = _below(ordered[rank - 1])
        accepted = ordered <= limit
        errors = int(wrong[order][accepted].sum())
        tried.append(Tried({name: limit}, int(accepted.sum()), errors))
    return tried


def _pairs(scores: Mapping[str, Tensor], wrong: Tensor, seed: int) -> list[Tried]:
    """Every coverage of two scores: thresholds from one half of the images, counts from the other."""
    order = torch.randperm(len(wrong), generator=torch.Generator().manual_seed(seed))
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    ordered = {name: values[first].sort().values for name, values in scores.items()}
    tried = []
    for rank in _ranks(len(first)):
        limits = {name: _below(values[rank - 1]) for name, values in ordered.items()}
        inside = [scores[name][second] <= limit for name, limit in limits.items()]
        accepted = torch.stack(inside).all(0)
        tried.append(Tried(limits, int(accepted.sum()), int(wrong[second][accepted].sum())))
    return tried


def _below(value: Tensor) -> float:
    """The next smaller number: where scores tie at the end, as evidence that vanishes, none is accepted."""
    return math.nextafter(float(value), -math.inf)


def _ranks(samples: int) -> list[int]:
    """The ranks of the coverages that are tried, the largest first."""
    ranks = (math.floor(coverage * samples) for coverage in COVERAGES)
    return [rank for rank in dict.fromkeys(ranks) if rank > 1]


def _certified(tried: Sequence[Tried], target: MaxErrorRate) -> dict[str, float]:
    """The loosest limits whose bound on the error is low enough."""
    bounds = [
        clopper_pearson(each.errors, each.accepted, target.delta / len(COVERAGES)) for each in tried
    ]
    for each, bound in zip(tried, bounds, strict=True):
        if bound <= target.share:
            return each.limits
    lowest = min(bounds, default=1.0)
    raise ValueError(
        f"no threshold keeps errors at or below {target.share:.2%} with a probability of "
        f"{1 - target.delta:.4g}; the lowest bound is {lowest:.2%}: give more calibration images, or "
        "allow more errors"
    )


def clopper_pearson(errors: int, samples: int, delta: float) -> float:
    """The largest share under which so few errors have a probability of at least δ."""
    return 1.0 if errors >= samples else float(beta.ppf(1 - delta, errors + 1, samples - errors))


def _thresholds(
    limits: Mapping[str, float], scores: Mapping[str, Tensor], wrong: Tensor, target: Target
) -> Thresholds:
    """With what the limits do to all calibration images."""
    accepted = accepts(limits, scores)
    number = int(accepted.sum())
    error = int(wrong[accepted].sum()) / number if number else 0.0
    return Thresholds(limits, target, len(wrong), number / len(wrong), error)


def _require_share(value: float, name: str) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} is {value}; expected a share between 0 and 1, such as 0.05")
