"""Training of a classifier on a frozen backbone: one pass over the images, then a head on their features."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from daedl.checks import require_batch, require_finite
from daedl.classifier import Classifier
from daedl.data.loaders import Data, count
from daedl.inputs import Inputs, as_input, select
from daedl.methods import Method
from daedl.networks import Backbone, lay_out
from daedl.outputs import evaluating
from daedl.storage import expand_user
from daedl.training.feature_cache import FeatureCache, default_folder, digest_of
from daedl.training.fit import fit
from daedl.training.history import History

# Images per pass (measured on one core with EfficientNet-Lite0: 8 ms an image, 14 ms with 64).
BATCH = 16
# Texts per pass, of which an encoder runs those of similar length together (measured on CLINC150: with 16,
# which are padded to the longest of them, encoding takes 1.3 to 1.5 times as long).
TEXTS = 256
# Seconds between lines of progress where the output is no terminal (chosen).
INTERVAL = 10.0
# Seconds from which the estimated time is printed (chosen).
MENTIONED = 1.0
# Batches after which the time is estimated (chosen): the first one also allocates memory.
FIRST = 3

Cache = str | Path | Literal["default"] | None


def fit_frozen(
    model: Classifier,
    train: Data,
    val: Data | None = None,
    *,
    flip: bool = False,
    cache: Cache = "default",
    progress: bool = True,
    **options: Any,
) -> History:
    """Trains the head of `model` on features of its frozen backbone, and fits its density to them.

    Every image or text passes through the backbone once, without augmentation. Features are cached on disk by
    the content of the input, so that another method, seed or split costs seconds. The result is the same
    kind of model as after `daedl.fit`: backbone, head and density in one.

    Arguments:
        model: from `Classifier.from_backbone`.
        train, val: as for `daedl.fit`.
        flip: also train on mirrored copies of the training images; the density sees the originals.
        cache: folder for features; by default DAEDL_CACHE or the platform's cache folder. None disables it.
        progress: print the estimated time, and show progress.
        options: of `daedl.fit`, for the head.
    """
    head = head_of(model)
    store = _store(cache, model)
    plain = features_of(model, train, store, "training", progress=progress)
    joined = plain
    if flip:
        mirrored = features_of(model, train, store, "mirrored", mirror=True, progress=progress)
        joined = tuple(torch.cat(parts) for parts in zip(plain, mirrored, strict=True))
    held_out = (
        None if val is None else features_of(model, val, store, "validation", progress=progress)
    )
    history = fit(head, joined, held_out, fit_data=plain, progress=progress, **options)
    model.network.load_state_dict(head.network.state_dict(), strict=False)
    model.reset()
    model.fitted, model.revisions = head.fitted, head.revisions
    model.eval()
    return history


def on_features(
    model: Classifier, cache: Cache = "default", *, progress: bool = False
) -> tuple[Classifier, Callable[[Data, str], Data]]:
    """Returns the head of a frozen backbone, and a function from data and their name to cached features.

    `model` itself, and a function that returns its data, if its images have to pass through the network.
    """
    try:
        head = head_of(model)
    except (
        TypeError,
        ValueError,
    ):  # no backbone, a fine-tuned one, or a method with several passes
        return model, lambda data, _: data
    store = _store(cache, model)
    return head, lambda data, name: features_of(model, data, store, name, progress=progress)


def features_of(
    model: Classifier,
    data: Data,
    store: FeatureCache,
    name: str,
    *,
    mirror: bool = False,
    progress: bool = False,
) -> tuple[Tensor, ...]:
    """Returns features (N, H) of `data`, labels (N,) and sample weights (N,) if there are any.

    Features are read from `store`, or computed and added to it.
    """
    shape = model.network.input_shape
    batches = model.batches(data, BATCH if shape else TEXTS)
    parts: list[tuple[Tensor, ...]] = []
    lay_out(model.network)
    try:
        with evaluating(model.network), torch.no_grad():
            for number, batch in enumerate(_reported(batches, name, progress)):
                where = f" of batch {number} of the {name} data"
                raw, labels, weights = require_batch(batch, where)
                inputs = as_input(raw, shape, where) if shape else raw
                features = _features(model, inputs.flip(-1) if mirror else inputs, store, where)
                parts.append((features, labels.long(), *([] if weights is None else [weights])))
    finally:
        lay_out(model.network, torch.contiguous_format)
        store.flush()
    if not parts:
        raise ValueError(
            f"the {name} data have no batch; expected at least one (inputs, labels) pair"
        )
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def _store(cache: Cache, model: Classifier) -> FeatureCache:
    folder = default_folder() if cache == "default" else cache
    return FeatureCache(None if folder is None else expand_user(folder), model)


def _features(model: Classifier, raw: Inputs, store: FeatureCache, where: str) -> Tensor:
    digests = [digest_of(each) for each in raw]
    if missing := [i for i, each in enumerate(digests) if store.get(each) is None]:
        inputs = model.prepare(select(raw, missing), where)
        computed = model.network.plain.encode(inputs).float().cpu()  # type: ignore[operator]
        require_finite(computed, "features", where)
        for i, features in zip(missing, computed, strict=True):
            store.put(digests[i], features)
    return torch.stack([store.rows[each] for each in digests])


def head_of(model: Classifier) -> Classifier:
    """Returns a classifier on features of the backbone, with the method, weights and density of `model`."""
    network, method = model.network.plain, getattr(model.method, "member", model.method)
    if not isinstance(network, Backbone):
        raise TypeError(
            f"the network is a {type(network).__name__}; expected a backbone: build the classifier with "
            "Classifier.from_backbone(...), or train it with daedl.fit"
        )
    sees_images = type(method).training_loss is not Method.training_loss
    if sees_images or type(method).forward is not Method.forward:
        raise ValueError(
            f"{method.name!r} needs images in training or several passes through the network; expected a "
            "method that needs features only: train this one with daedl.fit"
        )
    head = Classifier(network.head(), model.method, model.class_names, preprocess=None)
    parameter = next(network.parameters())
    head.to(parameter.device, parameter.dtype)
    initial, names = model.network.state_dict(), head.network.state_dict()
    head.network.load_state_dict({name: initial[name] for name in names})
    head.fitted = model.fitted
    return head.eval()


def _reported(batches: Iterable[Any], name: str, wanted: bool) -> Iterator[Any]:
    """Yields `batches`; shows a bar on a terminal, otherwise an estimate of the time, then intervals."""
    total, console, title = count(batches), Console(), f"features of the {name} data"
    if not wanted or total is None:
        yield from batches
        return
    if console.is_terminal:
        yield from track(batches, title, total, console=console, transient=True)
        return
    started = last = time.perf_counter()
    for done, batch in enumerate(batches, start=1):
        yield batch
        now = time.perf_counter()
        left = (now - started) / done * (total - done)
        if done == FIRST and left > MENTIONED:
            print(f"{title}: about {left:.0f} s", flush=True)
        elif now - last > INTERVAL:
            last = now
            print(f"{title}: {done} of {total} batches, {left:.0f} s left", flush=True)
