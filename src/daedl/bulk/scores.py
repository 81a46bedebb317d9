"""Predictions of files, written as a folder of Parquet files that exists only when it is complete."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from daedl.bulk.parts import PART, Part, Pictures, choose_column, find_parts
from daedl.checks import import_optional
from daedl.classifier import Classifier
from daedl.data import Preprocess
from daedl.data.files import name_some
from daedl.engines import Engine, Local
from daedl.scorer import Array, Scorer
from daedl.storage import require_folder, write_atomically

JOB = "_daedl.json"  # readers of Parquet folders ignore names that start with an underscore
FINISHED = "part-*.parquet"  # a temporary file has another name
Progress = Callable[[Iterator[int], int, int], Iterable[int]]


@dataclass(frozen=True)
class Scored:
    """A finished job: rows in all parts, those without a prediction, and parts that an earlier run wrote."""

    rows: int
    broken: int
    kept: int


def predict_files(
    model: str | Path,
    sources: Iterable[str | Path],
    out: str | Path,
    *,
    engine: Engine | None = None,
    column: str | Sequence[str] | None = None,
    keep: Sequence[str] = (),
    part_size: int = PART,
    progress: Progress = lambda counts, *_: counts,
    **settings: Any,
) -> Scored:
    """Predicts image files or rows of Parquet files, and writes the folder `out` of Parquet files.

    The rows have the absolute path `file` and the `row` of the input, its columns `keep`, what `Scorer`
    returns, and `error`: null, or why there is no prediction. Finished parts are kept in the folder
    ".<out>.parts" next to `out`, which is renamed at the end; the same call resumes after an interruption.

    Arguments:
        model: a model file.
        sources: see `daedl.bulk.find_parts`.
        engine: of `daedl.engines.connect`; by default this process. All workers need the same paths.
        column: see `Scorer`; by default the only column of Parquet files.
        keep: columns of Parquet files to copy.
        part_size: rows of a part, which is lost if its worker is.
        progress: passes through the counts of finished rows; its other arguments are the number of rows, and
            of those that earlier runs finished.
        settings: `outputs`, `batch_size`, `device` and `load` of `Scorer`.
    """
    out, parts = Path(out).absolute(), find_parts(sources, part_size)
    if settings.get("outputs"):
        settings["outputs"] = [*settings["outputs"], "error"]
    scorer = Scorer(model, column=choose_column(parts, column, keep), skip_broken=True, **settings)
    # A model that can't be loaded, or reads no images, is reported before anything starts.
    _require_inputs(scorer.load(scorer.model_path), parts)
    job = _job(scorer, parts, keep)
    folder = out if out.exists() else out.with_name(f".{out.name}.parts")
    _require_job(folder, job)
    paths = [folder / f"part-{number:05}.parquet" for number in range(len(parts))]
    items = zip(parts, paths, strict=True)
    waiting = [(part, path) for part, path in items if not _is_whole(path, part)]
    if waiting:
        require_folder(folder)
        write_atomically(folder / JOB, job)
        total = sum(map(len, parts))
        done = total - sum(len(part) for part, _ in waiting)
        work = partial(_Writer, scorer, tuple(keep))
        for _ in progress((engine or Local()).map(work, waiting), total, done):
            pass
    if folder != out:
        folder.rename(out)
    return _summary(out, len(parts) - len(waiting))


class _Writer:
    """Predicts a part and writes it to its file, completely or not at all; returns the number of rows."""

    def __init__(self, scorer: Scorer, keep: Sequence[str]) -> None:
        self.scorer, self.keep = scorer, keep

    def __call__(self, item: tuple[Part, Path]) -> int:
        part, path = item
        try:
            chunks = [
                (place, self.scorer(batch))
                for place, batch in part.batches(self.scorer.columns, self.keep)
            ]
        except ValueError as error:
            raise ValueError(f"{part}: {error}") from error
        places, scores = zip(*chunks, strict=True)
        write_atomically(path, _parquet(_joined(places), _joined(scores)))
        return len(part)


def _joined(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Columns of consecutive chunks: arrays, or Arrow arrays."""
    arrow = import_optional("pyarrow", "Parquet files", "'daedl[ray]'")
    columns = {name: [each[name] for each in chunks] for name in chunks[0]}
    return {
        name: np.concatenate(each) if isinstance(each[0], np.ndarray) else arrow.chunked_array(each)
        for name, each in columns.items()
    }


