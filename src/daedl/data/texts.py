"""Texts: datasets, files, and `TextPreprocess`, which converts texts to token ids."""

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from daedl.checks import import_optional, require_whole
from daedl.data.kind import InputKind
from daedl.data.labelled import Labelled
from daedl.inputs import is_text
from daedl.names import suggestion

MAX_LENGTH = 256  # tokens of a text; the rest is cut off (chosen: all-MiniLM-L6-v2's own limit)
LARGEST = 1 << 30  # bytes of a file of texts (chosen: 10 million sentences)
SUFFIXES = (".csv", ".tsv", ".txt")  # of files of texts


@dataclass(frozen=True, eq=False)
class TextSet(Labelled):
    """Texts (N) and labels (N,), int64; see `Labelled`."""

    texts: list[str]
    labels: Tensor
    name: str
    class_names: tuple[str, ...] | None = None
    noun: ClassVar[str] = "texts"

    @property
    def inputs(self) -> list[str]:
        """All texts."""
        return self.texts

    @property
    def summary(self) -> str:
        """Numbers of words."""
        words = [len(text.split()) for text in self.texts]
        return f"{min(words)} to {max(words)} words"

    def subset(self, indices: Tensor | Sequence[int]) -> "TextSet":
        """Returns the texts at `indices` (M,), in that order."""
        chosen = torch.as_tensor(indices)
        texts = [self.texts[i] for i in chosen.tolist()]
        return replace(self, texts=texts, labels=self.labels[chosen])

    def dataset(self) -> tuple[list[str], Tensor]:
        """Returns texts and labels."""
        return self.texts, self.labels

    def digest(self) -> str:
        """Returns a digest of texts and labels."""
        digest = hashlib.sha256("\0".join(self.texts).encode("utf-8", "surrogatepass"))
        digest.update(self.labels.numpy().tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class TextPreprocess(InputKind):
    """Converts texts to token ids and attention masks (B, T), padded to the longest text of the batch.

    Attributes:
        tokenizer: contents of a tokenizer.json, as the package tokenizers writes it; part of model files.
        pad: token id of padding.
        max_length: number of tokens after which a text is cut off.
        text, label: columns of CSV files.
    """

    tokenizer: str = field(repr=False)
    pad: int = 0
    max_length: int = MAX_LENGTH
    text: str = "text"
    label: str = "label"
    kind: ClassVar[str] = "text"
    noun: ClassVar[str] = "texts"

    @property
    def shape(self) -> tuple[int, ...]:
        """Texts have no fixed shape."""
        return ()

    def __post_init__(self) -> None:
        require_whole("max_length", self.max_length, 1, str(MAX_LENGTH))
        require_whole("pad", self.pad, 0, "0")

    @cached_property
    def _tokens(self) -> Any:
        package = import_optional("tokenizers", "texts", "'daedl[text]'")
        try:
            tokens = package.Tokenizer.from_str(self.tokenizer)
        except Exception as error:  # the package raises no narrower type
            raise ValueError(
                f"the tokenizer can't be read ({error}); expected the contents of a tokenizer.json"
            ) from error
        tokens.enable_truncation(self.max_length)
        tokens.enable_padding(pad_id=self.pad)
        return tokens

    def prepare(self, texts: Any, like: Tensor, where: str = "") -> dict[str, Tensor]:
        """Converts texts to `input_ids` and `attention_mask` (B, T) on the device of `like`."""
        require_texts(texts, where)
        encoded = self._tokens.encode_batch(list(texts))
        return {
            "input_ids": torch.tensor([each.ids for each in encoded], device=like.device),
            "attention_mask": torch.tensor(
                [each.attention_mask for each in encoded], device=like.device
            ),
        }

    def open(self, data: Any) -> Any:
        """Returns a list for one text, and the texts of a file for a path; other `data` unchanged."""
        if isinstance(data, Path):
            return read_texts(data, self.text)
        return [data] if isinstance(data, str) else data

    def texts_of(self, source: str) -> list[str]:
        """Returns the texts of a .csv, .tsv or .txt file, or `source` itself as one text."""
        path = Path(source)
        return read_texts(path, self.text) if path.suffix.lower() in SUFFIXES else [source]

    def read(
        self,
        path: Path,
        class_names: Sequence[str],
        labelled: bool = True,
        skip_broken: bool = False,
    ) -> TextSet:
        """Reads the texts of a CSV file, and labels that must be among `class_names`."""
        if labelled:
            return read_text_set(path, self.text, self.label, class_names, skip_broken)
        texts = read_texts(path, self.text)
        return TextSet(texts, torch.zeros(len(texts), dtype=torch.int64), path.stem)

    def settings(self) -> dict[str, Any]:
        """Returns the constructor arguments and the kind; JSON-able."""
        return {"kind": self.kind, **asdict(self)}


def require_texts(texts: Any, where: str = "") -> None:
    """Raises unless `texts` are a list of texts, none of them empty."""
    if not is_text(texts):
        raise TypeError(
            f"inputs{where} are a {type(texts).__name__}; expected a text or a list of texts: this model "
            "reads texts"
        )
    if empty := [number for number, text in enumerate(texts) if not text.strip()]:
        raise ValueError(
            f"text {empty[0]}{where} is empty; expected at least one character: remove {len(empty)} empty "
            "of these texts"
        )


def read_text_set(
    path: Path,
    text: str,
    label: str,
    class_names: Sequence[str] | None = None,
    skip_broken: bool = False,
) -> TextSet:
    """Reads texts and labels from the columns `text` and `label` of a CSV file.

    Arguments:
        class_names: names that labels may have, in the order of the classes; by default all, sorted.
        skip_broken: whether rows with an empty text or label are skipped instead of an error.
    """
    rows = _rows(path, (text, label))
    if empty := [number for number, values in rows if not all(each.strip() for each in values)]:
        if not skip_broken:
            raise ValueError(
                f"{path} has {len(empty)} rows with an empty {text!r} or {label!r}, the first in line "
                f"{empty[0]}; expected both in every row: complete or remove them, or pass --skip-broken"
            )
        rows = [row for row in rows if row[0] not in set(empty)]
    labels = [values[1].strip() for _, values in rows]
    names = sorted(set(labels)) if class_names is None else list(class_names)
    positions = {name: position for position, name in enumerate(names)}
    if unknown := sorted(set(labels) - set(names)):
        raise ValueError(
            f"{path} has labels that the classifier does not know ({', '.join(unknown[:5])}); expected its "
            f"{len(names)} classes{suggestion(unknown[0], names)}: rename or remove them"
        )
    targets = torch.tensor([positions[each] for each in labels], dtype=torch.int64)
    return TextSet([values[0] for _, values in rows], targets, path.stem, tuple(names))


def read_texts(path: Path, text: str) -> list[str]:
    """Reads texts from the column `text` of a CSV file, or the lines of another file."""
    if path.suffix.lower() in (".csv", ".tsv"):
        texts = [values[0] for _, values in _rows(path, (text,))]
    else:
        texts = [line for line in _content(path).splitlines() if line.strip()]
    if not texts:
        raise ValueError(f"{path} has no text; expected at least one line: check the file")
    require_texts(texts, f" of {path}")
    return texts


def _rows(path: Path, columns: Sequence[str]) -> list[tuple[int, tuple[str, ...]]]:
    """Line numbers and values of `columns` in a CSV file with a header, or a TSV file."""
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.DictReader(io.StringIO(_content(path)), delimiter=separator, strict=True)
    try:
        head = list(reader.fieldnames or ())
        for column in columns:
            if column not in head:
                raise ValueError(
                    f"{path} has the columns {', '.join(head[:10]) or 'none'}; expected "
                    f"{column!r}{suggestion(column, head)}: rename a column, or name it in training, with "
                    "--text or --label"
                )
        rows = [(reader.line_num, tuple(row[c] or "" for c in columns)) for row in reader]
    except csv.Error as error:
        raise ValueError(
            f"line {reader.line_num} of {path} can't be read ({error}); expected a CSV file with a header: "
            "quote values with separators or line breaks"
        ) from error
    if not rows:
        raise ValueError(f"{path} has no rows below its header; expected at least one text")
    return rows


def _content(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}; expected a CSV file of texts: check the path")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} has more than {LARGEST:,} bytes; expected less: divide the file")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 ({error}); expected a text file in UTF-8: convert it"
        ) from error
