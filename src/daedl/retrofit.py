"""Density awareness for a classifier that is trained already."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import nn

from daedl.checks import require_batch
from daedl.classifier import Classifier
from daedl.methods import Method, Softmax, build
from daedl.networks import FeatureModule
from daedl.outputs import Data, in_batches


@dataclass(frozen=True)
class Wrap:
    """A trained module that is to become density aware; `fit_post_hoc` makes it so."""

    module: nn.Module
    features: str
    method: Method
    class_names: Sequence[str] | None

    def fit_post_hoc(self, batches: Data) -> Classifier:
        """A classifier with the module's own weights, fitted to `batches` of (images, targets).

        These are the module's training data, preprocessed as they were for its training but not
        augmented, or data like them; for a method that is fitted to validation data, held-out ones.
        """
        rest = iter(in_batches(batches))
        first = require_batch(next(rest, None), " of the first batch")
        network = FeatureModule(self.module, self.features, tuple(first[0].shape[1:]))
        classifier = Classifier(network, self.method, self.class_names)
        return classifier.fit_post_hoc(chain([first], rest)).eval()


def wrap(
    module: nn.Module,
    features: str,
    method: str | Method = "retrofit",
    class_names: Sequence[str] | None = None,
    **method_arguments: Any,
) -> Wrap:
    """Make a trained classifier density aware without training: `wrap(net, "avgpool").fit_post_hoc(loader)`.

    Arguments:
        module: any module that maps a batch of images to logits (B, C); its weights are left alone.
        features: dotted name of the submodule whose output is the features, as `named_modules()` has it.
        method: "retrofit", or any other that reads a softmax network, such as "ddu", "knn" or "energy".
        class_names: one for each class.
        method_arguments: settings, if `method` is a name.
    """
    built = build(method, **method_arguments) if isinstance(method, str) else method
    if built.training_method() != Softmax():
        raise ValueError(
            f"method {built.name!r} needs a training of its own, which would change the module; expected "
            "one that reads a trained classifier: take 'retrofit', 'ddu', 'knn' or 'energy'"
        )
    return Wrap(module, features, built, class_names)
