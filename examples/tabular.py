"""Detects errors and OOD classes in tabular data by their uncertainty.

    python examples/tabular.py --out tabular.png

Breast cancer: a model trained on half of the samples predicts the other half; the positives are its errors.
Wine: a model trained on two cultivars; the positives are samples of the third. The AUROC is the probability
that a positive is more uncertain than a negative: 1 is perfect, 0.5 is chance.
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
    """Results of a method on a task: uncertainties (N,) by score, and the positives (N,)."""

    task: str
    method: str
    accuracy: float
    uncertainty: dict[str, NDArray[np.float64]]
    positive: NDArray[np.bool_]

    def auroc(self, score: str) -> float:
        """Returns the AUROC of a score; NaN if the method does not provide it."""
        if score not in self.uncertainty:
            return float("nan")
        return float(roc_auc_score(self.positive, self.uncertainty[score]))


def pipeline(method: str) -> Pipeline:
    """Returns a pipeline that reduces skew, then trains a classifier."""
    return make_pipeline(PowerTransformer(), DAEDLClassifier(method, max_epochs=50, random_state=0))


def uncertainty(model: Pipeline, samples: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Returns all scores of samples (N, F); a pipeline does not forward `predict_uncertainty`."""
    scores: dict[str, NDArray[np.float64]] = model[-1].predict_uncertainty(
        model[:-1].transform(samples)
    )
    return scores


def misclassification(method: str) -> Result:
    """Evaluates the detection of errors on breast cancer."""
    samples, labels = load_breast_cancer(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(
        samples, labels, test_size=0.5, stratify=labels, random_state=0
    )
    model = pipeline(method).fit(train, train_labels)
    wrong = model.predict(test) != test_labels
    return Result("wrong diagnosis", method, 1 - wrong.mean(), uncertainty(model, test), wrong)


def ood_detection(method: str, unknown: int) -> Result:
    """Evaluates the detection of a wine cultivar that was not in the training data."""
    samples, labels = load_wine(return_X_y=True)
    known = labels != unknown
    train, test, train_labels, test_labels = train_test_split(
        samples[known], labels[known], test_size=0.5, stratify=labels[known], random_state=0
    )
    model = pipeline(method).fit(train, train_labels)
    both = np.concatenate([test, samples[~known]])
    return Result(
        f"unknown cultivar {unknown}",
        method,
        model.score(test, test_labels),
        uncertainty(model, both),
        np.arange(len(both)) >= len(test),
    )


def results() -> Iterator[Result]:
    """Yields the results of all methods on all tasks."""
    for method in METHODS:
        yield misclassification(method)
    for unknown in range(3):
        for method in METHODS:
            yield ood_detection(method, unknown)


def line(result: Result) -> str:
    """Formats a result as a row of the table."""
    aurocs = (result.auroc(score) for score in SCORES)
    cells = " ".join("        –" if np.isnan(value) else f"{value:9.3f}" for value in aurocs)
    return f"{result.task:<19} {result.method:<8} {result.accuracy:8.3f} {cells}"


def figure(rows: Sequence[Result]) -> Figure:
    """Plots histograms of DAEDL's epistemic uncertainty, one panel per task."""
    drawn = [result for result in rows if result.method == "daedl"]
    picture = Figure(figsize=(3.2 * len(drawn), 3), layout="constrained")
    for axes, result in zip(picture.subplots(1, len(drawn)), drawn, strict=True):
        score = result.uncertainty["epistemic"]
        bins = np.histogram_bin_edges(score, 25)
        axes.hist(score[~result.positive], bins, color=BLUE, alpha=0.6, label="others")
        axes.hist(score[result.positive], bins, color=RED, alpha=0.6, label=result.task)
        axes.set_xlabel("epistemic uncertainty")
        axes.set_title(f"AUROC {result.auroc('epistemic'):.3f}")
        axes.legend(fontsize="small")
    picture.supylabel("samples")
    return picture


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains all models, prints the table and writes the figure."""
    parser = argparse.ArgumentParser(description="Uncertainty of tabular predictions.")
    parser.add_argument("--out", type=Path, default=Path("tabular.png"), help="output PNG file")
    out: Path = parser.parse_args(arguments).out
    print(f"{'':<28} {'accuracy':>8} " + " ".join(f"{score:>9}" for score in SCORES))
    rows = []
    for result in results():
        rows.append(result)
        print(line(result), flush=True)
    figure(rows).savefig(out, dpi=150)
    print(f"figure: {out}")


if __name__ == "__main__":
    main()
