"""`daedl train`: a model of one's own images."""

import hashlib
import shlex
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import torch
import typer

from daedl import methods, networks
from daedl.backbones import Pretrained
from daedl.classifier import Classifier
from daedl.cli import backbone as backbone_options
from daedl.cli.common import Threads, report_errors, report_warnings, using_threads
from daedl.cli.memory import keep_freed_memory
from daedl.cli.results import require_output_file
from daedl.cli.settings import build
from daedl.data import ImageSet, augmentation
from daedl.data.read import FOLDER_SIZE, read
from daedl.density import DensityWarning
from daedl.methods import Method
from daedl.names import look_up
from daedl.storage import expanded
from daedl.training import History, fit

# Pixels up to which the small network is chosen (chosen: it flattens, so that its features grow with the
# image, where ResNet18 takes their mean).
SMALL = 32
NETWORKS: Mapping[str, str] = MappingProxyType(
    {"auto": "", "convnet": "ConvNet", "vgg16": "VGG16", "resnet18": "ResNet18"}
)
INTERRUPTED = 130  # what shells give for Ctrl-C


def train(
    data: Annotated[
        str,
        typer.Option(
            help="A folder with a subfolder of PNG or JPEG images for each class, a .npz file with "
            "`images` and `labels`."
        ),
    ],
    out: Annotated[Path, typer.Option(help="File for the model.")] = Path("model.daedl"),
    method: Annotated[str, typer.Option(help=f"{', '.join(methods.METHODS)}.")] = "daedl",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the method, as in leave_one_out=true; may be given several times.",
        ),
    ] = None,
    network: Annotated[
        str,
        typer.Option(
            help=f"convnet, vgg16, resnet18; auto is convnet up to {SMALL} pixels, else resnet18."
        ),
    ] = "auto",
    backbone: backbone_options.Name = None,
    finetune: backbone_options.Finetune = False,
    cache: backbone_options.CacheFolder = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Height and width that images are resized to; by default "
            f"{FOLDER_SIZE} for a folder, and as they are for others; chosen by a backbone.",
        ),
    ] = None,
    grey: Annotated[
        bool | None,
        typer.Option("--grey/--colour", help="By default grey if every image is, else colour."),
    ] = None,
    validation: Annotated[
        float, typer.Option(help="Share of the images that is held out to stop by and to judge.")
    ] = 0.2,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs at most.")] = 50,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    learning_rate: Annotated[float, typer.Option(help="Of Adam; times 0.95 each epoch.")] = 1e-3,
    patience: Annotated[
        int, typer.Option(min=1, help="Epochs without a lower validation loss that end training.")
    ] = 10,
    augment: Annotated[
        str, typer.Option(help="Some of flip, crop, rotate, with commas between; by default none.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Decides every draw.")] = 0,
    threads: Threads = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after the last epoch that was finished.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the model, or start again, if there is one.")
    ] = False,
) -> None:
    """Learn to tell classes of images apart, and what images of them look like."""
    keep_freed_memory()
    with report_errors(OSError, ValueError, ImportError), using_threads(threads):
        given = settings or []
        chosen = build(
            method, backbone_options.method_settings(method, given) if backbone else given
        )
        name = look_up(NETWORKS, network.lower(), "network")
        changes = [each.strip() for each in augment.split(",") if each.strip()]
        change = augmentation(changes)
        _require_share(validation)
        checkpoint = _checkpoint(out, resume, force)
        pretrained = backbone_options.load(backbone, network, size, grey) if backbone else None
        images = _images(data, size, grey, pretrained)
        learned, held_out = _parted(images, validation, seed)
        model = _model(name, chosen, images, seed, pretrained)
        typer.echo(_description(learned, held_out, model))
        if pretrained is None and (advice := backbone_options.recommendation(images)):
            typer.echo(advice)
        if not resume:
            checkpoint.unlink(missing_ok=True)
        options: dict[str, Any] = {
            "max_epochs": epochs,
            "learning_rate": learning_rate,
            "patience": patience,
            "seed": seed,
            "resume_key": {
                "data": _digest(images),
                "augmentation": augment,
                "validation": validation,
                "batch size": batch_size,
            },
        }
        with _told_interruption():
            if pretrained is not None:
                history = backbone_options.Training(
                    finetune, cache, changes, batch_size, checkpoint, resume
                ).run(model, learned, held_out, **options)
            else:
                history = fit(
                    model,
                    learned.batches(batch_size, shuffle=True, seed=seed, augment=change),
                    held_out,
                    fit_data=learned,
                    checkpoint=checkpoint,
                    resume=resume,
                    **options,
                )
        model.save(out)
        checkpoint.unlink(missing_ok=True)
    typer.echo(_summary(history, out))


