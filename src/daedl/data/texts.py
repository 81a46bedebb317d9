"""Texts: datasets, files, and `TextPreprocess`, which converts texts to token ids."""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from daedl.checks import Number, import_optional, require_whole
from daedl.data.csv_file import read_csv, read_text
from daedl.data.kind import InputKind
from daedl.data.labelled import Labelled
from daedl.inputs import is_text
from daedl.names import suggestion

MAX_LENGTH = 256  # tokens of a text; the rest is cut off (chosen: all-MiniLM-L6-v2's own limit)
LONGEST = 4096  # largest number of tokens (chosen: 16 times the default)
# Characters of a text per token; the rest is cut off (chosen: six times those of English words).
CHARACTERS = 32
# Times by which normalizers of a tokenizer may lengthen a text (chosen: usual ones double it at most).
GROWTH = 16
SURROGATE = re.compile("[\ud800-\udfff]")
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
        max_length: number of tokens after which a text is cut off; also after `CHARACTERS` times as many
            characters.
        text, label: columns of CSV files.
    """

    tokenizer: str = field(repr=False)
    pad: int = 0
    max_length: int = MAX_LENGTH
    text: str = "text"
    label: str = "label"
    kind: ClassVar[str] = "text"
    noun: ClassVar[str] = "texts"

    @classmethod
    def restore(cls, settings: Mapping[str, Any]) -> Self:
        """Rebuilds an object from a file; reads the tokenizer if the package for it is installed."""
        restored = cls(**settings)
        if find_spec("tokenizers") is not None:
            _ = restored._tokens
        return restored

    @property
    def shape(self) -> tuple[int, ...]:
        """Texts have no fixed shape."""
        return ()

    def __post_init__(self) -> None:
        for name in ("tokenizer", "text", "label"):
            if not isinstance(value := getattr(self, name), str):
                raise TypeError(f"{name} is a {type(value).__name__}; expected text")
        Number(1, limit=LONGEST + 1, whole=True).require(
            "max_length", self.max_length, str(MAX_LENGTH)
        )
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
        if self.pad >= (size := tokens.get_vocab_size()):
            raise ValueError(
                f"pad is {self.pad} but the tokenizer has {size:,} tokens; expected the id of one of them"
            )
        if (added := len(tokens.encode("").ids)) >= self.max_length:
            raise ValueError(
                f"the tokenizer adds {added:,} tokens to each text and max_length is {self.max_length}; "
                "expected more, for tokens of the text itself"
            )
        _require_bounded(json.loads(self.tokenizer).get("normalizer"))
        tokens.enable_truncation(self.max_length)
        tokens.enable_padding(pad_id=self.pad)
        return tokens

    def prepare(self, texts: Any, like: Tensor, where: str = "") -> dict[str, Tensor]:
        """Converts texts to `input_ids` and `attention_mask` (B, T) on the device of `like`."""
        require_texts(texts, where)
        start = CHARACTERS * self.max_length
        try:
            encoded = self._tokens.encode_batch([each[:start] for each in texts])
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of Rust, which is no Exception
                raise
            raise ValueError(f"the tokenizer fails for the inputs{where}: {error}") from error
        return {
            "input_ids": torch.tensor([each.ids for each in encoded], device=like.device),
            "attention_mask": torch.tensor(
                [each.attention_mask for each in encoded], device=like.device
            ),
        }

    def longest(self, like: Tensor) -> dict[str, Tensor]:
        """Returns `max_length` tokens with the largest id."""
        tokens = self._tokens
        largest = max(*tokens.get_vocab().values(), *tokens.encode("").ids)
        ids = torch.full((1, self.max_length), largest, device=like.device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

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
    if halves := [number for number, text in enumerate(texts) if SURROGATE.search(text)]:
        raise ValueError(
            f"text {halves[0]}{where} contains half of a surrogate pair; expected Unicode: decode the text "
            "again, as UTF-16"
        )


def _require_bounded(normalizer: Any) -> None:
    """Raises if a normalizer of a tokenizer.json lengthens texts by more than a factor of `GROWTH`."""
    if (growth := _growth(normalizer)) > GROWTH:
        raise ValueError(
            f"the tokenizer lengthens texts up to {growth:,.0f} times; expected at most {GROWTH} times"
        )


def _growth(normalizer: Any) -> float:
    """The factor by which a normalizer lengthens a text at most."""
    match normalizer:
        case {"normalizers": [*parts]}:
            return math.prod(map(_growth, parts))
        case {"pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return max(1.0, len(content) / len(pattern))
        case {"content": str(inserted)} | {"prepend": str(inserted)}:
            return 1.0 + len(inserted)  # a regular expression may match between all characters
    return 1.0


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
        texts = [line for line in read_text(path).splitlines() if line.strip()]
    if not texts:
        raise ValueError(f"{path} has no text; expected at least one line: check the file")
    require_texts(texts, f" of {path}")
    return texts


def _rows(path: Path, columns: Sequence[str]) -> list[tuple[int, tuple[str, ...]]]:
    """Line numbers and values of `columns` in a CSV file; the end of a short line is empty."""
    file = read_csv(path)
    remedy = "rename a column, or name it in training, with --text or --label"
    indices = [file.position(column, remedy) for column in columns]
    if not file.lines:
        raise ValueError(f"{path} has no rows below its header; expected at least one text")
    return [(n, tuple(line[k] if k < len(line) else "" for k in indices)) for n, line in file.lines]
