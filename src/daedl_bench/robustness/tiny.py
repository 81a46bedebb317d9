"""Small model files with a valid digest that describe networks of gigabytes, or minutes of work."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

import daedl
from daedl import storage
from daedl.methods import regression
from daedl.networks import MLP, ConvNet, Network, ResNet18, WhitenNet
from daedl_bench.memory import memory, reset_peak
from daedl_bench.robustness._place import Figure, Place

# Method, network, and settings in the description with their values.
LARGE: tuple[tuple[str, type[Network], Mapping[str, Any]], ...] = (
    ("daedl", MLP, {"network.arguments.hidden": [25_000, 25_000]}),
    ("daedl", MLP, {"network.arguments.hidden": [1] * 100_000}),
    ("daedl", MLP, {"spectral.iterations": 10**9}),
    ("daedl", ConvNet, {"network.arguments.image_size": 6000}),
    # No weight depends on the size.
    ("softmax", ResNet18, {"network.arguments.image_size": 20_000, "preprocess.size": 20_000}),
    ("softmax", ResNet18, {"network.arguments.image_size": 10**9, "preprocess.size": 10**9}),
    ("softmax", WhitenNet, {"network.arguments.hidden": [10**6, 10**6]}),
    ("ensemble", MLP, {"method.arguments.size": 20_000}),
    ("natpn", MLP, {"method.arguments.depth": 50_000}),
    ("sngp", MLP, {"method.arguments.width": 10**6}),
    ("dropout", MLP, {"method.arguments.num_passes": 10**8}),
    ("nuq", MLP, {"fitted.num_classes": 10**9}),
    ("adats", MLP, {"fitted.num_features": 10**9}),
)

SMALL: Mapping[type[Network], Callable[[], Network]] = MappingProxyType(
    {
        MLP: lambda: MLP(4, 3, hidden=(8,)),
        ConvNet: lambda: ConvNet(1, 3, image_size=8, channels=4),
        ResNet18: lambda: ResNet18(1, 3, image_size=8, channels=4),
        WhitenNet: lambda: WhitenNet(1, 3, image_size=8, hidden=(4, 4)),
    }
)


def measure(place: Place) -> list[Figure]:
    """CPU seconds and memory that `load` takes until it refuses each file; Linux only."""
    loaded, slowest, largest = 0, 0.0, 0.0
    paths = [written(place.folder, number) for number in range(len(LARGE))]
    for path in paths:
        before, started = reset_peak(), time.process_time()
        try:
            daedl.Classifier.load(path)
            loaded += 1
        except ValueError:
            slowest = max(slowest, time.process_time() - started)
        largest = max(largest, memory("VmHWM") - before)
    return [
        Figure("files", len(LARGE)),
        Figure("largest file", max(path.stat().st_size for path in paths) / 1024, None, "KiB"),
        Figure("files loaded", loaded, 0),
        Figure("longest until refused, CPU time", slowest, 1, "s"),
        Figure("largest peak of memory", largest, 50, "MiB"),
    ]


def written(folder: Path, number: int) -> Path:
    """The file of entry `number` of `LARGE`."""
    method, kind, values = LARGE[number]
    path = folder / f"{number}.daedl"
    settings = {"epochs": 1} if method == "adats" else {}
    tensors, description = saved(path, method, kind, **settings)
    for keys, value in values.items():
        description = changed(description, keys, value)
    storage.save(path, tensors, description)
    return path


def saved(
    path: Path, method: str = "daedl", kind: type[Network] = MLP, **settings: Any
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Save a small fitted and calibrated model, and return its tensors and description."""
    torch.manual_seed(0)
    network = SMALL[kind]()
    inputs, classes = torch.rand(90, *network.input_shape), torch.arange(90) % 3
    if method in regression.METHODS:
        regressor = daedl.Regressor(network, method, **settings)
        targets = inputs[:, :3] + classes[:, None]
        daedl.fit(regressor, [(inputs, targets)], max_epochs=1, progress=False)
        regressor.calibrate([(inputs, targets)])
        regressor.save(path)
    else:
        classifier = daedl.Classifier(network, method, **settings)
        classifier.fit_post_hoc((inputs, classes)).calibrate((inputs, classes))
        classifier.save(path)
    return storage.load(path)


def changed(description: dict[str, Any], keys: str, value: Any) -> dict[str, Any]:
    """A copy of `description` with another value at the dotted `keys`."""
    copy: dict[str, Any] = json.loads(json.dumps(description))
    *parents, last = keys.split(".")
    entry: Any = copy
    for key in parents:
        entry = entry[key]
    entry[last] = value
    return copy
