"""The parts of a classifier, and how a model file stores them; see `daedl.storage` for the file format."""

import copy
import io
import math
import textwrap
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec
import torch
from torch import Tensor, nn

from daedl import storage
from daedl.checks import DataWarning, require_finite
from daedl.data import InputKind, Preprocess, kinds
from daedl.data.scaling import Columns, Scaling
from daedl.description import Description, Revision
from daedl.methods.base import BaseMethod
from daedl.methods.regression import RegressionMethod
from daedl.names import strip_prefix
from daedl.networks import Network
from daedl.outputs import evaluating
from daedl.rebuild import rebuild, restore
from daedl.selective import Thresholds
from daedl.spectral import normalization, remove_spectral_norm, spectral_normalize


@dataclass(frozen=True, eq=False)
class Parts:
    """Everything that a model file stores of a classifier, with its attribute names.

    `network` is already prepared for the method, so it may have a head and spectral normalisation.
    """

    network: Network
    method: BaseMethod
    class_names: Sequence[str] | None
    preprocess: InputKind | None
    fitted: nn.Module | None = None
    thresholds: Thresholds | None = None
    revisions: tuple[Revision, ...] = ()
    trained_on: Mapping[str, Any] | None = (
        None  # JSON-able record of the training, for `daedl info`
    )
    scaling: Scaling | None = None  # of a regressor

    def __post_init__(self) -> None:
        if self.class_names is not None:
            _require_class_names(self.class_names, self.network.num_classes)
            object.__setattr__(self, "class_names", [str(name) for name in self.class_names])
        shape = tuple(self.network.input_shape)
        if isinstance(self.method, RegressionMethod) != (self.scaling is not None):
            raise ValueError(
                f"the method is {self.method.name!r} and the units of targets are {self.scaling}; expected "
                "units for methods of regression, and None for others"
            )
        if self.scaling is not None:
            _require_columns(self.scaling.targets, self.network.num_classes, "targets")
            if self.scaling.features is not None:
                _require_columns(self.scaling.features, math.prod(shape), "features")
        if self.preprocess is not None and self.preprocess.shape != shape:
            raise ValueError(
                f"preprocess returns inputs of shape {self.preprocess.shape} but the network takes {shape}; "
                "expected the same channels and size"
            )


