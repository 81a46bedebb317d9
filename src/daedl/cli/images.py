"""Options and helpers of commands that read images."""

from pathlib import Path
from typing import Annotated

import typer

from daedl.classifier import Classifier
from daedl.cli.common import report_warnings
from daedl.data import ImageSet, Preprocess
from daedl.data.read import read_for
from daedl.storage import expanded

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A file of `daedl train`.")]


def load_model(path: Path) -> Classifier:
    """Loads a classifier; warnings become one line each."""
    with report_warnings():
        return Classifier.load(path)


def read_known(source: str, model: Classifier) -> ImageSet:
    """Reads labelled images of the classes that `model` knows, with its labels."""
    with report_warnings():
        return read_for(expanded(source), require_preprocess(model), class_names(model))


def read_unknown(source: str, model: Classifier) -> ImageSet:
    """Reads images of any kind, without labels."""
    with report_warnings():
        return read_for(expanded(source), require_preprocess(model), (), labelled=False)


def class_names(model: Classifier) -> list[str]:
    """Names of the classes; their numbers if they have none."""
    return model.class_names or [str(number) for number in range(model.network.num_classes)]


def require_preprocess(model: Classifier) -> Preprocess:
    """Returns the preprocessing of `model`; raises if it doesn't read images by itself."""
    if model.preprocess is None:
        raise ValueError(
            f"the model takes inputs of shape {tuple(model.network.input_shape)} that were prepared outside "
            "of it (preprocess=None); expected a model that reads images: use Classifier.predict in Python, "
            "or set model.preprocess to how its training images were prepared and save it again"
        )
    return model.preprocess
