"""Functions shared by commands that read a model and images."""

from pathlib import Path
from typing import Annotated

import typer

from daedl.classifier import Classifier
from daedl.cli.common import report_warnings, select_device
from daedl.cli.results import require_output_file
from daedl.data import InputKind, Labelled
from daedl.loading import load
from daedl.names import names_or_numbers
from daedl.regressor import Regressor
from daedl.storage import expand_user

ModelFile = Annotated[
    Path, typer.Argument(metavar="MODEL", help="Model file written by `daedl train`.")
]
ModelOut = Annotated[
    Path | None, typer.Option("--out", help="Model file to write; by default MODEL itself.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Overwrite the file named by --out if it exists.")
]

SkipBroken = Annotated[
    bool,
    typer.Option("--skip-broken", help="Skip images that can't be read, instead of an error."),
]


def load_any(path: Path, device: str = "cpu") -> Classifier | Regressor:
    """Loads a model to `device` and reports warnings."""
    place = select_device(device)
    with report_warnings():
        return load(path).to(place)


def load_model(path: Path, device: str = "cpu") -> Classifier:
    """Loads a classifier to `device` and reports warnings."""
    model = load_any(path, device)
    if isinstance(model, Regressor):
        raise ValueError(
            f"{path} predicts numbers; expected a classifier of images: use daedl predict, evaluate, "
            "calibrate, info, export or serve, or Regressor.load in Python"
        )
    return model


def model_output(model: Path, out: Path | None, force: bool) -> Path:
    """Returns `out`, by default `model`; raises if it can't be written, or exists and is not `model`."""
    path = out or model
    require_output_file(path, force=force or (path.exists() and path.samefile(model)))
    return path


def read_known(source: str, model: Classifier, skip_broken: bool = False) -> Labelled:
    """Reads labelled samples of the classes of `model`."""
    return _read(source, model, labelled=True, skip_broken=skip_broken)


def read_unknown(source: str, model: Classifier, skip_broken: bool = False) -> Labelled:
    """Reads unlabelled samples."""
    return _read(source, model, labelled=False, skip_broken=skip_broken)


def _read(source: str, model: Classifier, **options: bool) -> Labelled:
    with report_warnings():
        return require_preprocess(model).read(expand_user(source), class_names(model), **options)


def class_names(model: Classifier) -> list[str]:
    """Returns the names of the classes, or their numbers."""
    return names_or_numbers(model.class_names, model.network.num_classes)


def require_preprocess(model: Classifier) -> InputKind:
    """Returns the preprocessing of `model`; raises if it has none."""
    if model.preprocess is None:
        raise ValueError(
            f"the model takes inputs of shape {tuple(model.network.input_shape)} and has no preprocessing "
            "(preprocess=None); expected a model with preprocessing: use Classifier.predict in Python, or "
            "set model.preprocess to the preprocessing used for training and save the model again"
        )
    return model.preprocess
