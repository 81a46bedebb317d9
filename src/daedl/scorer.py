"""A saved model as a function from arrays to arrays, which engines call on their workers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from daedl.classifier import Classifier
from daedl.data.files import Files, decoded, list_broken, name_some
from daedl.data.preprocess import WHITE, Preprocess
from daedl.data.texts import TextPreprocess
from daedl.inputs import Inputs, convert, count_rows, select
from daedl.names import look_up
from daedl.outputs import evaluating
from daedl.prediction import Prediction
from daedl.storage import expand_user

Array = NDArray[Any]
Batch = Mapping[str, Array]
MISSING = "?"  # text in place of a broken one, whose prediction is discarded


class Scorer:
    """Predicts batches of arrays with the model in a file.

    Small and picklable by path and settings: the model is loaded with the first batch, so that each worker
    process of an engine loads it once. Returns arrays (B,) by the names of `Prediction.records`: `label`,
    `class_name`, `probability`, the scores, `accept` and `reason` if the model was calibrated. See
    docs/many_machines.md for Ray Data and Spark.

    Arguments:
        model_path: a model file, which every worker can read.
        column: the column of a batch with the inputs: arrays of numbers, also flattened; encoded images, or
            mappings with their "bytes"; paths of images; texts. Several names are columns of numbers that
            are joined to vectors. By default the only column. For your own module on mappings or tuples of
            tensors: the names of the parts, in the order of a tuple; by default all columns.
        outputs: names to return, by default all arrays (B,); "probs" and "log_alpha" are (B, C).
        skip_broken: return NaN, label −1 and the reason in `error` for inputs that can't be read, or that
            have NaN or infinite values, instead of raising.
        batch_size: inputs per forward pass.
        device: on which to predict.
        load: reads the model file; e.g. `partial(Classifier.load, network=net)` for your own module.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        column: str | Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        skip_broken: bool = False,
        batch_size: int = 256,
        device: str = "cpu",
        load: Callable[[Path], Classifier] = Classifier.load,
    ) -> None:
        self.model_path = expand_user(model_path).absolute()
        self.column, self.outputs, self.skip_broken = column, outputs, skip_broken
        self.batch_size, self.device, self.load = batch_size, device, load

    @cached_property
    def model(self) -> Classifier:
        """The model, loaded on first use."""
        return self.load(self.model_path).to(self.device).eval()

    @property
    def columns(self) -> list[str]:
        """The names of the columns with the inputs; none if it is the only column."""
        return [self.column] if isinstance(self.column, str) else list(self.column or ())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "model"}

    def __call__(self, batch: Batch | Array) -> dict[str, Array]:
        """Returns arrays by name for `batch`: arrays (B, ...) by column, or the inputs themselves."""
        column = self._select(batch)
        number = count_rows(column)
        inputs, broken = self._read(column) if number else (None, {})
        if not self.skip_broken:
            remedy = "correct or remove them, or pass skip_broken=True"
            _require_readable(column, broken, range(number), remedy)
        if number and (isinstance(column, np.ndarray) or len(broken) < number):
            arrays = self.model.predict(inputs, self.batch_size).table()
        else:
            # One row if there are none, which networks need not accept.
            blank = self._blank(max(number, 1)).table()
            arrays = {name: each[:number] for name, each in blank.items()}
        if self.skip_broken:
            rows = list(broken)
            for values in arrays.values():
                values[rows] = _missing(values)
            arrays["error"] = np.full(number, "", dtype=object)
            arrays["error"][rows] = list(broken.values())
        if self.outputs is None:
            return {name: each for name, each in arrays.items() if each.ndim == 1}
        return {name: look_up(arrays, name, "output") for name in self.outputs}

    def inputs(self, batch: Batch | Array, rows: Sequence[int] | Array | None = None) -> Any:
        """Returns the inputs (B, ...) in `batch`, for `Classifier.predict`; raises for broken ones.

        Errors name them by their numbers `rows` (B,), by default 0 to B − 1.
        """
        column = self._select(batch)
        inputs, broken = self._read(column)
        numbers = range(count_rows(column)) if rows is None else rows
        _require_readable(column, broken, numbers, "correct or remove them")
        return inputs

    def _select(self, batch: Batch | Array) -> Inputs:
        """The columns of `batch` with the inputs: one, several joined to vectors (B, H), or parts."""
        if not isinstance(batch, Mapping):
            return np.asarray(batch)
        require_columns(self.columns, batch, "the batch")
        names = self.columns or list(batch)
        columns = {name: np.asarray(batch[name]) for name in names}
        if self.model.preprocess is None:
            parts = self.model.network.arrange(columns)
            if parts is not None:
                return parts
        if len(names) == 1:
            return columns[names[0]]
        if not self.columns:
            raise ValueError(
                f"the batch has the columns {name_some(names)}; expected one column of inputs: pass its name "
                "as column=..., or several names of numbers"
            )
        return self._joined(columns)

    def _joined(self, columns: Batch) -> Array:
        """Columns of numbers as vectors (B, H)."""
        if isinstance(self.model.preprocess, TextPreprocess):
            raise ValueError(
                f"the columns {name_some(list(columns))} were named, but the model reads texts; expected one "
                "column of texts: join them in a new column, or name one of them"
            )
        try:
            return np.column_stack([each.astype(np.float64) for each in columns.values()])
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the columns {name_some(list(columns))} can't be joined to vectors ({error}); expected one "
                "number per row in each of them: name such columns, or a single one with vectors"
            ) from error

    def _read(self, column: Inputs) -> tuple[Inputs, dict[int, str]]:
        """Inputs (B, ...), others in place of broken ones, and the reasons by row."""
        if isinstance(self.model.preprocess, TextPreprocess):
            return _texts(column)
        if not isinstance(column, np.ndarray):
            return _parts(column)
        shape = tuple(self.model.network.input_shape)
        if column.dtype.kind in "SUO" and _is_pictures(column):
            return self._pictures(column, shape)
        values, broken = _numbers(column, shape)
        if values.ndim == 2 and shape and values.shape[1] == np.prod(shape):
            values = values.reshape(-1, *shape)  # Parquet and Spark have no tensors
        pixels = values.dtype.kind in "iu" and self.model.preprocess is not None
        if pixels and values.size and values.min() >= 0 and values.max() <= WHITE:
            values = values.astype(np.uint8)  # Spark has no type for them
        return values, broken

    def _blank(self, number: int) -> Prediction:
        """A prediction of `number` inputs, none of which has parts that can be read."""
        network = self.model.network
        with evaluating(network), torch.no_grad():
            blank = network.blank()
            # Networks of a fixed shape have a blank batch without rows, and take it.
            blank = select(blank, [0] * number if count_rows(blank) else [])
            return self.model.predict_outputs(self.model.method.forward(network, blank))

    def _pictures(self, column: Array, shape: Sequence[int]) -> tuple[Any, dict[int, str]]:
        preprocess = self.model.preprocess
        if not isinstance(preprocess, Preprocess):
            raise ValueError(
                f"the inputs are images or paths, but the model takes arrays of shape {tuple(shape)} and has "
                "no preprocessing; expected a column of numbers: name another with column=..."
            )
        pixels: Any = np.zeros((len(column), *preprocess.shape), np.uint8)
        broken = {}
        for row, result in enumerate(decoded(Files.of(map(_picture, column), preprocess))):
            if isinstance(result, str):
                broken[row] = result
            else:
                pixels[row] = result
        return torch.from_numpy(pixels), broken


