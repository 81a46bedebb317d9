"""A classifier: network, method and what the method fitted, together."""

import copy
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from daedl import methods, networks, storage
from daedl.checks import NotFittedError, require_finite, require_images, require_whole
from daedl.density import DensityEffect, DensityScorer, density_effect
from daedl.distributed import sum_across
from daedl.methods import Method
from daedl.names import strip_prefix
from daedl.networks import Network
from daedl.outputs import Data, Outputs, collect, evaluating
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
        network: gives features and logits; see `daedl.networks`. The method prepares it in place,
            DAEDL by spectral normalisation.
        method: a name in `daedl.methods.METHODS`, or a method with settings of its own.
        class_names: one for each class, no two the same, kept in the model file.
        method_arguments: settings, if `method` is a name.
    """

    network: Network
    fitted: nn.Module | None

    def __init__(
        self,
        network: Network,
        method: str | Method = "daedl",
        class_names: Sequence[str] | None = None,
        **method_arguments: Any,
    ) -> None:
        super().__init__()
        if not isinstance(network, Network):
            raise TypeError(
                f"network is a {type(network).__name__}; expected a daedl network: wrap your own "
                "module with daedl.networks.FeatureModule(module, features=..., input_shape=...)"
            )
        if isinstance(method, Method) and method_arguments:
            raise TypeError(
                f"settings {sorted(method_arguments)} were given beside a built method; pass them "
                "to the method instead"
            )
        if not isinstance(method, str | Method):
            raise TypeError(
                f"method is {method!r}; expected a name such as 'daedl', or a built method such as "
                "daedl.methods.DAEDL()"
            )
        self.method = (
            methods.build(method, **method_arguments) if isinstance(method, str) else method
        )
        self.network = self.method.prepare(network)
        self.fitted = None
        self.thresholds: Thresholds | None = None
        self.revisions: tuple[Revision, ...] = ()
        if class_names is not None:
            _require_class_names(class_names, network.num_classes)
        self.class_names = None if class_names is None else [str(name) for name in class_names]

    def forward(self, images: Tensor) -> Outputs:
        """Features and logits of images (B, *input_shape), as the network gives them."""
        return self.network(images)  # type: ignore[no-any-return]

    def predict(self, images: Tensor, batch_size: int = 512) -> Prediction:
        """Predict images (B, *input_shape), one forward pass each, in eval mode and without gradients.

        More than `batch_size` images are run in batches of it, which bounds the memory.
        """
        parameter = next(self.network.parameters())
        require_whole("batch_size", batch_size, 1, "256")
        require_images(images, self.network.input_shape, parameter.dtype)
        if len(images) == 0:
            raise ValueError("images are an empty batch; expected at least one image")
        with evaluating(self.network), torch.no_grad():
            parts = [
                self.predict_outputs(self.method.forward(self.network, part.to(parameter.device)))
                for part in torch.split(images, batch_size)
            ]
        return parts[0] if len(parts) == 1 else Prediction.cat(parts)

    def predict_outputs(self, outputs: Outputs) -> Prediction:
        """Predict from features and logits that were collected before."""
        columns = outputs.logits.shape[-1]
        if columns != self.network.num_classes:
            raise ValueError(
                f"logits have {columns} columns but the network has {self.network.num_classes} "
                "classes; pass outputs of the same network"
            )
        require_finite(outputs.features, "features")
        require_finite(outputs.logits, "logits")
        prediction = self.method.predict(self._beside(outputs), self.fitted)
        return replace(prediction, thresholds=self.thresholds, class_names=self.class_names)

    def calibrate(
        self,
        batches: Data,
        target: Target = DEFAULT_TARGET,
        on: On | None = None,
        seed: int = 0,
    ) -> Thresholds:
        """Choose which predictions to accept, on held-out `batches` of known (images, targets).

        From then on predictions have `accept` and `reason`, and `save` keeps the thresholds. See
        `daedl.selective` for what is guaranteed, and under which conditions.

        Arguments:
            batches: data that training has not seen; not those that it was stopped by either, if the
                guarantee is to hold to the letter.
            target: `daedl.MaxRejectionRate(share)` or `daedl.MaxErrorRate(share, delta)`.
            on: "epistemic", "aleatoric" or "both"; by default both, where the method has both.
            seed: of a draw that "both" with `MaxErrorRate` needs.
        """
        outputs, targets = self.collect(batches, "calibration data")
        prediction = self.predict_outputs(outputs)
        wrong = prediction.labels.cpu() != targets
        scores = {name: score.cpu() for name, score in prediction.scores().items()}
        self.thresholds = choose(scores, wrong, target, on, seed)
        return self.thresholds

    def _beside(self, outputs: Outputs) -> Outputs:
        """`outputs` on the device of the network."""
        device = next(self.network.parameters()).device
        return Outputs(outputs.features.to(device), outputs.logits.to(device))

    def collect(self, batches: Data, name: str = "data") -> tuple[Outputs, Tensor]:
        """Features and logits (N, ...) of all `batches` of (images, targets), and the targets (N,)."""
        return collect(self.network, batches, self.method.forward, name)

    def fit_post_hoc(self, batches: Data) -> "Classifier":
        """Fit what the method needs after training, in one pass over training `batches`.

        A method whose `fit_split` is "validation", as temperature scaling, is given held-out data. For
        a method that needs nothing, nothing is done.
        """
        if self.method.needs_fit:
            self.fit_outputs(*self.collect(batches, f"{self.method.fit_split} data"))
        return self

    def reset(self) -> None:
        """Drop what was fitted or calibrated: of no use for other weights."""
        self.fitted, self.thresholds, self.revisions = None, None, ()

    def update_post_hoc(self, batches: Data, note: str = "") -> "Classifier":
        """Merge more training `batches` into what was fitted, and leave the network as it is.

        For a new site or camera, or more samples of some classes. Nothing of the earlier data is needed
        but the statistics that the model holds. `note` is kept with the revision, in the model file. To
        forget the earlier data instead, call `fit_post_hoc` with new ones of every class.
        """
        if self.fitted is None:
            raise NotFittedError(
                f"{self.method.name} has nothing fitted to merge more samples into; expected a fitted "
                "density: call fit_post_hoc first, or take a method that has one, such as 'daedl'"
            )
        outputs, targets = self.collect(batches, "training data")
        device = next(self.network.parameters()).device
        self.fitted = self.method.refit(self.fitted, outputs, targets).to(device)
        self.thresholds = None
        self.revisions = (*self.revisions, Revision(len(targets), merged=True, note=note))
        return self

    def fit_outputs(self, outputs: Outputs, targets: Tensor) -> None:
        """Fit what the method needs to outputs of the training set that were collected before."""
        device = next(self.network.parameters()).device
        fitted = self.method.fit(outputs, targets)
        self.thresholds = None  # scores mean something else from here on
        self.fitted = None if fitted is None else fitted.to(device)
        samples = int(sum_across(torch.tensor(len(targets))))
        self.revisions = () if fitted is None else (Revision(samples),)

    def density_effect(self, batches: Data) -> DensityEffect:
        """How much the density did on held-out in-distribution `batches`."""
        if not isinstance(self.fitted, DensityScorer):
            raise ValueError(
                f"method {self.method.name!r} has no fitted density; expected 'daedl' after fitting"
            )
        return density_effect(self._beside(self.collect(batches)[0]), self.fitted)

    def save(self, path: str | Path) -> None:
        """Write the network, the method and what it fitted to one file, atomically."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        spectral, plain = normalization(self.network), self.network.plain
        description: dict[str, Any] = {
            "version": version("daedl"),
            "network": {"name": type(plain).__name__, "arguments": plain.arguments},
            "method": {"name": self.method.name, "arguments": self.method.arguments()},
            "class_names": self.class_names,
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
        classifier = _assemble(cls, network, spectral, method, names)
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
        parts = (type(self), plain, settings, self.method, self.class_names)
        state = self.network.state_dict()
        more = {name: getattr(self, name) for name in ("fitted", "thresholds", "revisions")}
        return _unpickle, (*parts, state, more, self.training)


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
) -> Classifier:
    """A classifier whose network is normalised as `spectral` says, whatever its method prepares."""
    if spectral is not None and normalization(network) is None:
        spectral_normalize(network, SpectralNorm(**spectral))
    classifier = kind(network, method, class_names)
    if spectral is None:
        remove_spectral_norm(classifier.network)
    return classifier


def _unpickle(
    kind: type[Classifier],
    network: Network,
    spectral: dict[str, Any] | None,
    method: Method,
    class_names: Sequence[str] | None,
    state: dict[str, Tensor],
    more: dict[str, Any],
    training: bool,
) -> Classifier:
    classifier = _assemble(kind, network, spectral, method, class_names)
    classifier.network.load_state_dict(state)
    for name, value in more.items():
        setattr(classifier, name, value)
    return classifier.train(training)
