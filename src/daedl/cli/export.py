"""`daedl export`: write a model as one graph for other runtimes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from daedl.cli.images import ModelFile, load_any
from daedl.cli.results import require_output_file
from daedl.export import TOLERANCE, ExportedFile, to_onnx, to_pt2

Writer = Callable[..., ExportedFile]
WRITERS: Mapping[str, Writer] = MappingProxyType({".onnx": to_onnx, ".pt2": to_pt2})


def export(
    model: ModelFile,
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="File to write: *.onnx, or *.pt2 for torch.export.load."
        ),
    ],
    tolerance: Annotated[
        float,
        typer.Option(help="Largest difference to PyTorch: absolute up to 1, relative above."),
    ] = TOLERANCE,
    force: Annotated[bool, typer.Option("--force", help="Overwrite OUT if it exists.")] = False,
) -> None:
    """Export a model, including preprocessing, as one ONNX or torch.export graph.

    The graph maps 8-bit images to probabilities and uncertainties. Its outputs
    are compared with PyTorch on random images before the file is written.
    """
    write = _writer(out)
    require_output_file(out, "OUT", force=force)
    exported = write(load_any(model), out, tolerance=tolerance)
    typer.echo(str(exported))


def _writer(out: Path) -> Writer:
    try:
        return WRITERS[out.suffix.lower()]
    except KeyError:
        raise ValueError(
            f"{out} has the suffix {out.suffix!r}; expected {' or '.join(WRITERS)}, which selects the "
            "format: rename it"
        ) from None
