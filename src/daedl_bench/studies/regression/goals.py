"""The goals of the regression study beside what was measured."""

from collections.abc import Iterator
from typing import NamedTuple

from pandas import DataFrame

from daedl_bench.names import markdown
from daedl_bench.studies.regression.data import SETS
from daedl_bench.studies.regression.tables import (
    EXPERIMENT,
    PUBLISHED,
    SPEED_EXPERIMENT,
    own_rows,
    ranks,
)
from daedl_bench.summary import Results

METHOD = "daer"
SETS_AHEAD, COVERED, SLOWER = 7, 0.85, 1.10


class Goal(NamedTuple):
    """A goal, what was measured, and whether it is met; None before anything was measured."""

    text: str
    measured: str
    met: bool | None


def goals(results: Results) -> str:
    """One line per goal."""
    rows = own_rows(results)
    every = results.every_row
    found = [
        *_accuracy(rows),
        *_unlike(rows),
        *_speed(every[every["experiment"] == SPEED_EXPERIMENT]),
    ]
    words = {True: "yes", False: "no", None: "not measured"}
    return markdown(
        ["goal", "measured", "met"],
        [[each.text, each.measured, words[each.met]] for each in found],
        left=3,
    )


def _accuracy(rows: DataFrame) -> Iterator[Goal]:
    """Means over splits against published means, to the digits that were published."""
    own = rows[(rows["method"] == METHOD) & (rows["task"] == EXPERIMENT)]
    for metric, text, least in (
        ("nll", f"NLL below both published figures on at least {SETS_AHEAD} sets", SETS_AHEAD),
        (
            "rmse",
            "RMSE at most that of published deep evidential regression on all sets",
            len(SETS),
        ),
    ):
        means = own[own["metric"] == metric].groupby("data")["value"].mean()
        best = map(min, zip(*PUBLISHED[metric].values(), strict=True))
        pairs = {
            name: (means[name], b) for name, b in zip(SETS, best, strict=True) if name in means
        }
        ahead = [
            name
            for name, (mine, published) in pairs.items()
            if (mine < published if metric == "nll" else round(mine, 2) <= published)
        ]
        behind = [name for name in pairs if name not in ahead]
        measured = f"{len(ahead)} of {len(pairs)} sets" + (
            f"; not on {', '.join(behind)}" if behind else ""
        )
        yield Goal(text, measured, len(ahead) >= least if pairs else None)


def _unlike(rows: DataFrame) -> Iterator[Goal]:
    for score, values in ranks(rows).items():
        text = f"best mean rank of all methods on unlike inputs, by {score} variance"
        if METHOD not in values or len(values) == 1:
            yield Goal(text, "", None)
            continue
        other = values.drop(METHOD)
        measured = f"{values[METHOD]:.1f}; next {other.min():.1f}"
        yield Goal(text, measured, bool(values[METHOD] < other.min()))
    left_out = rows[
        (rows["task"] == "extrapolation")
        & (rows["metric"] == "coverage90")
        & (rows["score"] == "distribution")
    ]
    # The mean of every set counts alike, whatever the number of its splits.
    means = left_out.groupby(["method", "data"])["value"].mean().groupby("method").mean()
    text = f"90% intervals cover at least {100 * COVERED:.0f}% of what was left out"
    if METHOD not in means:
        yield Goal(text, "", None)
        return
    measured = f"{100 * means[METHOD]:.1f}%" + (
        f"; Gaussian NLL {100 * means['gaussian']:.1f}%" if "gaussian" in means else ""
    )
    yield Goal(text, measured, bool(means[METHOD] >= COVERED))


def _speed(rows: DataFrame) -> Iterator[Goal]:
    text = f"a prediction takes at most {SLOWER:.2f} times as long as the bare network"
    last = rows.groupby("data", sort=False)["value"].last()
    measured = "; ".join(f"{name} {value:.2f}" for name, value in last.items())
    yield Goal(text, measured, bool((last <= SLOWER).all()) if len(last) else None)
