"""The classifier: a network, a method, and the state that the method fits after training."""

import copy
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from daedl import backbones, methods, networks, storage
from daedl.backbones import Pretrained
from daedl.checks import DataWarning, NotFittedError, require_finite, require_float
from daedl.data import Batch, ImageSet, Preprocess
from daedl.data.loaders import Data, as_batches, as_input, as_inputs
from daedl.density import DensityEffect, DensityScorer, density_effect
from daedl.distributed import sum_across
from daedl.methods import Method
from daedl.names import look_up, strip_prefix
from daedl.networks import Backbone, FeatureModule, Network
from daedl.networks.depths import Features, Pooling
from daedl.outputs import Outputs, collect, evaluating
from daedl.prediction import Prediction
from daedl.selective import (
    MaxRejectionRate,
    On,
    Target,
    Thresholds,
    choose,
)
from daedl.spectral import SpectralNorm, normalization, remove_spectral_norm, spectral_normalize

DEFAULT_TARGET = MaxRejectionRate()
# Defaults of methods on pretrained backbones. Spectral normalisation would only limit the logits, as the
# features are fixed; a few images per class don't determine a covariance of 1,584 features each; their
# in-sample densities exceed those of new images (docs/architecture.md). The norm of a feature says little
# about its distance, and the range leaves known images half of their evidence (docs/when_density_fails.md).
BACKBONE_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {
        "spectral": None,
        "covariance": "tied",
        "leave_one_out": True,
        "normalizer": "half-quantile",
        "normalize_features": True,
    }
)


@dataclass(frozen=True)
class Revision:
    """One post-hoc fit or update.

    Attributes:
        samples: number of samples.
        merged: whether they were merged into the previous fit.
        note: the user's note.
    """

    samples: int
    merged: bool = False
    note: str = ""


