"""The classifier: a network, a method, and the state that the method fits after training."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from daedl import backbones, methods
from daedl.backbones import Pretrained
from daedl.checks import NotFittedError, require_finite, require_float
from daedl.data import Batch, ImageSet, Preprocess
from daedl.data.loaders import Data, as_batches, as_input, as_inputs
from daedl.density import DensityEffect, DensityScorer, density_effect
from daedl.description import Revision
from daedl.distributed import sum_across
from daedl.methods import Method
from daedl.model_file import Parts, StoredModule, require_network
from daedl.networks import Backbone, FeatureModule, Network
from daedl.networks.depths import Features, Pooling
from daedl.outputs import Outputs, collect, evaluating
from daedl.prediction import Prediction
from daedl.selective import MaxRejectionRate, On, Target, Thresholds, choose

DEFAULT_TARGET = MaxRejectionRate()


class Classifier(StoredModule):
    """Predicts classes with uncertainties in one forward pass.

    Arguments:
        network: returns features and logits; see `daedl.networks`. The method modifies it in place; DAEDL
            adds spectral normalisation.
        method: a name in `daedl.methods.METHODS`, or a configured method.
        class_names: one unique name per class, stored in the model file.
        preprocess: converts images to network inputs. By default, for networks that take images, 8-bit
            pixels are divided by 255 and floats must range from 0 to 1. None if the inputs are prepared
            outside of the classifier.
        method_arguments: settings of the method, if `method` is a name.
    """

    def __init__(
        self,
        network: Network,
        method: str | Method = "daedl",
        class_names: Sequence[str] | None = None,
        preprocess: Preprocess | Literal["default"] | None = "default",
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
        features: str | Sequence[str],
        *,
        input_shape: Sequence[int] | None = None,
        pooling: Pooling = "flatten",
        method: str | Method = "retrofit",
        class_names: Sequence[str] | None = None,
        preprocess: Preprocess | None = None,
        **method_arguments: Any,
    ) -> "Classifier":
        """Builds a classifier from any module that maps inputs to logits (B, C); the module is not copied.

        Post-hoc methods, such as the default, do not change the weights of a trained softmax network:
        `Classifier.from_module(net, "avgpool", input_shape=(3, 224, 224)).fit_post_hoc(loader)`. Train
        other methods with `daedl.fit`.

        Arguments:
            features: dotted names, as in `named_modules()`, of one or several submodules whose outputs are
                the features.
            input_shape: shape of one input; by default that of `preprocess`.
            pooling: of outputs with positions: "flatten", "mean" or "mean-std"; see `FeatureModule`.
            preprocess: None (default) if inputs are already preprocessed as for the module's training.
        """
        if input_shape is None and preprocess is None:
            raise ValueError(
                "neither input_shape nor preprocess was given; expected the shape of one input, such as "
                "input_shape=(3, 224, 224)"
            )
        shape = preprocess.shape if input_shape is None and preprocess else tuple(input_shape or ())
        network = FeatureModule(module, features, shape, pooling)
        classifier = cls(network, method, class_names, preprocess, **method_arguments)
        return classifier.train(module.training)

    @classmethod
    def from_backbone(
        cls,
        backbone: str | Pretrained = "efficientnet-lite0",
        num_classes: int | None = None,
        *,
        class_names: Sequence[str] | None = None,
        image_size: int | None = None,
        hidden: Sequence[int] = (),
        features: Features = None,
        pooling: Pooling | None = None,
        method: str | Method = "daedl",
        **method_arguments: Any,
    ) -> "Classifier":
        """Builds a classifier on a frozen pretrained backbone, with a new head.

        Train it with `daedl.fit_frozen`, which passes images through the backbone once and caches features:
        `daedl.fit_frozen(Classifier.from_backbone(class_names=["cat", "dog"]), "photos")`.

        Arguments:
            backbone: "efficientnet-lite0", "timm:NAME" or "hf:NAME_OR_FOLDER", see docs/backbones.md; or
                what `daedl.backbones.pretrained` returned.
            num_classes: C; by default the number of `class_names`.
            image_size: height and width of inputs; by default chosen for the backbone.
            hidden: widths of dense layers between features and logits; by default none.
            features, pooling: blocks whose outputs the density sees; see `daedl.networks.Backbone`.
            method, method_arguments: as for `Classifier`.
        """
        if num_classes is None and class_names is None:
            raise ValueError("neither num_classes nor class_names was given; expected one of them")
        number = len(class_names or ()) if num_classes is None else num_classes
        pretrained = (
            backbone
            if isinstance(backbone, Pretrained)
            else backbones.pretrained(backbone, image_size)
        )
        size = pretrained.preprocess.shape[1]
        network = Backbone(
            pretrained.name,
            number,
            size,
            hidden,
            features,
            config=pretrained.config,
            pooling=pooling,
        )
        network.load_pretrained(pretrained)
        return cls(network, method, class_names, pretrained.preprocess, **method_arguments)

    def forward(self, inputs: Tensor) -> Outputs:
        """Returns features and logits of raw inputs (B, *input_shape)."""
        return self.network(self.prepare(inputs))  # type: ignore[no-any-return]

    def prepare(self, inputs: Any, where: str = "") -> Tensor:
        """Converts raw inputs to network inputs (B, *input_shape) with the network's device and dtype.

        Training, post-hoc fits and prediction all use this method.

        Arguments:
            inputs: an array or tensor of uint8 or floats; see `Preprocess`.
            where: names the batch in errors.
        """
        parameter = next(self.network.parameters())
        tensor = as_input(inputs, self.network.input_shape, where).to(parameter.device)
        if tensor.is_floating_point():
            tensor = tensor.to(parameter.dtype)
            require_finite(tensor, "inputs", where)
        if self.preprocess is None:
            require_float(tensor, where)
            return tensor
        return self.preprocess(tensor, parameter.dtype, where)

    def predict(self, data: Any, batch_size: int = 256) -> Prediction:
        """Predicts one or more inputs, with one forward pass per input, in eval mode without gradients.

        Arguments:
            data: an array or tensor of uint8 or floats; PIL images; paths of images or of a folder; an
                ImageSet; a Dataset, a DataLoader or another iterable of batches, whose labels are ignored.
            batch_size: inputs per forward pass.
        """
        parts = []
        with evaluating(self.network), torch.no_grad():
            for inputs in as_inputs(data, self.preprocess, self.network.input_shape, batch_size):
                if len(inputs) > 0:
                    outputs = self.method.forward(self.network, self.prepare(inputs))
                    parts.append(self.predict_outputs(outputs))
        if not parts:
            raise ValueError("the data are empty; expected at least one input to predict")
        return parts[0] if len(parts) == 1 else Prediction.cat(parts)

    def predict_outputs(self, outputs: Outputs) -> Prediction:
        """Predicts from features and logits, as returned by `collect`."""
        columns = outputs.logits.shape[-1]
        if columns != self.network.num_classes:
            raise ValueError(
                f"logits have {columns} columns; expected {self.network.num_classes}, the number of classes: "
                "pass outputs of the same network"
            )
        outputs.require_finite()
        prediction = self.method.predict(self._on_device(outputs), self.fitted)
        return replace(prediction, thresholds=self.thresholds, class_names=self.class_names)

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

    def _on_device(self, outputs: Outputs) -> Outputs:
        """Moves `outputs` to the network's device."""
        device = next(self.network.parameters()).device
        return outputs._replace(
            features=outputs.features.to(device), logits=outputs.logits.to(device)
        )

    def batches(
        self, data: Data, batch_size: int = 256, *, shuffle: bool = False
    ) -> Iterable[Batch]:
        """Converts labelled `data` to batches; see `daedl.data.loaders.as_batches`."""
        return as_batches(data, batch_size, shuffle=shuffle, read=self._read)

    def _read(self, path: Path) -> ImageSet:
        """Reads labelled images at `path` with this classifier's channels, size and labels."""
        from daedl.data.read import read_for  # noqa: PLC0415 (Pillow is imported when needed)

        if self.preprocess is None:
            raise ValueError(
                f"the classifier has no preprocessing, so it can't read {path}; expected tensors: convert "
                "the images yourself, or set model.preprocess"
            )
        numbers = [str(number) for number in range(self.network.num_classes)]
        return read_for(path, self.preprocess, self.class_names or numbers)

    def collect(self, data: Data, name: str = "data") -> tuple[Outputs, Tensor]:
        """Returns features and logits (N, ...) and targets (N,) of labelled `data`."""
        return collect(self.network, self.batches(data), self.prepare, self.method.forward, name)

    def fit_post_hoc(self, data: Data, held_out: Data | None = None) -> "Classifier":
        """Fits the density, temperature or neighbours of the method in one pass over `data`.

        Pass the training data without augmentation, or held-out data if the method's `fit_split` is
        "validation", as for temperature scaling. Does nothing if the method needs no fit.

        Arguments:
            held_out: labelled data that were not used for training; DAEDL calibrates its probabilities on
                them.
        """
        if self.method.needs_fit:
            self.fit_outputs(*self.collect(data, f"{self.method.fit_split} data"))
        if held_out is not None and self.method.needs_held_out:
            self.fit_outputs_held_out(*self.collect(held_out, "held-out data"))
        return self

    def update_post_hoc(self, data: Data, note: str = "") -> "Classifier":
        """Merges more training `data` into the post-hoc fit; the network does not change.

        For example data from a new site or camera, or more samples of some classes. The earlier data are
        not needed, because the model stores their statistics. `note` is stored with the revision in the
        model file. To replace the earlier data, call `fit_post_hoc` with new data of every class.
        """
        if self.fitted is None:
            raise NotFittedError(
                f"method {self.method.name!r} is not fitted, so it can't be updated; expected a fitted "
                "density: call fit_post_hoc first, or use a method with a density, such as 'daedl'"
            )
        outputs, targets = self.collect(data, "training data")
        device = next(self.network.parameters()).device
        self.fitted = self.method.refit(self.fitted, outputs, targets).to(device)
        self.thresholds = None
        self.revisions = (*self.revisions, Revision(len(targets), merged=True, note=note))
        return self

    def fit_outputs(self, outputs: Outputs, targets: Tensor) -> None:
        """Fits the method to `outputs` and `targets`, as returned by `collect`."""
        device = next(self.network.parameters()).device
        fitted = self.method.fit(outputs, targets)
        self.thresholds = None  # the scale of the scores changes
        self.fitted = None if fitted is None else fitted.to(device)
        samples = int(sum_across(torch.tensor(len(targets))))
        self.revisions = () if fitted is None else (Revision(samples),)

    def fit_outputs_held_out(self, outputs: Outputs, targets: Tensor) -> None:
        """Fits the rest of the method's state to `outputs` and `targets` of held-out data."""
        if self.fitted is not None:
            self.thresholds = None  # the scale of the scores changes
            self.fitted = self.method.fit_held_out(self.fitted, self._on_device(outputs), targets)

    def density_effect(self, data: Data) -> DensityEffect:
        """Reports how much the density changes predictions of held-out in-distribution `data`."""
        if not isinstance(self.fitted, DensityScorer):
            raise ValueError(
                f"method {self.method.name!r} has no fitted density; expected 'daedl' after fitting"
            )
        return density_effect(self._on_device(self.collect(data)[0]), self.fitted)
