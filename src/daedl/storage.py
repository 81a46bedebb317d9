"""Model files: safetensors with a JSON description in the header; no pickle, written atomically.

Layout: every tensor in safetensors' own format; under the metadata key "daedl" a JSON object with
`format` (the layout's version), `version` (the library's), whatever the classifier adds, and `sha256`, a
digest of all that and of all tensors, which tells a damaged or altered file from a whole one (it is no
signature: who alters a file can alter the digest too). The same model gives the same bytes.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

# 2: `preprocess` in the description. Earlier versions would ignore it, and so must not read newer files.
FORMAT = 2


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to a temporary file beside `path`, then rename it: `path` is old or new, never half.

    An existing file keeps its permissions, and a symbolic link its place.
    """
    if path.is_dir():
        raise IsADirectoryError(
            errno.EISDIR, f"cannot write to {path}: it is a folder; expected the path of a file"
        )
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        raise OSError(
            error.errno,
            f"cannot write {len(data):,} bytes to {path}: {error.strerror or error}; expected a "
            "folder that exists, may be written to and has room. What was there before is whole",
        ) from error


def expanded(path: str | Path) -> Path:
    """`path` with the home folder that a tilde stands for."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"{path} names the home folder of a user that isn't known here; expected one that is: write "
            "the path out, or ./~ for a folder of that name"
        ) from error


def require_writable(folder: Path) -> None:
    """Raise if no file can be written into `folder`: found out before hours are spent."""
    probe = folder / f".{secrets.token_hex(4)}"
    try:
        write_atomically(probe, b"")
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        raise OSError(
            error.errno,
            f"cannot write into the folder {folder}: {reason}; expected a folder that exists, may be "
            "written to and has room",
        ) from error
    probe.unlink()


def require_folder(folder: Path, remedy: str = "choose another one") -> None:
    """Make `folder` if need be; raise if files can't be written into it. `remedy` says what to do then."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_writable(folder)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        raise OSError(
            error.errno,
            f"cannot write into the folder {folder}: {reason}; expected a folder that exists or can be "
            f"made, and may be written to: {remedy}",
        ) from error


def save(path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write `tensors` and the JSON-able `description` to the file `path`."""
    # Copies: safetensors refuses tensors that share memory, as tied weights do.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    full = {"format": FORMAT, **description}
    text = json.dumps({**full, "sha256": _digest(plain, full)}, sort_keys=True)
    write_atomically(path, safetensors.torch.save(plain, {"daedl": text}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file that `save` wrote; anything else is refused with the reason."""
    if not path.is_file():
        raise FileNotFoundError(
            f"no model file at {path}; expected one written by Classifier.save or `daedl train`: check the "
            "path, or train a model first"
        )
    with path.open("rb") as file:
        start = file.read(9)
    # A safetensors file has its header's length first, whose bytes may be anything, then JSON.
    if start.startswith((b"PK\x03\x04", b"\x80")) and not start.endswith(b"{"):
        raise ValueError(
            f"{path} is a pickle or a torch.save archive; refused, because loading one can run any "
            "code. Load it yourself if you trust it, and save with Classifier.save"
        )
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is truncated or not a model file ({error}); expected one written by "
            "Classifier.save: copy it again"
        ) from error
    if "daedl" not in metadata:
        raise ValueError(
            f"{path} is a safetensors file without a daedl description; expected one written by "
            "Classifier.save"
        )
    try:
        description = json.loads(metadata["daedl"])
        newer = description["format"] > FORMAT
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(_damaged(path)) from error
    if newer:
        raise ValueError(
            f"{path} has format {description['format']}, written by daedl "
            f"{description.get('version', 'of unknown version')}; this version reads up to "
            f"{FORMAT}: upgrade daedl"
        )
    if description.pop("sha256", None) != _digest(tensors, description):
        raise ValueError(_damaged(path))
    return tensors, description


def _damaged(path: Path) -> str:
    return (
        f"{path} is damaged or was altered: its contents do not match their digest; expected a file "
        "as Classifier.save wrote it: copy it again"
    )


def _digest(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # Scalars have no byte view of their own, hence the reshape.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