def require_columns(names: Iterable[str], columns: Iterable[str], where: str) -> None:
    """Raises unless `columns`, those of `where`, contain all `names`."""
    known = list(columns)
    if missing := [name for name in names if name not in known]:
        raise ValueError(
            f"{where} has no column {name_some(missing)}, but {name_some(known)}; expected "
            f"{name_some(list(names))}: name the columns that it has"
        )


def _require_readable(
    column: Inputs, broken: Mapping[int, str], numbers: Sequence[int] | Array, remedy: str
) -> None:
    """Raises if rows of `column`, which have `numbers`, are broken, and names them."""
    if broken:
        named = {_name(column, row, numbers): reason for row, reason in broken.items()}
        raise ValueError(
            f"{list_broken(named, 'inputs')}; expected images that can be decoded, texts, or finite numbers "
            f"of one shape: {remedy}"
        )


def _name(column: Inputs, row: int, numbers: Sequence[int] | Array) -> str:
    """The path in a row of `column`, or the number of the row."""
    cell = column[row] if isinstance(column, np.ndarray) else None
    return (
        str(cell) if isinstance(cell, str | Path) and str(cell).strip() else f"row {numbers[row]}"
    )


def _texts(column: Array) -> tuple[list[str], dict[int, str]]:
    """Texts, with a placeholder for those that are missing or empty, and the reasons by row."""
    present = {
        type(cell).__name__
        for cell in column
        if not (cell is None or (isinstance(cell, float) and np.isnan(cell)))
    }
    if present and not any(isinstance(cell, str) for cell in column):
        raise ValueError(
            f"a column of texts has values of type {', '.join(sorted(present))}; expected texts: name the "
            "column of the texts as column=..."
        )
    broken = {
        row: "no text"
        for row, cell in enumerate(column)
        if not isinstance(cell, str) or not cell.strip()
    }
    return [MISSING if row in broken else cell for row, cell in enumerate(column)], broken


