"""The demo's report: one HTML file that holds its pictures and needs nothing else."""

import base64
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import jinja2
import torch
from markupsafe import Markup, escape
from torch import Tensor

from daedl import figures
from daedl.demo import digits, maps, moons
from daedl.demo.table import Table
from daedl.demo.training import Trained
from daedl.prediction import Prediction

# Pictures in each row of digits (chosen to fill a desktop's width once and a phone's twice).
PICTURES = 8

MEANINGS = {
    "accuracy": "share of test images whose class is predicted right.",
    "Brier score": "squared distance between the predicted probabilities and the true class, summed "
    "over the classes; it punishes both errors and wrong confidence, and smaller is better.",
    "aleatoric": "one minus the largest predicted probability: how much the classes compete for an "
    "image.",
    "epistemic": "minus the logarithm of the Dirichlet’s precision α₀: how little evidence there is "
    "for any class. Softmax has no such score.",
    "density score s": "log density of an image’s features among those of the training images, scaled "
    "to [0, 1]; DAEDL multiplies the logits by it, so that at 0 no evidence is left.",
    "misclassification AUPR": "average precision of telling right predictions from wrong ones by low "
    "aleatoric uncertainty.",
    "AUPR, AUROC": "areas under the precision-recall and the ROC curve of telling test images from "
    "others by low uncertainty; 100 is perfect, 50 is a coin’s AUROC.",
    "ECE": "expected calibration error: mean gap between confidence and accuracy.",
}


@dataclass(frozen=True)
class Shown:
    """A digit's picture and what is said below it."""

    source: str
    truth: str
    predicted: str
    score: str
    right: bool


@dataclass(frozen=True)
class Gallery:
    """A row of digits with its heading."""

    title: str
    pictures: tuple[Shown, ...]


def template(name: str, package: str = "daedl.demo") -> jinja2.Template:
    """The template of this name; what is put into one of HTML is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=lambda file: file is not None and file.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["marked"] = _marked
    return environment.get_template(name)


def _marked(text: str) -> Markup:
    """`text`, escaped, with what stands between backticks as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def render(
    moons_result: moons.Result,
    digits_result: digits.Result,
    table: Table,
    pictures: Mapping[str, bytes],
    seconds: float,
) -> str:
    """The report as HTML; `pictures` are the PNG files by name, see `draw`."""
    return template("report.html.j2").render(
        table=table,
        pictures={name: inline(data) for name, data in pictures.items()},
        galleries=_galleries(digits_result),
        density=str(digits_result.trained["daedl"].history.density_effect),
        protocol=_protocol(moons_result, digits_result, seconds),
        meanings=MEANINGS,
        moons_uncertainty={
            name: f"{float(moons.variance(each.classifier.predict(moons_result.data.ood)).mean()):.2f}"
            for name, each in moons_result.trained.items()
        },
        known=names(digits_result.settings.known),
        unknown=names(digits_result.settings.held_out),
    )


def draw(moons_result: moons.Result, digits_result: digits.Result) -> dict[str, bytes]:
    """Every figure of the report as a PNG file, by name."""
    settings, predictions = digits_result.settings, digits_result.predictions
    daedl = predictions["daedl"]
    sets = {
        f"test, digits {names(settings.known)}": daedl.test,
        f"held out, digits {names(settings.held_out)}": daedl.unknown,
        "uniform noise": daedl.noise,
    }
    scores = {name: _given(each.density_score) for name, each in sets.items()}
    on_test = {name: each.test for name, each in digits_result.predictions.items()}
    drawn = {
        "two_moons": maps.moons_maps(moons_result),
        "two_moons_narrow": maps.moons_maps(moons_result, stacked=True),
        "density_scores": figures.density_histogram(scores),
        "reliability": figures.reliability_diagram(on_test, digits_result.data.test[1]),
    }
    return {name: figures.png(figure) for name, figure in drawn.items()}


