"""`daedl train`: train a classifier on images or texts."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast

import typer

from daedl import methods
from daedl.backbones import Pretrained
from daedl.backbones.sentence_encoders import MINILM
from daedl.cli import backbone as backbone_options
from daedl.cli import tables
from daedl.cli import text as text_options
from daedl.cli.common import Device, Precision, fabric_device, report_warnings, select_device
from daedl.cli.config import config_path, dump
from daedl.cli.images import SkipBroken
from daedl.cli.memory import keep_freed_memory
from daedl.cli.outcome import description, summary, training_record
from daedl.cli.results import require_output_file
from daedl.cli.settings import MethodSettings, build
from daedl.cli.training_images import read_training_images, split
from daedl.cli.training_model import build_model, choose_recipe, estimate
from daedl.data import ImageSet, TextSet, augmentation
from daedl.data.read import FOLDER_SIZE
from daedl.density import DensityWarning
from daedl.methods import regression
from daedl.names import look_up
from daedl.selective.target import require_rate
from daedl.storage import expand_user, write_atomically
from daedl.training import ChanceWarning, fit

NETWORKS: Mapping[str, str] = MappingProxyType(
    {"auto": "", "convnet": "ConvNet", "vgg16": "VGG16", "resnet18": "ResNet18"}
)
NOT_FOR_TABLES = (
    *("network", "backbone", "text", "label", "encoder", "finetune", "cache", "size", "grey"),
    *("augment", "class_weights", "skip_broken", "precision", "resume"),
)
MAX_SEED = 2**32  # larger seeds are not valid for all generators
INTERRUPTED = 130  # exit status after Ctrl-C, as in shells


def train(
    ctx: typer.Context,
    data: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="Folder with one subfolder of images per class, or .npz file with "
            "`images` and `labels`; with --text or --target a CSV file.",
        ),
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Column of numbers to predict from the other columns of a CSV file; may be repeated. "
            "Options for images and texts can't be combined with it.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Model file to write.")] = Path("model.daedl"),
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Method: {', '.join(methods.METHODS)}; with --target: "
            f"{', '.join(regression.METHODS)}, by default daer.",
            autocompletion=lambda: [*methods.METHODS, *regression.METHODS],
        ),
    ] = "daedl",
    settings: MethodSettings = None,
    network: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Network: convnet, vgg16 or resnet18, trained as in the paper; auto selects a small "
            "network, augmentation and schedule by the size and number of images.",
            autocompletion=lambda: list(NETWORKS),
        ),
    ] = "auto",
    backbone: backbone_options.Name = None,
    text: text_options.Column = None,
    label: text_options.Label = "label",
    encoder: text_options.Encoder = MINILM,
    finetune: backbone_options.Finetune = False,
    cache: backbone_options.CacheFolder = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Height and width to resize images to; default: "
            f"{FOLDER_SIZE} for folders, unchanged for .npz files, chosen by a backbone.",
        ),
    ] = None,
    grey: Annotated[
        bool | None,
        typer.Option("--grey/--colour", help="Default: grey if all images are grey, else colour."),
    ] = None,
    validation: Annotated[
        float,
        typer.Option(help="Fraction of images held out for early stopping and evaluation."),
    ] = 0.2,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Maximum number of epochs; default: 10 to 40, else 50."
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Images per training step; default: 64.")
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Learning rate of Adam; default: 0.003 at its peak, else 0.001."),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Stop after this many epochs without a lower validation loss; default: never, else 10.",
        ),
    ] = None,
    augment: Annotated[
        str | None,
        typer.Option(
            help="Augmentations, comma-separated: flip, crop, rotate; default: crop, and flip for "
            "colour images; none with --network."
        ),
    ] = None,
    class_weights: Annotated[
        Literal["balanced"] | None,
        typer.Option(
            metavar="NAME", help="balanced: all classes have the same total weight in the loss."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Random seed.")] = 0,
    skip_broken: SkipBroken = False,
    device: Device = "auto",
    precision: Precision = "32-true",
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume after the last completed epoch.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Overwrite the model and its configuration; discard a checkpoint."
        ),
    ] = False,
) -> None:
    """Train a classifier on images, or on texts with --text; a regressor with --target.

    Training is checkpointed after each epoch; after an interruption, run the
    same command with --resume. The options are written next to the model, as
    MODEL.toml, and can be repeated with --config.
    """
    if target:
        configuration = config_path(out, force)
        require_output_file(out, force=force)
        require_rate(validation, "--validation")
        method = _for_table(ctx)
        tables.train(
            expand_user(data),
            target,
            out,
            method,
            settings or [],
            validation,
            seed,
            device,
            max_epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            patience=patience,
        )
        write_atomically(configuration, dump(ctx))
        return
    keep_freed_memory()
    chosen = build(method, settings or [])
    name = look_up(NETWORKS, network.lower(), "network")
    augmentations = [each.strip() for each in (augment or "").split(",") if each.strip()]
    transform = augmentation(augmentations)
    require_rate(validation, "--validation")
    if seed >= MAX_SEED:
        raise ValueError(f"--seed is {seed}; expected a number below {MAX_SEED}, such as 0")
    checkpoint = _checkpoint_path(out, resume, force)
    configuration = config_path(out, force)
    pretrained: Pretrained | None = None
    images: ImageSet | TextSet
    if text is not None:
        others = {"network": network != "auto", "size": size, "grey": grey, "augment": augment}
        images = text_options.read_training_texts(data, text, label, skip_broken)
        pretrained = text_options.load(encoder, text, label, backbone=backbone, **others)
    else:
        pretrained = backbone_options.load(backbone, network, size, grey) if backbone else None
        images = read_training_images(data, size, grey, pretrained, skip_broken)
    training, held_out = split(images, validation, seed)
    recipe = choose_recipe(
        "Backbone" if pretrained else name,
        training,
        max_epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
    )
    if augment is not None:
        recipe = replace(recipe, augment=transform)
    model = build_model(recipe, chosen, images, seed, pretrained).to(select_device(device))
    typer.echo(description(training, held_out, model))
    if pretrained is None and (advice := backbone_options.recommendation(images)):
        typer.echo(advice)
    if not resume:
        checkpoint.unlink(missing_ok=True)
    options: dict[str, Any] = {
        **({} if patience is None else {"patience": patience}),
        "class_weights": class_weights,
        "seed": seed,
        **fabric_device(device),
        "precision": precision,
        "resume_key": {
            "data": images.digest(),
            "augmentation": str(recipe.augment),
            "validation": validation,
            "batch size": recipe.batch_size,
            "precision": precision,
        },
    }
    with _report_interruption():
        if pretrained is not None:
            history = backbone_options.fit_head(
                model,
                training,
                held_out,
                cache=cache,
                finetune=finetune,
                augment=augmentations,
                recipe=recipe,
                checkpoint=checkpoint,
                resume=resume,
                **options,
            )
        else:
            batches = cast(ImageSet, training).batches(
                recipe.batch_size,
                shuffle=True,
                seed=seed,
                augment=recipe.augment,
                # A small last batch would have noisy statistics of BatchNorm.
                drop_last=recipe.one_cycle and len(training) >= recipe.batch_size,
            )
            typer.echo(estimate(model, batches, recipe.max_epochs))
            history = fit(
                model,
                batches,
                held_out,
                fit_data=training,
                checkpoint=checkpoint,
                resume=resume,
                **{**recipe.options(), **options},
            )
    model.trained_on = training_record(training, held_out, history, options)
    model.save(out)
    write_atomically(configuration, dump(ctx))
    checkpoint.unlink(missing_ok=True)
    typer.echo(summary(history, data, out, configuration, images.noun))


def _for_table(ctx: typer.Context) -> str:
    """Returns the method; raises for options of the command line that have no meaning for tables."""
    given = [
        f"--{name.replace('_', '-')}"
        for name in NOT_FOR_TABLES
        # A configuration file contains the defaults of all options.
        if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise ValueError(
            f"--target was passed with {', '.join(given)}; expected options for tables: leave out what is "
            "for images or texts, or leave out --target to train a classifier"
        )
    if ctx.params["method"] == "daedl":  # the default, for classifiers
        ctx.params["method"] = "daer"  # which the configuration records
    return str(ctx.params["method"])


@contextmanager
def _report_interruption() -> Iterator[None]:
    """Explains after Ctrl-C how to resume; suppresses the density's warnings, which the summary repeats."""
    try:
        with report_warnings(ChanceWarning):
            warnings.simplefilter("ignore", DensityWarning)
            yield
    except KeyboardInterrupt:
        typer.echo("Interrupted. Run the same command with --resume to continue.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _checkpoint_path(out: Path, resume: bool, force: bool) -> Path:
    """Returns the path of the checkpoint; raises if `out` or the checkpoint must not be overwritten."""
    require_output_file(out, force=force)
    checkpoint = out.with_name(f"{out.name}.ckpt")
    if checkpoint.exists() and not (resume or force):
        raise FileExistsError(
            f"{checkpoint} exists from an interrupted training; expected no checkpoint: pass --resume to "
            "continue, or --force to start again"
        )
    return checkpoint