class Classifier(nn.Module):
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

    network: Network
    fitted: nn.Module | None

    def __init__(
        self,
        network: Network,
        method: str | Method = "daedl",
        class_names: Sequence[str] | None = None,
        preprocess: Preprocess | Literal["default"] | None = "default",
        **method_arguments: Any,
    ) -> None:
        super().__init__()
        if not isinstance(network, Network):
            raise TypeError(
                f"network is a {type(network).__name__}; expected a network of daedl.networks: pass your own "
                "module to daedl.Classifier.from_module(module, features=..., input_shape=...)"
            )
        self.method = _build_method(method, method_arguments)
        self.network = self.method.prepare(network)
        self.fitted = None
        self.thresholds: Thresholds | None = None
        self.revisions: tuple[Revision, ...] = ()
        if class_names is not None:
            _require_class_names(class_names, network.num_classes)
        self.class_names = None if class_names is None else [str(name) for name in class_names]
        self.preprocess = (
            Preprocess.for_shape(network.input_shape) if preprocess == "default" else preprocess
        )
        if self.preprocess is not None and self.preprocess.shape != tuple(network.input_shape):
            raise ValueError(
                f"preprocess returns inputs of shape {self.preprocess.shape} but the network takes "
                f"{tuple(network.input_shape)}; expected the same channels and size"
            )

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
            method, method_arguments: as for `Classifier`, with the defaults `BACKBONE_SETTINGS`; a built
                method is used as it is.
        """
        if num_classes is None and class_names is None:
            raise ValueError("neither num_classes nor class_names was given; expected one of them")
        number = len(class_names or ()) if num_classes is None else num_classes
        if isinstance(method, str):
            method_arguments = {**backbone_settings(method), **method_arguments}
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
        require_finite(outputs.features, "features")
        require_finite(outputs.logits, "logits")
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

    def fit_post_hoc(self, data: Data) -> "Classifier":
        """Fits the density, temperature or neighbours of the method in one pass over `data`.

        Pass the training data without augmentation, or held-out data if the method's `fit_split` is
        "validation", as for temperature scaling. Does nothing if the method needs no fit.
        """
        if self.method.needs_fit:
            self.fit_outputs(*self.collect(data, f"{self.method.fit_split} data"))
        return self

    def reset(self) -> None:
        """Discards post-hoc fits and thresholds, which new weights invalidate."""
        self.fitted, self.thresholds, self.revisions = None, None, ()

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

    def density_effect(self, data: Data) -> DensityEffect:
        """Reports how much the density changes predictions of held-out in-distribution `data`."""
        if not isinstance(self.fitted, DensityScorer):
            raise ValueError(
                f"method {self.method.name!r} has no fitted density; expected 'daedl' after fitting"
            )
        return density_effect(self._on_device(self.collect(data)[0]), self.fitted)

    def save(self, path: str | Path) -> None:
        """Writes the network, the method, the post-hoc fit and the thresholds to one file, atomically."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        spectral, plain = normalization(self.network), self.network.plain
        description: dict[str, Any] = {
            "version": version("daedl"),
            "network": {"name": type(plain).__name__, "arguments": plain.arguments},
            "method": {"name": self.method.name, "arguments": self.method.arguments()},
            "class_names": self.class_names,
            "preprocess": None if self.preprocess is None else self.preprocess.settings(),
            "spectral": None if spectral is None else asdict(spectral),
            "dtype": str(next(self.network.parameters()).dtype).removeprefix("torch."),
            "fitted": None,
            "revisions": [asdict(each) for each in self.revisions],
            "thresholds": None if self.thresholds is None else self.thresholds.settings(),
        }
        if self.fitted is not None:
            tensors |= {f"fitted.{name}": value for name, value in self.fitted.state_dict().items()}
            description["fitted"] = self.fitted.settings()  # type: ignore[operator]
        storage.save(storage.expand_user(path), tensors, description)

    @classmethod
    def load(
        cls, path: str | Path, network: Network | None = None, method: Method | None = None
    ) -> "Classifier":
        """Reads a classifier written by `save`, on the CPU and in eval mode.

        Files contain no code, so networks and methods of user-defined classes can't be rebuilt from them:
        pass a new `network` with the architecture used for training, whose weights are then loaded, and a
        `method`.
        """
        tensors, description = storage.load(storage.expand_user(path))
        try:
            return cls._rebuild(tensors, description, network, method)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} can't be rebuilt ({textwrap.shorten(str(error), 300)}); expected the weights "
                f"of this network: {description.get('network')}. If you passed a network, build it "
                f"with the arguments used for training. The file was written by daedl "
                f"{description.get('version')}, this is {version('daedl')}: upgrade if the file is newer"
            ) from error

    @classmethod
    def _rebuild(
        cls,
        tensors: dict[str, Tensor],
        description: dict[str, Any],
        network: Network | None,
        method: Method | None,
    ) -> "Classifier":
        saved = description["network"]
        if network is None:
            if saved["name"] not in networks.NETWORKS:
                raise ValueError(
                    f"the file contains a network of the user-defined class {saved['name']!r} "
                    f"({saved['arguments']}); expected Classifier.load(path, network=...)"
                )
            network = networks.build(saved["name"], **saved["arguments"])
        network.to(getattr(torch, description["dtype"]))
        if method is None:
            method = methods.rebuild(
                description["method"]["name"], description["method"]["arguments"]
            )
        if isinstance(method, methods.Ensemble) and not isinstance(network, networks.Members):
            # Copies suffice, because their weights are loaded below.
            copies = [copy.deepcopy(network) for _ in range(method.size - 1)]
            network = networks.Members([network, *copies])
        names, spectral = description.get("class_names"), description["spectral"]
        preprocess = _saved_preprocess(description, network)
        classifier = _assemble(cls, network, spectral, method, names, preprocess)
        classifier.network.load_state_dict(strip_prefix(tensors, "network."))
        if description["fitted"] is not None:
            state = strip_prefix(tensors, "fitted.")
            classifier.fitted = classifier.method.restore(state, description["fitted"])
        revisions = description.get("revisions", [])
        classifier.revisions = tuple(Revision(**each) for each in revisions)
        if (thresholds := description.get("thresholds")) is not None:
            classifier.thresholds = Thresholds.restore(thresholds)
        return classifier.eval()

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Loads weights; raises if either side is fitted, because a fit has more state than its tensors."""
        state = args[0] if args else kwargs["state_dict"]
        if self.fitted is not None or any(name.startswith("fitted.") for name in state):
            raise ValueError(
                "load_state_dict does not support fitted classifiers; expected "
                "Classifier.save and Classifier.load, or model.network.load_state_dict(...) for the weights "
                "alone"
            )
        self.reset()
        return super().load_state_dict(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Classifier":
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        """Supports pickle, for worker processes, without the parametrised layers, which do not."""
        plain, spectral = (
            remove_spectral_norm(copy.deepcopy(self.network)),
            normalization(self.network),
        )
        settings = None if spectral is None else asdict(spectral)
        parts = (type(self), plain, settings, self.method, self.class_names, self.preprocess)
        state = self.network.state_dict()
        more = {name: getattr(self, name) for name in ("fitted", "thresholds", "revisions")}
        return _unpickle, (*parts, state, more, self.training)


def backbone_settings(method: str) -> dict[str, Any]:
    """Returns the default settings of this method on a pretrained backbone."""
    known = look_up(methods.METHODS, method, "method").defaults()
    return {name: value for name, value in BACKBONE_SETTINGS.items() if name in known}


def _build_method(method: str | Method, arguments: dict[str, Any]) -> Method:
    """Builds the method of this name; returns a Method unchanged."""
    if isinstance(method, Method) and arguments:
        raise TypeError(
            f"method is a {type(method).__name__} and settings {sorted(arguments)} were passed too; expected "
            "one of them: pass the settings to the method"
        )
    if not isinstance(method, str | Method):
        raise TypeError(
            f"method is {method!r}; expected a name such as 'daedl', or a Method such as "
            "daedl.methods.DAEDL()"
        )
    return methods.build(method, **arguments) if isinstance(method, str) else method


def _saved_preprocess(description: dict[str, Any], network: Network) -> Preprocess | None:
    """Returns the preprocessing of a model file; the default, with a warning, for files of format 1."""
    if "preprocess" in description:
        settings = description["preprocess"]
        return None if settings is None else Preprocess(**settings)
    assumed = Preprocess.for_shape(network.input_shape)
    if assumed is not None:
        warnings.warn(
            "the model file was written by an earlier version and contains no preprocessing; assuming 8-bit "
            "pixels divided by 255 without normalisation: if the training images were prepared differently, "
            "set model.preprocess and save the model again",
            DataWarning,
            stacklevel=4,
        )
    return assumed


def _require_class_names(names: Sequence[str], number: int) -> None:
    """Raises unless `names` are `number` unique strings."""
    # A string is a sequence of strings too: "cat" would name three classes.
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"class_names are {names!r}; expected a list of strings, one per class: write numbers as strings"
        )
    if len(names) != number:
        raise ValueError(
            f"{len(names)} class names for {number} classes; expected one name per class"
        )
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(
            f"class_names contain {', '.join(map(repr, repeated))} more than once; expected unique names: "
            "rename one of the classes"
        )


def _assemble(
    kind: type[Classifier],
    network: Network,
    spectral: dict[str, Any] | None,
    method: Method,
    class_names: Sequence[str] | None,
    preprocess: Preprocess | None,
) -> Classifier:
    """Builds a classifier with the spectral normalisation `spectral`, whatever its method would use."""
    if spectral is not None and normalization(network) is None:
        spectral_normalize(network, SpectralNorm(**spectral))
    classifier = kind(network, method, class_names, preprocess)
    if spectral is None:
        remove_spectral_norm(classifier.network)
    return classifier


def _unpickle(
    kind: type[Classifier],
    network: Network,
    spectral: dict[str, Any] | None,
    method: Method,
    class_names: Sequence[str] | None,
    preprocess: Preprocess | None,
    state: dict[str, Tensor],
    more: dict[str, Any],
    training: bool,
) -> Classifier:
    classifier = _assemble(kind, network, spectral, method, class_names, preprocess)
    classifier.network.load_state_dict(state)
    for name, value in more.items():
        setattr(classifier, name, value)
    return classifier.train(training)
