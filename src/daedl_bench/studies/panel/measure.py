"""Measures methods of the panel: one training per group of methods that share a network."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from daedl import DAEDLClassifier, MaxRejectionRate, evaluate, methods, metrics, selective
from daedl.classifier import Classifier
from daedl.density import DensityScorer
from daedl.evaluate import Measured
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl.training.recipe import embedding_recipe, image_recipe
from daedl_bench.spec import digest
from daedl_bench.studies.panel.case import Case, Sets

# Methods by the one that trains their network; the first of each is measured as trained.
TRAININGS: Mapping[str, Sequence[str]] = {
    "daedl": ("daedl",),
    "softmax": ("softmax", "temperature", "energy", "knn", "mahalanobis"),
}
METHODS = tuple(name for names in TRAININGS.values() for name in names)
TARGET = MaxRejectionRate(0.05)
TEMPERING = "tempering"
CLASSIFICATION = ("accuracy", "ece", "brier", "nll")
THRESHOLDS = (
    "joint"  # the rule by which several scores reject; not visible in any setting of the key
)
# Outputs of the network for a dataset, and labels.
Collected = tuple[Outputs, Tensor]
# Datasets and figures.
Figures = list[tuple[str, Measured]]


def key(case: str, method: str, seed: int) -> str:
    """Identifies the rows of a case, a method and a seed."""
    recipes = (asdict(each) for each in (image_recipe(3, 32, 1), embedding_recipe()))
    defaults = [DAEDLClassifier().get_params(), *recipes, THRESHOLDS]
    return digest([case, method, methods.build(method).arguments(), seed, repr(defaults)])


def measure_case(
    case: Case, seed: int, wanted: Sequence[str], data: Path | None
) -> Iterator[tuple[str, Figures]]:
    """The figures of the `wanted` methods, each as soon as they are known."""
    train = case.load(seed, data)
    for first, names in TRAININGS.items():
        chosen = [name for name in names if name in wanted]
        if not chosen:
            continue
        trained = train(first)
        judge = Judge(trained.classifier, trained.sets)
        for name in chosen:
            classifier, seconds = trained.classifier, 0.0
            if name != first:
                classifier, seconds = judge.fitted(name)
            costs = [
                ("", Measured("cost", "training", "seconds", trained.seconds)),
                ("", Measured("cost", "fit", "seconds", seconds)),
            ]
            yield name, judge.figures(classifier) + judge.tempering(classifier) + costs


class Judge:
    """Outputs of a trained network for all datasets, which methods on this network share."""

    def __init__(self, trained: Classifier, sets: Sets) -> None:
        self.trained, self.sets = trained, sets
        self.calibration = trained.collect(sets.calibration)
        self.test = trained.collect(sets.test)
        self.unknown = {
            (task, name): trained.collect(each)[0]
            for task, group in (("near", sets.near), ("far", sets.far))
            for name, each in group.items()
        }
        self._train: Collected | None = None

    def fitted(self, method: str) -> tuple[Classifier, float]:
        """Another method on the same network, and the CPU seconds of its fit."""
        classifier = Classifier(self.trained.network, method, preprocess=None).eval()
        if not classifier.method.needs_fit:
            return classifier, 0.0
        if classifier.method.fit_split == "validation":
            outputs, targets = self.calibration
        else:
            self._train = self._train or self.trained.collect(self.sets.train)
            outputs, targets = self._train
        started = time.process_time()
        classifier.fit_outputs(outputs, targets)
        return classifier, time.process_time() - started

    def figures(self, classifier: Classifier) -> Figures:
        """Accuracy and calibration, and detection and acceptance of every set."""
        held_out = classifier.predict_outputs(self.calibration[0])
        accepted = acceptance(held_out, self.calibration[1])
        known = classifier.predict_outputs(self.test[0])
        figures = [
            ("test", each)
            for each in evaluate.classification(known, self.test[1])
            if each.metric in CLASSIFICATION
        ]
        figures.append(("test", Measured("known", "all", "accepted", accepted(known))))
        score = "epistemic" if "epistemic" in known.scores() else "aleatoric"
        for (task, name), outputs in self.unknown.items():
            outside = classifier.predict_outputs(outputs)
            auroc = metrics.auroc(known.scores()[score], outside.scores()[score])
            figures += [
                (name, Measured(task, score, "auroc", auroc)),
                (name, Measured(task, "all", "accepted", accepted(outside))),
            ]
        return figures

    def tempering(self, classifier: Classifier) -> Figures:
        """Figures before and after the temperature of DAEDL, which its epistemic score does not use."""
        scorer = classifier.fitted
        if not isinstance(scorer, DensityScorer):
            return []
        fitted, figures = scorer.temperature, []
        for score, scorer.temperature in (("before", 1.0), ("after", fitted)):
            known = classifier.predict_outputs(self.test[0])
            figures += [
                ("test", Measured(TEMPERING, score, each.metric, each.value))
                for each in evaluate.classification(known, self.test[1])
                if each.metric in CLASSIFICATION
            ]
            for (_, name), outputs in self.unknown.items():
                outside = classifier.predict_outputs(outputs).scores()["aleatoric"]
                auroc = metrics.auroc(known.scores()["aleatoric"], outside)
                figures.append((name, Measured(TEMPERING, score, "aleatoric auroc", auroc)))
        return figures


def acceptance(held_out: Prediction, targets: Tensor) -> Callable[[Prediction], float]:
    """The share of predictions that thresholds accept, chosen on `held_out`; NaN if none can be chosen."""
    try:
        thresholds = selective.choose(held_out.scores(), held_out.labels != targets, TARGET)
    except ValueError:  # too many ties
        return lambda _: math.nan
    return lambda prediction: float(
        selective.accepts(thresholds.limits, prediction.scores()).double().mean()
    )
