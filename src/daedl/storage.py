"""Model files: safetensors with a JSON description in the header, without pickle, written atomically.

The tensors are stored as safetensors does. The metadata key "daedl" holds a JSON object with `format` (the
version of this layout), `version` (that of the library), the classifier's description, and `sha256`, a
digest of the description and all tensors. The digest detects corruption; it is not a signature. Equal models
are written as equal bytes.
"""

import contextlib
import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import safetensors.torch
import torch
from torch import Tensor

if sys.platform != "win32":
    import fcntl

# Format 2 added `preprocess` to the description. Earlier versions would ignore it, so they must reject it.
FORMAT = 2


def write_atomically(path: Path, data: bytes) -> None:
    """Writes `data` to a temporary file in the same folder, then renames it to `path`.

    An existing file keeps its permissions; a symbolic link is followed. Removes temporary files for `path`
    of processes that were killed.
    """
    _require_regular(path)
    target = Path(os.path.realpath(path))
    temporary = None
    try:
        _remove_abandoned(target)
        temporary, file = _create_temporary(target)
        with file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if target.exists():
                shutil.copymode(target, temporary)
            if sys.platform == "win32":  # it can't rename open files
                file.close()
            temporary.replace(target)
    except BaseException as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()
        if not isinstance(error, OSError):
            raise
        raise OSError(
            error.errno,
            f"cannot write {len(data):,} bytes to {path}: {error.strerror or error}; expected an existing "
            "folder with write permission and free space. A previous file is unchanged",
        ) from error


def _require_regular(path: Path) -> None:
    """Raises if `path` exists and is not a regular file, such as a folder, a pipe or a loop of links."""
    code, kind = errno.EINVAL, "not a regular file"
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            return
        if stat.S_ISDIR(mode):
            code, kind = errno.EISDIR, "a folder"
    except OSError as error:
        if error.errno != errno.ELOOP:  # writing explains the others
            return
        code, kind = errno.ELOOP, "a loop of symbolic links"
    raise OSError(code, f"cannot write to {path}: it is {kind}; expected the path of a file")


def _create_temporary(target: Path) -> tuple[Path, BinaryIO]:
    """Creates a temporary file for `target`, and locks it until it is closed or the process ends."""
    while True:
        path = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        file = path.open("xb")
        if sys.platform == "win32":
            return path, file
        with contextlib.suppress(OSError):  # no locks in this file system
            fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            return path, file
        file.close()  # another process removed it before it was locked


def _remove_abandoned(target: Path) -> None:
    """Removes temporary files for `target` that no process has locked."""
    if sys.platform == "win32":
        return
    for path in target.parent.glob(f".{glob.escape(target.name)}.{'?' * 8}.tmp"):
        with contextlib.suppress(OSError):
            # Opening a pipe would wait for a writer, and a link may lead anywhere.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            with open(descriptor, "rb") as file:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()


def expand_user(path: str | Path) -> Path:
    """Replaces a leading ~ or ~user by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(
            f"{path} refers to the home folder of an unknown user; expected an existing user: write the "
            "full path, or ./~ for a folder of that name"
        ) from error


def require_folder(
    folder: Path, remedy: str = "choose another one", *, create: bool = True
) -> None:
    """Raises unless files can be written into `folder`, which is created if `create` is set.

    Called before long computations. `remedy` completes the error message.
    """
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        raise OSError(
            error.errno,
            f"cannot write into the folder {folder}: {reason}; expected an existing folder with write "
            f"permission: {remedy}",
        ) from error


def save(path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Writes `tensors` and the JSON-able `description` to the file `path`."""
    write_atomically(path, encoded(tensors, description))


def encoded(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> bytes:
    """Returns the content of a file with `tensors` and the JSON-able `description`."""
    # Cloned because safetensors rejects tensors that share memory, such as tied weights.
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    full = {"format": FORMAT, **description}
    text = json.dumps({**full, "sha256": _digest(plain, full)}, sort_keys=True)
    return safetensors.torch.save(plain, {"daedl": text})


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads a file written by `save`; raises for any other file."""
    if not path.is_file():
        raise FileNotFoundError(
            f"no model file at {path}; expected a file written by Classifier.save or `daedl train`: check "
            "the path, or train a model first"
        )
    with path.open("rb") as file:
        start = file.read(9)
    # A safetensors file starts with 8 bytes, the length of the header, then the header in JSON.
    if start.startswith((b"PK\x03\x04", b"\x80")) and not start.endswith(b"{"):
        raise ValueError(
            f"{path} is a pickle or a torch.save archive, which can run arbitrary code when loaded; expected "
            "a file written by Classifier.save: if you trust the file, load it with torch and save it again"
        )
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is truncated or not a model file ({error}); expected a file written by "
            "Classifier.save: copy it again"
        ) from error
    if "daedl" not in metadata:
        raise ValueError(
            f"{path} is a safetensors file without a daedl description; expected a file written by "
            "Classifier.save"
        )
    try:
        description = json.loads(metadata["daedl"], parse_int=_parse_integer)
        newer = description["format"] > FORMAT
        matches = description.pop("sha256", None) == _digest(tensors, description)
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(_damaged(path, str(error))) from error
    if newer:
        raise ValueError(
            f"{path} has format {description['format']}, written by daedl "
            f"{description.get('version', 'of unknown version')}; expected at most format {FORMAT}: "
            "upgrade daedl"
        )
    if not matches:
        raise ValueError(_damaged(path))
    return tensors, description


def _parse_integer(text: str) -> int:
    """Parses an integer of at most 64 bits: no setting is larger, and torch takes no larger ones."""
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"integer {text[:20]}... has more than 64 bits")
    return value


def _damaged(path: Path, reason: str = "its contents do not match the digest") -> str:
    return (
        f"{path} is damaged or was modified: {reason}; expected a file as written by Classifier.save: copy "
        "it again"
    )


def _digest(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # Zero-dimensional tensors have no byte view, hence the reshape.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
