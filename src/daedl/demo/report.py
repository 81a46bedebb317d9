"""The demo's report: one self-contained HTML file."""

import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from daedl import figures
from daedl.demo import cubic, digits, maps, moons
from daedl.demo.table import Line, conclude
from daedl.report import html

# Images per gallery: one row on a desktop, two on a phone (chosen).
GALLERY = 8


class Shown(NamedTuple):
    """An image (8, 8) in [0, 1] of a gallery, and its caption."""

    image: Tensor
    digit: int
    predicted: int
    density_score: float

    @property
    def source(self) -> str:
        """The image as a data URL, 1 in black."""
        return html.thumbnail((255 * (1 - self.image[None])).round().byte())


def draw(
    on_moons: moons.Result, on_digits: digits.Result, on_cubic: cubic.Result
) -> dict[str, bytes]:
    """Returns the figures of the report as PNG, by name."""
    daedl = on_digits.predictions["daedl"]
    densities = {
        title: daedl[name].columns()["density_score"] for name, title in digits.TITLES.items()
    }
    tests = {method: each["test"] for method, each in on_digits.predictions.items()}
    drawn = {
        "two_moons": maps.moons_maps(on_moons),
        "two_moons_narrow": maps.moons_maps(on_moons, stacked=True),
        "cubic": cubic.panels(on_cubic),
        "cubic_narrow": cubic.panels(on_cubic, columns=2),
        "density_scores": figures.density_histogram(densities),
        "reliability": figures.reliability_diagram(tests, on_digits.data.test[1]),
    }
    return {name: figures.png(figure) for name, figure in drawn.items()}


def render(
    on_moons: moons.Result,
    on_digits: Sequence[digits.Result],
    lines: Sequence[Line],
    pictures: Mapping[str, bytes],
    seconds: float,
    quick: bool,
) -> str:
    """Returns the report as HTML; `pictures` are the figures of `draw`, of the first seed."""
    runs = [(f"digits, seed {result.seed}", result.trained) for result in on_digits]
    return html.render(
        "daedl.demo",
        "report.html.j2",
        moons=on_moons,
        uncertainty=_mean_uncertainty(on_moons),
        ood_center=moons.OOD_CENTER,
        digits=on_digits[0],
        titles=digits.TITLES,
        training=digits.TRAINING,
        seeds=[result.seed for result in on_digits],
        lines=lines,
        conclusion=conclude(lines),
        galleries=list(_galleries(on_digits[0])),
        runs=[("two moons", on_moons.trained), *runs],
        pictures={name: html.inline(png) for name, png in pictures.items()},
        seconds=seconds,
        quick=quick,
        threads=torch.get_num_threads(),
        versions=[f"Python {platform.python_version()}"]
        + [f"{name} {version(name)}" for name in ("daedl", "torch", "scikit-learn")],
    )


def _mean_uncertainty(result: moons.Result) -> dict[str, list[float]]:
    """Mean uncertainty by dataset, one value per method."""
    measured = list(result.measure().values())
    return {
        data: [x.value for sets in measured for x in sets[data] if x.task == "uncertainty"]
        for data in measured[0]
    }


def _galleries(result: digits.Result) -> Iterator[tuple[str, list[Shown]]]:
    """The most and the least certain images under DAEDL, with a title."""
    for name, (images, labels) in (("test", result.data.test), ("unknown", result.data.unknown)):
        prediction = result.predictions["daedl"][name]
        scores, density_scores = prediction.scores(), prediction.columns()["density_score"]
        # Certain first. At a density score of 0 all epistemic scores are equal.
        order = np.lexsort((scores["density"], scores["epistemic"]))
        for title, indices in (("Most", order[:GALLERY]), ("Least", order[::-1][:GALLERY])):
            shown = [
                Shown(
                    images[i, 0],
                    int(labels[i]),
                    int(prediction.labels[i]),
                    float(density_scores[i]),
                )
                for i in indices
            ]
            yield f"{title} certain: {digits.TITLES[name]}", shown