def _parquet(places: dict[str, Any], scores: dict[str, Array]) -> bytes:
    """One Parquet file; rows with an error have no other scores."""
    arrow = import_optional("pyarrow", "Parquet files", "'daedl[ray]'")
    parquet = import_optional("pyarrow.parquet", "Parquet files", "'daedl[ray]'")
    if doubled := sorted(set(places) & set(scores)):
        raise ValueError(
            f"columns to keep have names of scores ({name_some(doubled)}); expected other names: rename them "
            "in the inputs, or join by file and row"
        )
    error = scores.pop("error")
    broken, columns = error != "", dict(places)
    for name, values in scores.items():
        if values.ndim == 1:
            columns[name] = arrow.array(values, mask=broken)
        else:
            flat = arrow.array(values.reshape(-1))
            columns[name] = arrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
    columns["error"] = arrow.array(error, arrow.string(), mask=~broken)
    buffer = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(columns), buffer)
    return bytes(buffer.getvalue())


def _job(scorer: Scorer, parts: Sequence[Part], keep: Sequence[str]) -> bytes:
    """Everything that determines the results; finished parts are kept only if it is equal."""
    inputs = hashlib.sha256()
    for part in parts:
        inputs.update(repr(part).encode("utf-8", "surrogateescape"))
        for file in part.files:
            status = Path(file).stat()
            inputs.update(f"{status.st_size} {status.st_mtime_ns}".encode())
    content = {
        "daedl": version("daedl"),
        "model": hashlib.sha256(scorer.model_path.read_bytes()).hexdigest(),
        "inputs": inputs.hexdigest(),
        "columns": [scorer.columns, list(keep), scorer.outputs],
        "batch_size": scorer.batch_size,
    }
    return json.dumps(content, indent=1).encode()


def _require_inputs(model: Classifier, parts: Sequence[Part]) -> None:
    """Raises if the parts are image files for a model of other inputs."""
    images = bool(parts) and isinstance(parts[0], Pictures)
    if images and not isinstance(model.preprocess, Preprocess):
        noun = "numbers" if model.preprocess is None else model.preprocess.noun
        raise ValueError(
            f"the inputs are {parts[0]}, but the model reads {noun}; expected Parquet files with a column of "
            f"{noun}: write them as such, or use another result than Parquet files"
        )


def _require_job(folder: Path, job: bytes) -> None:
    """Raises if `folder` has something else than parts of this job; a job without a part has nothing."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    marker = folder / JOB
    own = marker.is_file() and (marker.read_bytes() == job or not any(folder.glob(FINISHED)))
    if not own:
        raise FileExistsError(
            f"{folder} exists, with other content than predictions by this model of these inputs with these "
            "settings; expected a new folder, or an interrupted run to continue: choose another with --out, "
            "or remove it"
        )


def _is_whole(path: Path, part: Part) -> bool:
    """Whether `path` has all rows of `part`."""
    parquet = import_optional("pyarrow.parquet", "Parquet files", "'daedl[ray]'")
    try:
        return bool(parquet.read_metadata(path).num_rows == len(part))
    except (OSError, ValueError):  # absent or damaged
        return False


def _summary(out: Path, kept: int) -> Scored:
    dataset = import_optional("pyarrow.dataset", "Parquet files", "'daedl[ray]'")
    written = dataset.dataset(out, format="parquet")
    broken = written.count_rows(filter=dataset.field("error").is_valid())
    return Scored(written.count_rows(), broken, kept)