def _galleries(result: digits.Result) -> list[Gallery]:
    """The most and the least certain digits under DAEDL, known and held out."""
    known = torch.tensor(result.settings.known)
    predictions = result.predictions["daedl"]
    (test, classes), (others, truth) = result.data.test, result.data.unknown
    known_names, other_names = (
        names(result.settings.known),
        names(result.settings.held_out),
    )
    galleries = []
    for images, digit, prediction, what in (
        (test, known[classes], predictions.test, f"test digits ({known_names})"),
        (others, truth, predictions.unknown, f"held-out digits ({other_names})"),
    ):
        order = _by_certainty(prediction)
        for title, chosen in (
            (f"Most certain {what}", order[:PICTURES]),
            (f"Least certain {what}", order.flip(0)[:PICTURES]),
        ):
            shown = [_show(images, digit, prediction, known, int(i)) for i in chosen]
            galleries.append(Gallery(title, tuple(shown)))
    return galleries


def _by_certainty(prediction: Prediction) -> Tensor:
    """Indices (N,) from the most to the least certain: by epistemic score, ties by log density."""
    order = _given(prediction.log_density).argsort(descending=True, stable=True)
    return order[_given(prediction.epistemic)[order].argsort(stable=True)]


def _show(images: Tensor, digit: Tensor, prediction: Prediction, known: Tensor, i: int) -> Shown:
    predicted = int(known[prediction.labels[i]])
    return Shown(
        source=inline(figures.picture(images[i, 0])),
        truth=str(int(digit[i])),
        predicted=str(predicted),
        score=f"{float(_given(prediction.density_score)[i]):.2f}",
        right=predicted == int(digit[i]),
    )


def _protocol(
    moons_result: moons.Result, digits_result: digits.Result, seconds: float
) -> dict[str, Any]:
    """What was done, for the report's last section."""
    data, settings = digits_result.data, digits_result.settings
    return {
        "moons": moons_result.settings,
        "moons_counts": [len(part[0]) for part in _parts(moons_result.data)],
        "moons_ood": moons.OOD_CENTER,
        "moons_spectral": moons_result.trained["daedl"].classifier.method.spectral,
        "digits": settings,
        "digits_counts": [len(part[0]) for part in _parts(data)],
        "unknown_count": len(data.unknown[0]),
        "noise_count": len(data.noise),
        "runs": [
            _run(experiment, method, trained)
            for experiment, result in (("moons", moons_result), ("digits", digits_result))
            for method, trained in result.trained.items()
        ],
        "seed": digits_result.seed,
        "seconds": f"{seconds:.0f}",
        "threads": torch.get_num_threads(),
        "versions": ", ".join(
            [f"Python {platform.python_version()}"]
            + [f"{name} {version(name)}" for name in ("daedl", "torch", "scikit-learn")]
        ),
    }


def _run(experiment: str, method: str, trained: Trained) -> dict[str, str]:
    history = trained.history
    best = history.epochs[history.best_epoch]
    return {
        "name": f"{experiment} · {method}",
        "learning_rate": f"{history.epochs[0].learning_rate:g}",
        "epochs": f"{history.best_epoch + 1} of {trained.epochs}",
        "accuracy": "–" if best.val_accuracy is None else f"{best.val_accuracy:.1%}",
        "loss": "–" if best.val_loss is None else f"{best.val_loss:.4f}",
        "seconds": f"{trained.seconds:.1f}",
    }


def _given(score: Tensor | None) -> Tensor:
    """`score` (N,) itself, which only predictions of a method with a density have."""
    if score is None:
        raise ValueError(
            "the prediction has no density; expected one of a method that fits it: pass DAEDL's"
        )
    return score


def _parts(data: moons.Moons | digits.Digits) -> tuple[tuple[Tensor, Tensor], ...]:
    return data.train, data.val, data.test


def names(values: tuple[int, ...]) -> str:
    """Digits for people to read: "0 to 7" for a run of them, else "8, 9"."""
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))


def inline(data: bytes) -> str:
    """A PNG file as an address that needs no file."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"