@contextmanager
def _told_interruption() -> Iterator[None]:
    """Say how to go on after Ctrl-C. Of the density's warnings nothing is said: the summary has them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DensityWarning)
            yield
    except KeyboardInterrupt:
        typer.echo("Stopped. The same command with --resume goes on where it was.", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _require_share(validation: float) -> None:
    if not 0 < validation < 1:
        raise ValueError(
            f"--validation is {validation:g}; expected a share of the images between 0 and 1, such as 0.2"
        )


def _checkpoint(out: Path, resume: bool, force: bool) -> Path:
    """Where to keep what is learned until the model is written; raise if that can't or shouldn't be."""
    require_output_file(out)
    if out.exists() and not force:
        raise FileExistsError(
            f"{out} exists already; expected a new file: choose another with --out, or pass --force "
            "to replace it"
        )
    checkpoint = out.with_name(f"{out.name}.ckpt")
    if checkpoint.exists() and not (resume or force):
        raise FileExistsError(
            f"{checkpoint} is left of a training that was interrupted; expected --resume to go on with "
            "it, or --force to start again"
        )
    return checkpoint


def _images(
    data: str, size: int | None, grey: bool | None, pretrained: Pretrained | None
) -> ImageSet:
    channels = None if grey is None else 1 if grey else 3
    with report_warnings():
        if pretrained is None:
            images = read(expanded(data), channels=channels, size=size)
        else:
            wanted = pretrained.preprocess
            images = read(
                expanded(data), channels=wanted.channels, size=wanted.size, resize=wanted.resize
            )
    if images.num_classes < 2:
        raise ValueError(
            f"{data} has one class only; expected at least two to tell apart: give each class a "
            "subfolder, or a label, of its own"
        )
    present = torch.unique(images.labels)
    if images.class_names is None and len(present) != images.num_classes:
        shown = ", ".join(map(str, present[:5].tolist())) + (", ..." if len(present) > 5 else "")
        raise ValueError(
            f"labels of {data} are {shown}; expected 0 to {len(present) - 1} for its {len(present)} "
            "classes: renumber them with numpy.unique(labels, return_inverse=True)[1]"
        )
    if pretrained is None and grey is None and bool((images.images == images.images[:, :1]).all()):
        return images.converted(1, images.shape[1])
    return images


def _parted(images: ImageSet, validation: float, seed: int) -> tuple[ImageSet, ImageSet]:
    """Images to learn from, of every class, and those held out."""
    held_out, learned = images.parted(max(1, round(validation * len(images))), seed)
    counts = torch.bincount(learned.labels, minlength=images.num_classes)
    if missing := [name for name, count in zip(_names(images), counts, strict=True) if count == 0]:
        raise ValueError(
            f"no image of {_shortened(missing)} is left to learn from, after {len(held_out)} of "
            f"{len(images)} were held out; expected some of every class: add images, or hold out fewer "
            "with --validation"
        )
    return learned, held_out


def _digest(images: ImageSet) -> str:
    """What tells these images and labels from others."""
    digest = hashlib.sha256(images.images.numpy().tobytes())
    digest.update(images.labels.numpy().tobytes())
    return digest.hexdigest()[:16]


def _names(images: ImageSet) -> Sequence[str]:
    """The names of the classes: their numbers if they have none."""
    return images.class_names or [str(number) for number in range(images.num_classes)]


def _shortened(names: Sequence[str]) -> str:
    return textwrap.shorten(", ".join(names), 100, placeholder=" ...")


def _model(
    name: str, method: Method, images: ImageSet, seed: int, pretrained: Pretrained | None
) -> Classifier:
    channels, size, _ = images.shape
    name = name or ("ConvNet" if size <= SMALL else "ResNet18")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if pretrained is not None:
            names = _names(images)
            return Classifier.from_backbone(pretrained, class_names=names, method=method)
        network = networks.build(
            name, in_channels=channels, num_classes=images.num_classes, image_size=size
        )
        return Classifier(network, method, _names(images))


def _description(learned: ImageSet, held_out: ImageSet, model: Classifier) -> str:
    channels, size, _ = learned.shape
    names = _shortened(model.class_names or [])
    return (
        f"{len(learned)} images to learn from, {len(held_out)} held out, {size}x{size} pixels, "
        f"{'grey' if channels == 1 else 'colour'}; {learned.num_classes} classes: {names}\n"
        f"{model.method.name}, {type(model.network.plain).__name__}"
    )


def _summary(history: History, out: Path) -> str:
    """How training went, and what to do next."""
    best = history.epochs[history.best_epoch]
    lines = [
        f"accuracy on held-out images {best.val_accuracy:.2%}, after epoch {history.best_epoch + 1} of "
        f"{len(history.epochs)}"
    ]
    if history.density_effect is not None:
        lines.append(str(history.density_effect))
        if history.density_effect.advice():
            lines.append("  settings are given as in --set leave_one_out=true")
    typed = shlex.quote(str(out))
    lines += [
        f"The model is in {out}. Next:",
        f"  daedl evaluate {typed} --id TEST_IMAGES --ood OTHER_IMAGES",
        f"  daedl predict {typed} IMAGE.png",
    ]
    return "\n".join(lines)
