"""Options of `daedl train --text`: a head on features of a sentence encoder."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from daedl import backbones
from daedl.backbones import NAMED, Pretrained
from daedl.backbones.sentence_encoders import MINILM
from daedl.cli.common import report_warnings
from daedl.data import TextSet, read_text_set
from daedl.storage import expand_user

Column = Annotated[
    str | None,
    typer.Option(
        "--text",
        metavar="COLUMN",
        help="Train on texts: the column of the CSV file --data that contains them.",
    ),
]
Label = Annotated[
    str, typer.Option("--label", metavar="COLUMN", help="With --text: the column of the classes.")
]
Encoder = Annotated[
    str,
    typer.Option(
        "--encoder",
        metavar="NAME",
        help=f"With --text: {MINILM}, or the folder of another sentence encoder of transformers.",
    ),
]


def load(encoder: str, text: str, label: str, **images: Any) -> Pretrained:
    """Loads the encoder; raises for options of `images`, which contradict texts."""
    if given := [name for name, value in images.items() if value]:
        raise ValueError(
            f"--{given[0]} was given with --text; expected one of them, because it is for images: leave one "
            "out"
        )
    name = encoder if encoder in NAMED else f"text:{expand_user(encoder)}"
    if not backbones.takes_texts(name):
        raise ValueError(
            f"--encoder {encoder} is for images; expected {MINILM}, or the folder of another sentence "
            "encoder: leave --encoder out"
        )
    pretrained = backbones.pretrained(name)
    return replace(
        pretrained,
        preprocess=replace(pretrained.preprocess, text=text, label=label),  # type: ignore[type-var]
    )


def read_training_texts(data: str, text: str, label: str, skip_broken: bool) -> TextSet:
    """Reads texts of at least two classes."""
    with report_warnings():
        texts = read_text_set(expand_user(data), text, label, skip_broken=skip_broken)
    if texts.num_classes < 2:
        raise ValueError(
            f"{data} has one class, {texts.names[0]!r}; expected at least two different values in the column "
            f"{label!r}: check --label"
        )
    return texts
