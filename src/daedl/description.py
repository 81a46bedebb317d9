"""The schema of the description in a model file."""

from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from daedl.data.scaling import Scaling


@dataclass(frozen=True)
class Revision:
    """One post-hoc fit or update.

    Attributes:
        samples: number of samples.
        merged: whether they were merged into the previous fit.
        note: the user's note.
    """

    samples: int
    merged: bool = False
    note: str = ""


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name and constructor arguments of a network or a method."""

    name: str
    arguments: dict[str, Any]


class TrainingRecord(TypedDict):
    """Record of the training by `daedl train`, for `daedl info`; figures differ between the tasks."""

    version: str
    data: str
    digest: str
    samples: int
    held_out: int
    epochs: int
    best_epoch: int
    seed: int
    samples_per_class: NotRequired[list[int]]
    accuracy: NotRequired[float]
    rmse: NotRequired[float]
    nll: NotRequired[float]


class Description(msgspec.Struct, frozen=True):
    """Everything in a model file but its tensors; settings of parts are validated by their constructors.

    Attributes:
        preprocess: unset in files of format 1.
        fitted: settings of the post-hoc fit.
        form: of the inputs, if the network has no fixed shape; see `daedl.inputs.form_of`.
        scaling: of a regressor.
    """

    version: str
    network: Named
    method: Named
    dtype: Literal["float16", "bfloat16", "float32", "float64"]
    spectral: dict[str, Any] | None = None
    preprocess: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    class_names: list[str] | None = None
    fitted: dict[str, Any] | None = None
    revisions: tuple[Revision, ...] = ()
    thresholds: dict[str, Any] | None = None
    trained_on: TrainingRecord | None = None
    scaling: Scaling | None = None
    form: str | None = None
