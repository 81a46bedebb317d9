"""From a trial to predictions: train or load its network, fit the method, predict datasets."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from daedl.classifier import Classifier
from daedl.data import ImageSet, augmentation
from daedl.demo.training import SILENT, Progress
from daedl.evaluate import Measured
from daedl.members import ensemble
from daedl.networks import Network, lay_out
from daedl.networks.headed import stack_outputs
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl.training import Epoch, History, fit
from daedl_bench.cache import Cache
from daedl_bench.spec import Trial

Load = Callable[[str, str], ImageSet]  # the dataset and the split
VALIDATION = "val"  # name of the outputs of validation images in the cache
TRAINING = "train"  # the same of training images


@dataclass(frozen=True)
class Workspace:
    """The datasets, the cache and the progress display that trials share."""

    load: Load
    cache: Cache
    progress: Progress = SILENT

    def prepare(self, trial: Trial) -> "Predictor":
        """Train and fit what is not in the cache."""
        if trial.members:
            members = tuple(map(self.prepare, trial.members))
            return Predictor(
                self,
                trial,
                classifier=ensemble([each.classifier for each in members]),
                epochs=tuple(epoch for each in members for epoch in each.epochs),
                fit_seconds=sum(each.fit_seconds for each in members),
                members=members,
            )
        trained, history = self._network(trial)
        classifier = self._classifier(trial, trained.network)
        unfitted = Predictor(self, trial, classifier, history.epochs)
        if not trial.method.needs_fit:
            return unfitted
        name = TRAINING if trial.method.fit_split == "training" else VALIDATION
        outputs, targets = unfitted.outputs(name)
        held_out = unfitted.outputs(VALIDATION) if trial.method.needs_held_out else None
        started = time.perf_counter()
        classifier.fit_outputs(outputs, targets)
        if held_out is not None:
            classifier.fit_outputs_held_out(*held_out)
        return replace(unfitted, fit_seconds=time.perf_counter() - started)

    @staticmethod
    def _classifier(trial: Trial, trained: Network) -> Classifier:
        """The method on the trained network, with the preprocessing and the features of the trial."""
        lay_out(trained)
        if not trial.features:
            return trial.protocol.classifier(trial.method, trained).eval()
        classifier = trial.protocol.classifier(trial.method, **trial.features).eval()
        classifier.network.load_state_dict(trained.state_dict())
        lay_out(classifier.network)
        return classifier

    def is_trained(self, trial: Trial) -> bool:
        """Whether the cache has every network of `trial`."""
        return all(map(self.cache.has, trial.networks))

    def split(self, trial: Trial) -> tuple[ImageSet, ImageSet]:
        """Validation and training images."""
        protocol = trial.protocol
        train, val = protocol.split
        images = self.load(protocol.data, "train")
        if len(images) != train + val:
            raise ValueError(
                f"{protocol.data} has {len(images)} training images; expected {train + val}, which "
                f"protocol {protocol.name} splits into {train} and {val}: check the files of the dataset"
            )
        return images.random_split(val, trial.seed)

    def _network(self, trial: Trial) -> tuple[Classifier, History]:
        key = trial.network_key
        # One of several processes trains the network; the others wait for it.
        with self.cache.lock(key):
            if not self.cache.has(key) and not self.cache.reading:
                self.cache.save(key, *self._train(trial))
            return self.cache.load(key)

    def _train(self, trial: Trial) -> tuple[Classifier, History]:
        """Train as every method does that shares this network."""
        protocol, seed = trial.protocol, trial.seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # Within the fork, as a method that adds a head draws weights too.
            classifier = protocol.classifier(trial.method.training_method())
        options = protocol.fit_options(trial.method)
        size = options.pop("batch_size")
        val, train = self.split(trial)
        history = fit(
            classifier,
            train.batches(size, shuffle=True, seed=seed, augment=augmentation(protocol.augment)),
            val.batches(size),
            fit_data=train,
            seed=seed,
            checkpoint=self.cache.checkpoint(trial.network_key),
            resume=True,
            accelerator="cpu",
            progress=self.progress.show,
            **options,
        )
        return classifier, history


@dataclass(frozen=True)
class Predictor:
    """A trial that is trained and fitted.

    Attributes:
        epochs: of the training; for an ensemble, of all members.
        fit_seconds: that fitting the method took.
        members: of an ensemble.
    """

    workspace: Workspace
    trial: Trial
    classifier: Classifier
    epochs: tuple[Epoch, ...]
    fit_seconds: float = 0.0
    members: tuple["Predictor", ...] = ()

    def predict(self, name: str) -> tuple[Prediction, Tensor]:
        """Predictions for the test images of the dataset `name`, or for `VALIDATION`; labels (N,)."""
        outputs, targets = self.outputs(name)
        return self.classifier.predict_outputs(outputs), targets

    def outputs(self, name: str) -> tuple[Outputs, Tensor]:
        """The network's outputs for the same images, and their labels (N,)."""
        if self.members:
            parts = [each.outputs(name) for each in self.members]
            return stack_outputs([outputs for outputs, _ in parts]), parts[0][1]
        key, cache = self.trial.network_key, self.workspace.cache
        stored = f"{self.trial.view}{name}"
        if (cached := cache.load_outputs(key, stored)) is not None:
            outputs, targets = cached
            columns = self.classifier.network.parts if self.trial.features else ()
            return outputs._replace(parts=columns), targets
        channels, *size = self.classifier.network.input_shape
        images = self._images(name).converted(channels, (size[0], size[1]))
        outputs, targets = self.classifier.collect(images, name)
        cache.save_outputs(key, stored, outputs, targets)
        return outputs, targets

    def costs(self) -> list[Measured]:
        """Seconds and epochs of the training, and seconds of the fit."""
        return [
            Measured("cost", "training", "seconds", sum(each.seconds for each in self.epochs)),
            Measured("cost", "training", "epochs", len(self.epochs)),
            Measured("cost", "fit", "seconds", self.fit_seconds),
        ]

    def _images(self, name: str) -> ImageSet:
        if name in (VALIDATION, TRAINING):
            val, train = self.workspace.split(self.trial)
            return val if name == VALIDATION else train
        images = self.workspace.load(name, "test")
        if (
            name != self.trial.protocol.data
            and images.num_classes > self.classifier.network.num_classes
        ):
            # Labels of an OOD dataset, such as CIFAR-100 for CIFAR-10, are not the network's.
            return replace(images, labels=torch.zeros_like(images.labels), class_names=None)
        return images
