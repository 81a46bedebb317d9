"""The classifier: a network, a method, and the state that the method fits after training."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from daedl import backbones, methods
from daedl.backbones import Pretrained
from daedl.checks import require_batch, require_targets
from daedl.data import Batch, InputKind, Labelled, Preprocess
from daedl.data.loaders import Data
from daedl.density import DensityEffect, DensityScorer, density_effect
from daedl.density.gaussian import MissingClassError
from daedl.distributed import sum_across
from daedl.inputs import Inputs, count_rows
from daedl.methods import Method
from daedl.model import Model
from daedl.model_file import Parts, require_network
from daedl.networks import Backbone, FeatureHead, FeatureModule, Network
from daedl.networks.depths import Features, Pooling
from daedl.networks.feature_module import FeatureFunction
from daedl.outputs import Outputs
from daedl.prediction import Prediction
from daedl.selective import MaxRejectionRate, On, Target, Thresholds, choose

DEFAULT_TARGET = MaxRejectionRate()


class Classifier(Model[Prediction]):
    """Predicts classes with uncertainties in one forward pass.

    Arguments:
        network: returns features and logits; see `daedl.networks`. The method modifies it in place; DAEDL
            adds spectral normalisation.
        method: a name in `daedl.methods.METHODS`, or a configured method.
        class_names: one unique name per class, stored in the model file.
        preprocess: converts images, or texts, to network inputs. By default, for networks on images, 8-bit
            pixels are divided by 255 and floats must range from 0 to 1. None if the inputs are prepared
            outside of the classifier.
        method_arguments: settings of the method, if `method` is a name.
    """

    method: Method
    kind = Method

    def __init__(
        self,
        network: Network,
        method: str | Method = "daedl",
        class_names: Sequence[str] | None = None,
        preprocess: InputKind | Literal["default"] | None = "default",
        **method_arguments: Any,
    ) -> None:
        super().__init__()
        require_network(network)
        built = methods.build(method, **method_arguments).resolved(network)
        if preprocess == "default":
            preprocess = Preprocess.for_shape(network.input_shape)
        self.set_parts(Parts(built.prepare(network), built, class_names, preprocess))

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        features: str | Sequence[str] | FeatureFunction,
        *,
        input_shape: Sequence[int] | None = None,
        example: Inputs | None = None,
        pooling: Pooling = "flatten",
        method: str | Method = "retrofit",
        class_names: Sequence[str] | None = None,
        preprocess: InputKind | None = None,
        **method_arguments: Any,
    ) -> "Classifier":
        """Builds a classifier from any module that maps inputs to logits (B, C).

        The module is not copied: training changes its weights, and methods with layers of their own, such as
        "sngp", replace its last one. Pass `copy.deepcopy(module)` to keep it.

        The module returns logits, an object or mapping with `logits`, or a tuple of logits and others, as
        models of transformers do: `Classifier.from_module(AutoModelForSequenceClassification..., "mean")`.

        Post-hoc methods, such as the default, do not change the weights of a trained softmax network:
        `Classifier.from_module(net, "avgpool", input_shape=(3, 224, 224)).fit_post_hoc(loader)`. Train
        other methods with `daedl.fit`.

        Arguments:
            features: dotted names, as in `named_modules()`, of one or several submodules whose outputs are
                the features; "cls" or "mean" for the last hidden state of tokens; the name of an entry of the
                module's output; or a function of this output and the inputs. See `FeatureModule`.
            input_shape: shape of one input; by default that of `preprocess`. Inputs of other forms, such as
                mappings of token ids and masks, have none: they must be like those of the first batch.
            example: a batch of inputs, to determine widths if there is no `input_shape`; not needed for
                modules of transformers.
            pooling: of outputs with positions: "flatten", "mean" or "mean-std"; see `FeatureModule`.
            preprocess: None (default) if inputs are already preprocessed as for the module's training.
        """
        if input_shape is None and preprocess is not None:
            input_shape = preprocess.shape or None
        network = FeatureModule(module, features, input_shape, pooling, example)
        classifier = cls(network, method, class_names, preprocess, **method_arguments)
        return classifier.train(module.training)

    @classmethod
    def for_embeddings(
        cls,
        width: int,
        num_classes: int | None = None,
        *,
        class_names: Sequence[str] | None = None,
        hidden: Sequence[int] | None = None,
        method: str | Method = "daedl",
        **method_arguments: Any,
    ) -> "Classifier":
        """Builds a classifier on embeddings that were computed elsewhere, such as those of sentences.

        Embeddings are normalised to one length, whatever their scale; the density sees the last hidden
        layer. `daedl.fit(model, (embeddings, labels), **daedl.training.embedding_recipe().options())`.

        Arguments:
            width: length of an embedding.
            num_classes: C; by default the number of `class_names`.
            hidden: widths of dense layers; by default one of 512, () for a linear head.
            method, method_arguments: as for `Classifier`.
        """
        number = _number_of_classes(num_classes, class_names)
        head = FeatureHead.for_embeddings(width, number, hidden)
        return cls(head, method, class_names, None, **method_arguments)

    @classmethod
    def from_backbone(
        cls,
        backbone: str | Pretrained = "efficientnet-lite0",
        num_classes: int | None = None,
        *,
        class_names: Sequence[str] | None = None,
        image_size: int | None = None,
        hidden: Sequence[int] | None = None,
        features: Features = None,
        pooling: Pooling | None = None,
        method: str | Method = "daedl",
        **method_arguments: Any,
    ) -> "Classifier":
        """Builds a classifier on a frozen pretrained backbone, with a new head.

        Train it with `daedl.fit_frozen`, which passes images through the backbone once and caches features:
        `daedl.fit_frozen(Classifier.from_backbone(class_names=["cat", "dog"]), "photos")`.

        Arguments:
            backbone: "efficientnet-lite0", "timm:NAME" or "hf:NAME_OR_FOLDER" for images, "all-minilm-l6-v2"
                or "text:FOLDER_OR_NAME" for texts, see docs/backbones.md; or what
                `daedl.backbones.pretrained` returned.
            num_classes: C; by default the number of `class_names`.
            image_size: height and width of inputs; by default chosen for the backbone.
            hidden: widths of dense layers between features and logits; by default none for images, one of 512
                for texts, on which the density then is.
            features, pooling: blocks whose outputs the density sees; see `daedl.networks.Backbone`.
            method, method_arguments: as for `Classifier`.
        """
        number = _number_of_classes(num_classes, class_names)
        pretrained = (
            backbone
            if isinstance(backbone, Pretrained)
            else backbones.pretrained(backbone, image_size)
        )
        _, size, _ = pretrained.preprocess.shape or (0, None, 0)
        given = {"hidden": hidden, "features": features}
        if pretrained.head and hidden is not None and features is None:
            given["features"] = f"dense{len(hidden)}" if hidden else "last"
        network = Backbone(
            pretrained.name,
            number,
            size,
            **{**pretrained.head, **{k: v for k, v in given.items() if v is not None}},
            config=pretrained.config,
            pooling=pooling,
        )
        network.load_pretrained(pretrained)
        return cls(network, method, class_names, pretrained.preprocess, **method_arguments)

    def targets(self, targets: Tensor, number: int, where: str = "") -> Tensor:
        """Returns class indices (B,), int64."""
        require_targets(targets, self.network.num_classes, number, where)
        return targets.long()

    def start(self, data: Iterable[Batch]) -> None:
        """Passes the number of samples per class to methods that use it."""
        if self.method.needs_class_counts:
            self.method.set_class_counts(self.network, self.class_counts(data))

    def class_counts(self, batches: Iterable[Batch]) -> Tensor:
        """Returns the number of training samples per class (C,), summed over all processes."""
        number = self.network.num_classes
        counts = torch.zeros(number, dtype=torch.long)
        for position, batch in enumerate(batches):
            where = f" of batch {position} of the training data"
            inputs, targets, _ = require_batch(batch, where)
            counts += (
                self.targets(targets, count_rows(inputs), where).cpu().bincount(minlength=number)
            )
        return sum_across(counts)

    def fit_outputs(self, outputs: Outputs, targets: Tensor) -> None:
        """Fits the method to `outputs` and `targets`, as returned by `collect`."""
        try:
            super().fit_outputs(outputs, targets)
        except MissingClassError as error:
            raise error.named(self.class_names) from None

    def finished(self, prediction: Prediction) -> Prediction:
        """Adds the names of the classes."""
        return replace(prediction, class_names=self.class_names)

    def calibrate(
        self,
        data: Data,
        target: Target = DEFAULT_TARGET,
        on: On | None = None,
        seed: int = 0,
    ) -> Thresholds:
        """Chooses thresholds for accepting predictions, on held-out `data` of known classes.

        Afterwards, predictions have `accept` and `reason`, and `save` stores the thresholds. See
        `daedl.selective` for the guarantees and their conditions.

        Arguments:
            data: labelled data that were used neither for training nor for early stopping; see `daedl.fit`.
            target: `daedl.MaxRejectionRate(rate)` or `daedl.MaxErrorRate(rate, delta)`.
            on: "epistemic", "aleatoric" or "both"; by default all of the two that the method provides.
            seed: seed of the split that `MaxErrorRate` with "both" requires.
        """
        outputs, targets = self.collect(data, "calibration data")
        prediction = self.predict_outputs(outputs)
        wrong = prediction.labels.cpu() != targets
        scores = {name: score.cpu() for name, score in prediction.scores().items()}
        self.thresholds = choose(scores, wrong, target, on, seed)
        return self.thresholds

    def _read(self, path: Path) -> Labelled:
        """Reads labelled samples at `path` with this classifier's channels, size and labels."""
        if self.preprocess is None:
            raise ValueError(
                f"the classifier has no preprocessing, so it can't read {path}; expected tensors: convert "
                "the samples yourself, or set model.preprocess"
            )
        numbers = [str(number) for number in range(self.network.num_classes)]
        return self.preprocess.read(path, self.class_names or numbers)

    def density_effect(self, data: Data) -> DensityEffect:
        """Reports how much the density changes predictions of held-out in-distribution `data`."""
        if not isinstance(self.fitted, DensityScorer):
            raise ValueError(
                f"method {self.method.name!r} has no fitted density; expected 'daedl' after fitting"
            )
        outputs, _ = self.collect(data)
        return density_effect(self._on_device(outputs), self.fitted, self.method.arguments())


def _number_of_classes(number: int | None, names: Sequence[str] | None) -> int:
    if number is None and names is None:
        raise ValueError("neither num_classes nor class_names was given; expected one of them")
    return len(names or ()) if number is None else number
