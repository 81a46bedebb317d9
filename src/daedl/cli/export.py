"""`daedl export`: a model as one graph, for other runtimes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from daedl.checks import NotFittedError
from daedl.cli.common import Threads, report_errors, using_threads
from daedl.cli.images import ModelFile, load_model
from daedl.cli.results import require_output_file
from daedl.export import TOLERANCE, Written, to_onnx, to_pt2

WRITERS: Mapping[str, Callable[..., Written]] = MappingProxyType({".onnx": to_onnx, ".pt2": to_pt2})


def export(
    model: ModelFile,
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="File to write: .onnx, or .pt2 for torch.export.load."),
    ],
    tolerance: Annotated[
        float,
        typer.Option(help="Largest difference to PyTorch; absolute up to 1, relative beyond."),
    ] = TOLERANCE,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file if there is one.")
    ] = False,
    threads: Threads = None,
) -> None:
    """Write a model as one graph: from 8-bit images to probabilities and uncertainties.

    Preprocessing is part of the graph. The graph is compared with PyTorch on random images before it is
    written.
    """
    kinds = (OSError, ValueError, ImportError, NotFittedError)
    with report_errors(*kinds), using_threads(threads):
        write = _writer(out)
        _require_output(out, force)
        written = write(load_model(model), out, tolerance=tolerance)
    typer.echo(str(written))


def _writer(out: Path) -> Callable[..., Written]:
    try:
        return WRITERS[out.suffix.lower()]
    except KeyError:
        raise ValueError(
            f"{out} ends in {out.suffix or 'no suffix'!r}; expected a file that ends in "
            f"{' or '.join(WRITERS)}: rename it, as the suffix decides the format"
        ) from None


def _require_output(out: Path, force: bool) -> None:
    """Raise if the file can't or shouldn't be written: found out before time is spent."""
    if out.exists() and not force:
        raise FileExistsError(
            f"{out} exists already; expected a new file: choose another, or pass --force to replace it"
        )
    require_output_file(out, "OUT")
