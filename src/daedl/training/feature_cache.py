"""Features on disk, by content: a cached image costs a hash instead of a pass through the backbone."""

import contextlib
import hashlib
import json
import os
import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor

from daedl import storage
from daedl.checks import DataWarning, require_finite
from daedl.classifier import Classifier

# Images per file (chosen): an interrupted extraction loses at most as many.
SHARD = 1024


class CacheWarning(DataWarning):
    """Features can't be read from or written to the cache; they are computed."""


def default_folder() -> Path:
    """The environment variable DAEDL_CACHE, else the cache folder of the platform."""
    if named := os.environ.get("DAEDL_CACHE"):
        return storage.expand_user(named)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", "~\\AppData\\Local")).expanduser() / "daedl"
    if sys.platform == "darwin":
        return Path("~/Library/Caches/daedl").expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "daedl"


class FeatureCache:
    """Features (H,) by the digest of their image, for one backbone with its weights and preprocessing.

    Each file is written once, atomically, with a digest; several processes may use the same folder. A
    damaged file is deleted with a warning; a folder that can't be written to causes a warning.

    Arguments:
        folder: of the cache; None computes everything and writes nothing.
        model: its preprocessing, backbone and weights are part of the key.
    """

    def __init__(self, folder: Path | None, model: Classifier) -> None:
        self.folder = None if folder is None else folder / "features" / _key(model)
        self.width = model.network.plain.encoded
        self.rows: dict[bytes, Tensor] = {}
        self.new: list[bytes] = []
        if self.folder is not None:
            for path in sorted(self.folder.glob("*.safetensors")):
                self._read(path)

    def get(self, digest: bytes) -> Tensor | None:
        """Returns the features (H,) of the image with this digest, if they are known."""
        return self.rows.get(digest)

    def put(self, digest: bytes, features: Tensor) -> None:
        """Adds features (H,); written with the next full file, or by `flush`."""
        if digest not in self.rows:
            self.new.append(digest)
        self.rows[digest] = features
        if len(self.new) >= SHARD:
            self.flush()

    def flush(self) -> None:
        """Writes features that were added since the last file."""
        new, self.new = self.new, []
        if self.folder is None or not new:
            return
        keys = torch.frombuffer(bytearray(b"".join(new)), dtype=torch.uint8).view(len(new), -1)
        path = (
            self.folder / f"{hashlib.sha256(keys.numpy().tobytes()).hexdigest()[:16]}.safetensors"
        )
        tensors = {"keys": keys, "features": torch.stack([self.rows[each] for each in new])}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            storage.save(path, tensors, {"kind": "features"})
        except OSError as error:
            self.folder = None  # one warning is enough
            warnings.warn(
                f"features can't be cached ({error.strerror or error}); training continues, and the next run "
                "computes them again: choose another folder with cache=..., --cache or DAEDL_CACHE",
                CacheWarning,
                stacklevel=2,
            )

    def _read(self, path: Path) -> None:
        try:
            tensors, _ = storage.load(path)
            keys, features = tensors["keys"], tensors["features"]
            if features.shape != (len(keys), self.width):
                raise ValueError(f"features have shape {tuple(features.shape)}")
            require_finite(features, "features")
        except (OSError, ValueError, KeyError) as error:
            # Not the error itself, which advises what to do with a damaged model file.
            reason = getattr(error, "strerror", None) or "it is damaged"
            warnings.warn(
                f"{path} can't be used ({reason}); expected features as they were cached: they are computed "
                "again, no action is needed",
                CacheWarning,
                stacklevel=2,
            )
            with contextlib.suppress(OSError):
                path.unlink()
            return
        self.rows |= dict(zip(map(bytes, keys.numpy()), features, strict=True))


def digest_of(image: Tensor | str) -> bytes:
    """Digest of one image, by type, shape and values, or of one text, before preprocessing."""
    if isinstance(image, str):
        return hashlib.sha256(image.encode("utf-8", "surrogatepass")).digest()
    kind = f"{image.dtype} {tuple(image.shape)}".encode()
    return hashlib.sha256(kind + image.cpu().contiguous().numpy().tobytes()).digest()


def _key(model: Classifier) -> str:
    """Digest of everything but the image that determines its features."""
    network = model.network.plain
    preprocess = None if model.preprocess is None else model.preprocess.settings()
    # The head, its width and the number of classes don't change the features.
    names = ("backbone", "image_size", "features", "config", "pooling")
    settings = {name: network.arguments[name] for name in names if name in network.arguments}
    digest = hashlib.sha256(json.dumps([settings, preprocess], sort_keys=True).encode())
    for block, module in network.backbone_blocks():  # type: ignore[operator]
        for name, value in module.state_dict().items():
            digest.update(f"{block}.{name}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