def _is_pictures(column: Array) -> bool:
    """Whether the first cell that is present is an encoded image or a path."""
    present = (cell for cell in column if cell is not None)
    return isinstance(next(present, None), str | bytes | Path | Mapping)


def _picture(cell: Any) -> Path | BytesIO:
    if isinstance(cell, Mapping):  # as Hugging Face's datasets write images
        cell = cell.get("bytes")
    return Path(cell) if isinstance(cell, str | Path) else BytesIO(cell or b"")


def _parts(columns: Inputs) -> tuple[Inputs, dict[int, str]]:
    """Parts of inputs with the first readable row in place of broken ones, and the reasons by row.

    Not zeros, because without one token in the mask there may be no features.
    """
    broken: dict[int, str] = {}

    def read(column: Array) -> Array:
        values, reasons = _numbers(column)
        broken.update(reasons)
        return values

    parts, rows = convert(columns, read), np.arange(count_rows(columns))
    if broken and len(broken) < len(rows):
        rows[list(broken)] = np.delete(rows, list(broken))[0]
        return convert(parts, lambda part: part[rows]), broken
    return parts, broken


def _numbers(column: Array, shape: Sequence[int] = ()) -> tuple[Array, dict[int, str]]:
    """Cells as one array with zeros in place of broken ones, and the reasons by row."""
    values, broken = _stack(column, shape) if column.dtype == object else (column, {})
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"a column of inputs has values of type {values.dtype}; expected numbers: name the columns of "
            "the inputs as column=..."
        )
    if values.dtype.kind == "f":
        finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        broken |= {
            row: broken.get(row, "NaN or infinite values")
            for row in np.flatnonzero(~finite).tolist()
        }
        if broken:
            values = np.where(finite.reshape(-1, *[1] * (values.ndim - 1)), values, 0)
    # Engines share memory that is read-only, which torch warns about.
    return np.require(values, requirements=["C", "W"]), broken


def _stack(column: Array, shape: Sequence[int]) -> tuple[Array, dict[int, str]]:
    """Cells as one array; cells that are missing or of another shape than the first are broken."""
    cells = [np.asarray([] if each is None else _plain(each)) for each in column]
    size = next((each.shape for each in cells if each.size), tuple(shape))
    broken = {
        row: "no value" if each.size == 0 else f"shape {each.shape} instead of {size}"
        for row, each in enumerate(cells)
        if each.shape != size
    }
    zero = np.zeros(size, next((each.dtype for each in cells if each.shape == size), np.float32))
    return np.stack([zero if row in broken else each for row, each in enumerate(cells)]), broken


def _plain(cell: Any) -> Any:
    """Nested lists as Arrow returns them, arrays of arrays, as one array."""
    nested = isinstance(cell, np.ndarray) and cell.dtype == object
    return np.stack([np.asarray(_plain(each)) for each in cell]) if nested else cell


def _missing(values: Array) -> Any:
    """Placeholder of a missing value in an array like `values`."""
    return {"i": -1, "b": False, "O": ""}.get(values.dtype.kind, np.nan)