class StoredModule(nn.Module):
    """A module that consists of `Parts`, and can be saved, loaded, copied and pickled."""

    network: Network
    method: BaseMethod
    class_names: list[str] | None
    preprocess: InputKind | None
    fitted: nn.Module | None
    thresholds: Thresholds | None
    revisions: tuple[Revision, ...]
    trained_on: Mapping[str, Any] | None
    scaling: Scaling | None
    kind: ClassVar[type[BaseMethod]]  # of method

    @classmethod
    def from_parts(cls, parts: Parts) -> Self:
        """Builds a module from existing parts; unlike a constructor, does not prepare the network."""
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        module.set_parts(parts)
        return module

    def set_parts(self, parts: Parts) -> None:
        """Sets the attributes named in `Parts`."""
        for name, value in vars(parts).items():
            setattr(self, name, value)

    def reset(self) -> None:
        """Discards post-hoc fits, thresholds and the training record, which new weights invalidate."""
        self.fitted, self.thresholds, self.revisions, self.trained_on = None, None, (), None

    def save(self, path: str | Path) -> None:
        """Writes the network, the method, the post-hoc fit and the thresholds to one file, atomically."""
        write(path, Parts(**{each.name: getattr(self, each.name) for each in fields(Parts)}))

    @classmethod
    def load(
        cls, path: str | Path, network: Network | None = None, method: BaseMethod | None = None
    ) -> Self:
        """Reads a classifier written by `save`, on the CPU and in eval mode.

        Files contain no code, so networks and methods of user-defined classes can't be rebuilt from them:
        pass a new `network` with the architecture used for training, whose weights are then loaded, and a
        `method`.
        """
        parts = read(path, network, method)
        if not isinstance(parts.method, cls.kind):
            raise TypeError(
                f"{path} contains the method {parts.method.name!r}; expected a {cls.kind.__name__} for "
                f"{cls.__name__}: call daedl.load(path), which returns a classifier or a regressor"
            )
        return cls.from_parts(parts).eval()

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

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Supports pickle, for worker processes: parametrised layers can't be pickled, their tensors can.

        Bytes, because tensors sent to a spawned process share memory by descriptors, which end with the
        temporary tensors here.
        """
        plain = remove_spectral_norm(copy.deepcopy(self.network))
        saved = plain, normalization(self.network), self.network.state_dict()
        buffer = io.BytesIO()
        torch.save({**vars(self), "_modules": {**self._modules, "network": saved}}, buffer)
        return {"saved": buffer.getvalue()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Code in these bytes is no new risk: they are part of a pickle, which can run code anyway.
        state = torch.load(io.BytesIO(state["saved"]), weights_only=False)
        network, spectral, tensors = state["_modules"]["network"]
        if spectral is not None:
            spectral_normalize(network, spectral)
        network.load_state_dict(tensors)
        self.__dict__.update(state, _modules={**state["_modules"], "network": network})


def write(path: str | Path, parts: Parts) -> None:
    """Writes a model file, atomically."""
    network, fitted = parts.network, parts.fitted
    tensors = {f"network.{name}": value for name, value in network.state_dict().items()}
    if fitted is not None:
        tensors |= {f"fitted.{name}": value for name, value in fitted.state_dict().items()}
    spectral, plain = normalization(network), network.plain
    _require_finite(network, tensors)
    content = {
        "version": version("daedl"),
        "network": {"name": type(plain).__name__, "arguments": plain.arguments},
        "method": {"name": parts.method.name, "arguments": parts.method.arguments()},
        "class_names": parts.class_names,
        "preprocess": None if parts.preprocess is None else parts.preprocess.settings(),
        "spectral": None if spectral is None else asdict(spectral),
        "dtype": str(next(network.parameters()).dtype).removeprefix("torch."),
        "fitted": None if fitted is None else fitted.settings(),  # type: ignore[operator]
        "revisions": [asdict(each) for each in parts.revisions],
        "thresholds": None if parts.thresholds is None else parts.thresholds.settings(),
        "trained_on": parts.trained_on,
    }
    if parts.scaling is not None:
        content["scaling"] = asdict(parts.scaling)
    if plain.form is not None:
        content["form"] = plain.form
    msgspec.convert(content, Description)  # raises for what `read` would reject
    storage.save(storage.expand_user(path), tensors, content)


def read(path: str | Path, network: Network | None, method: BaseMethod | None) -> Parts:
    """Reads a model file; `network` and `method` replace user-defined classes, see `Classifier.load`."""
    if network is not None:
        require_network(network)
    tensors, content = storage.load(storage.expand_user(path))
    named = "unknown"
    try:
        named = textwrap.shorten(str(content.get("network")), 300)
        return _parts(tensors, msgspec.convert(content, Description), network, method)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise ValueError(
            f"{path} can't be rebuilt ({textwrap.shorten(str(error), 300)}); expected the weights "
            f"of this network: {named}. If you passed a network, build it "
            f"with the arguments used for training. The file was written by daedl "
            f"{str(content.get('version'))[:20]}, this is {version('daedl')}: upgrade if the file is newer"
        ) from error


def require_network(network: Any) -> None:
    """Raises unless `network` is a `daedl.networks.Network`."""
    if not isinstance(network, Network):
        raise TypeError(
            f"network is a {type(network).__name__}; expected a network of daedl.networks: pass your own "
            "module to daedl.Classifier.from_module(module, features=..., input_shape=...)"
        )


def _parts(
    tensors: Mapping[str, Tensor],
    description: Description,
    network: Network | None,
    method: BaseMethod | None,
) -> Parts:
    rebuilt = rebuild(strip_prefix(tensors, "network."), description, network, method)
    if description.form is not None:
        rebuilt.network.plain.form = description.form
    _require_finite(rebuilt.network, tensors)
    fitted, thresholds = description.fitted, description.thresholds
    parts = Parts(
        rebuilt.network,
        rebuilt.method,
        description.class_names,
        _preprocess(description, rebuilt.network),
        None
        if fitted is None
        else restore(strip_prefix(tensors, "fitted."), fitted, rebuilt.method),
        None if thresholds is None else Thresholds.restore(thresholds),
        description.revisions,
        description.trained_on,
        description.scaling,
    )
    longest = parts.preprocess and parts.preprocess.longest(next(parts.network.parameters()))
    if longest is not None:  # the preprocessing may belong to another network
        with evaluating(parts.network), torch.no_grad():
            parts.network(longest)
    if parts.fitted is not None or not rebuilt.method.needs_fit:
        # A fit or limits that do not belong to the network fail here, not in the first prediction.
        prediction = rebuilt.method.predict(rebuilt.outputs, parts.fitted)
        prediction.limited(parts.thresholds).columns()
    return parts


def _preprocess(description: Description, network: Network) -> InputKind | None:
    """Returns the preprocessing of a model file; the default, with a warning, for files of format 1."""
    if not isinstance(description.preprocess, msgspec.UnsetType):
        settings = description.preprocess
        return None if settings is None else kinds.restore(settings)
    assumed = Preprocess.for_shape(network.input_shape)
    if assumed is not None:
        warnings.warn(
            "the model file was written by an earlier version and contains no preprocessing; assuming 8-bit "
            "pixels divided by 255 without normalisation: if the training images were prepared differently, "
            "set model.preprocess and save the model again",
            DataWarning,
            stacklevel=5,  # the caller of Classifier.load
        )
    return assumed


def _require_columns(columns: Columns, number: int, noun: str) -> None:
    """Raises unless there are `number` columns: PyTorch would repeat a single one."""
    if len(columns.mean) != number:
        raise ValueError(
            f"there are units of {len(columns.mean)} {noun} but the network has {number}; expected one mean "
            "and deviation for each"
        )


def _require_finite(network: Network, tensors: Mapping[str, Tensor]) -> None:
    """Raises if tensors of a model file for `network` are NaN or infinite.

    Buffers of other packages' and users' modules may be, such as a mask of −∞.
    """
    exempt: set[str] = set()
    if network.plain.is_foreign or network.plain.is_pretrained:
        exempt = {f"network.{name}" for name, _ in network.named_buffers()}
    for name in tensors.keys() - exempt:
        require_finite(tensors[name], name)


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
