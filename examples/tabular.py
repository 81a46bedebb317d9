"""Tables of scikit-learn: do wrong predictions and unknown classes stand out by their uncertainty?

    python examples/tabular.py --out tabular.png

Breast cancer: half of the samples train, the other half are predicted; some wrongly. Wine: two
cultivars train, the third is unknown. A score is judged by AUROC: the chance that a wrong or unknown
sample is more uncertain than a right or known one. 1 is perfect, 0.5 is chance.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import PowerTransformer

from daedl.estimator import DAEDLClassifier

METHODS = ("softmax", "daedl")
SCORES = ("aleatoric", "epistemic", "density")
BLUE, RED = "#0072B2", "#E0202B"


class Result(NamedTuple):
    """Uncertainties by score (N,) of the samples of a question, and which of them (N,) should be large."""

    question: str
    method: str
    accuracy: float
    uncertainty: dict[str, NDArray[np.float64]]
    suspect: NDArray[np.bool_]

    def auroc(self, score: str) -> float:
        """How well a score tells suspects from the others; NaN for a score that the method lacks."""
        if score not in self.uncertainty:
            return float("nan")
        return float(roc_auc_score(self.suspect, self.uncertainty[score]))


def pipeline(method: str) -> Pipeline:
    """Skewed measurements are made more normal first; then any method of the library."""
    return make_pipeline(PowerTransformer(), DAEDLClassifier(method, max_epochs=50, random_state=0))


def uncertainty(model: Pipeline, samples: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """All scores of samples (N, F); a pipeline passes on `predict` but not what only its last step has."""
    scores: dict[str, NDArray[np.float64]] = model[-1].predict_uncertainty(
        model[:-1].transform(samples)
    )
    return scores


def wrong_predictions(method: str) -> Result:
    """Breast cancer: are wrong predictions the uncertain ones?"""
    samples, labels = load_breast_cancer(return_X_y=True)
    train, test, of_train, of_test = train_test_split(
        samples, labels, test_size=0.5, stratify=labels, random_state=0
    )
    model = pipeline(method).fit(train, of_train)
    wrong = model.predict(test) != of_test
    return Result("wrong diagnosis", method, 1 - wrong.mean(), uncertainty(model, test), wrong)


def unknown_cultivar(method: str, unknown: int) -> Result:
    """Wine: is a cultivar that was never seen in training more uncertain than the two that were?"""
    samples, labels = load_wine(return_X_y=True)
    known = labels != unknown
    train, test, of_train, of_test = train_test_split(
        samples[known], labels[known], test_size=0.5, stratify=labels[known], random_state=0
    )
    model = pipeline(method).fit(train, of_train)
    both = np.concatenate([test, samples[~known]])
    return Result(
        f"unknown cultivar {unknown}",
        method,
        model.score(test, of_test),
        uncertainty(model, both),
        np.arange(len(both)) >= len(test),
    )


def results() -> Iterator[Result]:
    """Every question, asked of every method."""
    for method in METHODS:
        yield wrong_predictions(method)
    for unknown in range(3):
        for method in METHODS:
            yield unknown_cultivar(method, unknown)


def line(result: Result) -> str:
    """A result as a line of the table."""
    aurocs = (result.auroc(score) for score in SCORES)
    cells = " ".join("        –" if np.isnan(value) else f"{value:9.3f}" for value in aurocs)
    return f"{result.question:<19} {result.method:<8} {result.accuracy:8.3f} {cells}"


def figure(found: Sequence[Result]) -> Figure:
    """The epistemic uncertainties of DAEDL, a panel for each question."""
    drawn = [result for result in found if result.method == "daedl"]
    picture = Figure(figsize=(3.2 * len(drawn), 3), layout="constrained")
    for axes, result in zip(picture.subplots(1, len(drawn)), drawn, strict=True):
        score = result.uncertainty["epistemic"]
        bins = np.histogram_bin_edges(score, 25)
        axes.hist(score[~result.suspect], bins, color=BLUE, alpha=0.6, label="others")
        axes.hist(score[result.suspect], bins, color=RED, alpha=0.6, label=result.question)
        axes.set_xlabel("epistemic uncertainty")
        axes.set_title(f"AUROC {result.auroc('epistemic'):.3f}")
        axes.legend(fontsize="small")
    picture.supylabel("samples")
    return picture


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print the table and write the figure."""
    parser = argparse.ArgumentParser(description="uncertainty of tabular predictions")
    parser.add_argument("--out", type=Path, default=Path("tabular.png"), help="file of the figure")
    out: Path = parser.parse_args(arguments).out
    print(f"{'':<28} {'accuracy':>8} " + " ".join(f"{score:>9}" for score in SCORES))
    found = []
    for result in results():
        found.append(result)
        print(line(result), flush=True)
    figure(found).savefig(out, dpi=150)
    print(f"figure: {out}")


if __name__ == "__main__":
    main()
