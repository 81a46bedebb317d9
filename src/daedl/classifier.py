"""A classifier: network, method and what the method fitted, together."""

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
# features are fixed; a few images per class don't determine a covariance of 1,280 features each; their
# in-sample densities exceed those of new images (docs/architecture.md).
BACKBONE_SETTINGS: Mapping[str, Any] = MappingProxyType(
    {"spectral": None, "covariance": "tied", "leave_one_out": True}
)


@dataclass(frozen=True)
class Revision:
    """One fit of what a method fits after training.

    Attributes:
        samples: that it was given.
        merged: whether they were merged into what was fitted before.
        note: what whoever did it wants to be remembered.
    """

    samples: int
    merged: bool = False
    note: str = ""


class Classifier(nn.Module):
    """Predicts classes with uncertainties in one forward pass.

    Arguments:
        network: returns features and logits; see `daedl.networks`. The method prepares it in place,
            DAEDL by spectral normalisation.
        method: a name in `daedl.methods.METHODS`, or a method with settings of its own.
        class_names: one unique name per class, kept in the model file.
        preprocess: how images become inputs of the network. By default, where the network takes images,
            8-bit pixels are divided by 255 and floats range from 0 to 1. None for inputs that are prepared
            outside of the classifier.
        method_arguments: settings, if `method` is a name.
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
        self.method = _built(method, method_arguments)
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
                f"preprocess gives inputs of shape {self.preprocess.shape} but the network takes "
                f"{tuple(network.input_shape)}; expected the same channels and size"
            )

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        features: str,
        *,
        input_shape: Sequence[int] | None = None,
        method: str | Method = "retrofit",
        class_names: Sequence[str] | None = None,
        preprocess: Preprocess | None = None,
        **method_arguments: Any,
    ) -> "Classifier":
        """Builds a classifier from any module that maps inputs to logits (B, C), in place.

        Methods that read a trained softmax network, such as the default, leave its weights alone:
        `Classifier.from_module(net, "avgpool", input_shape=(3, 224, 224)).fit_post_hoc(loader)`. Others are
        trained with `daedl.fit`.

        Arguments:
            features: dotted name of the submodule whose output is the features, as in `named_modules()`.
            input_shape: shape of one input; by default that of `preprocess`.
            preprocess: by default None: inputs are prepared as for the module's own training.
        """
        if input_shape is None and preprocess is None:
            raise ValueError(
                "neither input_shape nor preprocess was given; expected the shape of one input, such as "
                "input_shape=(3, 224, 224)"
            )
        shape = preprocess.shape if input_shape is None and preprocess else tuple(input_shape or ())
        network = FeatureModule(module, features, shape)
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
        size = pretrained.preprocess.size[0]
        network = Backbone(pretrained.name, number, size, hidden, config=pretrained.config)
        network.load_pretrained(pretrained)
        return cls(network, method, class_names, pretrained.preprocess, **method_arguments)

    def forward(self, inputs: Tensor) -> Outputs:
        """Returns features and logits of raw inputs (B, *input_shape)."""
        return self.network(self.prepare(inputs))  # type: ignore[no-any-return]

    def prepare(self, inputs: Any, where: str = "") -> Tensor:
        """Converts raw inputs to network inputs (B, *input_shape), on the network's device and in its type.

        Every path into the network goes through here: training, post-hoc fits, prediction.

        Arguments:
            inputs: an array or tensor, of uint8 or floats; see `Preprocess`.
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
        """Predicts one input or many, one forward pass each, in eval mode and without gradients.

        Arguments:
            data: an array or tensor of uint8 or floats; PIL images; paths of pictures or of a folder; an
                ImageSet; a Dataset, a DataLoader or another iterable of batches, whose labels are ignored.
            batch_size: inputs per forward pass, which bounds the memory.
        """
        parts = []
        with evaluating(self.network), torch.no_grad():
            for inputs in as_inputs(data, self.preprocess, self.network.input_shape, batch_size):
                if len(inputs) > 0:
                    outputs = self.method.forward(self.network, self.prepare(inputs))
                    parts.append(self.predict_outputs(outputs))
        if not parts:
            raise ValueError("there is nothing to predict; expected at least one input")
        return parts[0] if len(parts) == 1 else Prediction.cat(parts)

    def predict_outputs(self, outputs: Outputs) -> Prediction:
        """Predicts from features and logits that were collected before."""
        columns = outputs.logits.shape[-1]
        if columns != self.network.num_classes:
            raise ValueError(
                f"logits have {columns} columns but the network has {self.network.num_classes} "
                "classes; pass outputs of the same network"
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
        """Chooses which predictions to accept, on held-out `data` of known classes.

        From then on predictions have `accept` and `reason`, and `save` keeps the thresholds. See
        `daedl.selective` for the guarantees and their conditions.

        Arguments:
            data: labelled data that training has not seen, neither for early stopping; see `daedl.fit`.
            target: `daedl.MaxRejectionRate(rate)` or `daedl.MaxErrorRate(rate, delta)`.
            on: "epistemic", "aleatoric" or "both"; by default both, where the method has both.
            seed: of the split that "both" with `MaxErrorRate` needs.
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
        return Outputs(outputs.features.to(device), outputs.logits.to(device))

    def batches(
        self, data: Data, batch_size: int = 256, *, shuffle: bool = False
    ) -> Iterable[Batch]:
        """Converts labelled `data` of any kind to batches; see `daedl.data.loaders.as_batches`."""
        return as_batches(data, batch_size, shuffle=shuffle, read=self._read)

    def _read(self, path: Path) -> ImageSet:
        """Reads labelled images at `path`, converted for the network, with its own labels."""
        from daedl.data.read import read_for  # noqa: PLC0415 (Pillow is imported when needed)

        if self.preprocess is None:
            raise ValueError(
                f"the classifier has no preprocessing, so it can't read {path}; expected preprocess=..., or "
                "prepared tensors"
            )
        numbers = [str(number) for number in range(self.network.num_classes)]
        return read_for(path, self.preprocess, self.class_names or numbers)

    def collect(self, data: Data, name: str = "data") -> tuple[Outputs, Tensor]:
        """Returns features and logits (N, ...) of labelled `data`, each sample once, and the targets (N,)."""
        return collect(self.network, self.batches(data), self.prepare, self.method.forward, name)

    def fit_post_hoc(self, data: Data) -> "Classifier":
        """Fits what the method needs after training, in one pass: a density, a temperature, neighbours.

        `data` are the training data without augmentation; held-out data for a method whose `fit_split` is
        "validation", such as temperature scaling. Does nothing for a method that needs no fit.
        """
        if self.method.needs_fit:
            self.fit_outputs(*self.collect(data, f"{self.method.fit_split} data"))
        return self

    def reset(self) -> None:
        """Drops what was fitted or calibrated, which other weights invalidate."""
        self.fitted, self.thresholds, self.revisions = None, None, ()

    def update_post_hoc(self, data: Data, note: str = "") -> "Classifier":
        """Merges more training `data` into what was fitted, and leaves the network as it is.

        For a new site or camera, or more samples of some classes. The earlier data are not needed: the model
        holds their statistics. `note` is kept with the revision, in the model file. To replace the earlier
        data, call `fit_post_hoc` with new data of every class.
        """
        if self.fitted is None:
            raise NotFittedError(
                f"{self.method.name} has nothing fitted to merge more samples into; expected a fitted "
                "density: call fit_post_hoc first, or use a method with one, such as 'daedl'"
            )
        outputs, targets = self.collect(data, "training data")
        device = next(self.network.parameters()).device
        self.fitted = self.method.refit(self.fitted, outputs, targets).to(device)
        self.thresholds = None
        self.revisions = (*self.revisions, Revision(len(targets), merged=True, note=note))
        return self

    def fit_outputs(self, outputs: Outputs, targets: Tensor) -> None:
        """Fits what the method needs to outputs that were collected before."""
        device = next(self.network.parameters()).device
        fitted = self.method.fit(outputs, targets)
        self.thresholds = None  # scores have another scale from here on
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
        """Write the network, the method and what it fitted to one file, atomically."""
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
        storage.save(storage.expanded(path), tensors, description)

    @classmethod
    def load(
        cls, path: str | Path, network: Network | None = None, method: Method | None = None
    ) -> "Classifier":
        """Read a classifier from a file that `save` wrote, on the CPU, ready to predict.

        A network of one's own class can't be rebuilt from a file without running code from it, so
        pass a new `network`, built as it was for training, and its weights are filled in. Likewise
        pass a `method` that isn't in the table of methods.
        """
        tensors, description = storage.load(storage.expanded(path))
        try:
            return cls._rebuild(tensors, description, network, method)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} can't be rebuilt ({textwrap.shorten(str(error), 300)}); expected the weights "
                f"of this network: {description.get('network')}. If you passed a network, build it "
                f"as it was for training. The file was written by daedl "
                f"{description.get('version')}, this is {version('daedl')}: upgrade if that is newer"
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
                    f"the file holds a network of class {saved['name']!r} ({saved['arguments']}), "
                    "which only you can build; expected Classifier.load(path, network=...)"
                )
            network = networks.build(saved["name"], **saved["arguments"])
        network.to(getattr(torch, description["dtype"]))
        if method is None:
            method = methods.build(
                description["method"]["name"], **description["method"]["arguments"]
            )
        if isinstance(method, methods.Ensemble) and not isinstance(network, networks.Members):
            # Copies: their weights come from the file, so that none need be drawn.
            copies = [copy.deepcopy(network) for _ in range(method.size - 1)]
            network = networks.Members([network, *copies])
        # A file without names is as good as one of a model that has none.
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
        """Refused where a density is involved: it is more than its tensors; use `save` and `load`."""
        state = args[0] if args else kwargs["state_dict"]
        if self.fitted is not None or any(name.startswith("fitted.") for name in state):
            raise ValueError(
                "load_state_dict was called with a fitted density on one side; expected "
                "Classifier.save and Classifier.load, which carry all of it, or "
                "model.network.load_state_dict(...) for the weights alone"
            )
        self.reset()
        return super().load_state_dict(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Classifier":
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle (for worker processes): parametrised layers refuse it, so plain ones are sent along."""
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
    """Defaults of this method on a pretrained backbone."""
    known = look_up(methods.METHODS, method, "method").defaults()
    return {name: value for name, value in BACKBONE_SETTINGS.items() if name in known}


def _built(method: str | Method, arguments: dict[str, Any]) -> Method:
    """Builds the method of this name; returns a built one as it is."""
    if isinstance(method, Method) and arguments:
        raise TypeError(
            f"settings {sorted(arguments)} were given beside a built method; pass them to the method instead"
        )
    if not isinstance(method, str | Method):
        raise TypeError(
            f"method is {method!r}; expected a name such as 'daedl', or a built method such as "
            "daedl.methods.DAEDL()"
        )
    return methods.build(method, **arguments) if isinstance(method, str) else method


def _saved_preprocess(description: dict[str, Any], network: Network) -> Preprocess | None:
    """Restores the preprocessing of a model file; files written before it was kept get the default."""
    if "preprocess" in description:
        settings = description["preprocess"]
        return None if settings is None else Preprocess(**settings)
    assumed = Preprocess.for_shape(network.input_shape)
    if assumed is not None:
        warnings.warn(
            "the model file says nothing about preprocessing, as it was written by an earlier version; "
            "assumed 8-bit pixels divided by 255 without normalisation: if the training images were "
            "prepared in another way, set model.preprocess and save the model again",
            DataWarning,
            stacklevel=4,
        )
    return assumed


def _require_class_names(names: Sequence[str], number: int) -> None:
    """Raise unless there are `number` names, all strings and no two the same."""
    # A single string is a sequence of strings too: "cat" would name three classes.
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"class_names are {names!r}; expected a list of strings, one for each class: write "
            "numbers as strings"
        )
    if len(names) != number:
        raise ValueError(f"{len(names)} class names for {number} classes; expected one each")
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(
            f"class_names hold {', '.join(map(repr, twice))} more than once; expected a name of its "
            "own for each class: rename one"
        )


def _assemble(
    kind: type[Classifier],
    network: Network,
    spectral: dict[str, Any] | None,
    method: Method,
    class_names: Sequence[str] | None,
    preprocess: Preprocess | None,
) -> Classifier:
    """A classifier whose network is normalised as `spectral` says, whatever its method prepares."""
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
