"""The contact sheet: a few images under every corruption."""

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from torch import Tensor

from daedl.names import look_up
from daedl_bench.corruptions.apply import corrupt, require_images
from daedl_bench.corruptions.families import FAMILIES

_GAP = 2  # white pixels between images, twice as many between columns (chosen)
_INCHES = 1 / 42  # size of an image pixel; one dot at 42 dots per inch (chosen)
_MARGINS = (1.6, 0.3)  # inches for the names and the severities (chosen)


def contact_sheet(images: Tensor, family: str) -> Figure:
    """Draw `images` (N, C, H, W) uint8, clean and under every corruption of `family`, one row each.

    The first column is clean, followed by the severities; each cell shows all images side by side.
    """
    kind = look_up(FAMILIES, family, "family of corruptions")
    require_images(images, kind)
    if len(images) == 0:
        raise ValueError("images are empty; expected at least one image: pass e.g. images[:4]")
    severities = range(1, kind.severities + 1)
    rows = {
        name: _row([images, *(corrupt(images, name, s, family) for s in severities)])
        for name in kind.corruptions
    }
    picture = np.concatenate(list(rows.values()))
    height, width = (length * _INCHES for length in picture.shape[:2])
    figure = Figure(figsize=(width + _MARGINS[0], height + _MARGINS[1]))
    bottom, left = 0.02 / (height + _MARGINS[1]), _MARGINS[0] / (width + _MARGINS[0])
    axes = figure.add_axes((left, bottom, 1 - left, height / (height + _MARGINS[1])))
    axes.imshow(picture, interpolation="nearest", aspect="auto")
    labels = ["clean", *(map(str, severities) if kind.severities > 1 else ["corrupted"])]
    cell = picture.shape[1] / len(labels)
    axes.set_xticks([cell * (i + 0.5) for i in range(len(labels))], labels)
    axes.set_yticks([(kind.side + _GAP) * (i + 0.5) for i in range(len(rows))], list(rows))
    axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    return figure


def _row(cells: list[Tensor]) -> npt.NDArray[np.uint8]:
    """One row of the sheet (H + gap, W', 3) from the images (N, C, H, W) of its cells."""
    parts = []
    for images in cells:
        channels_last = images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
        padded = np.pad(channels_last, ((0, 0), (0, _GAP), (0, _GAP), (0, 0)), constant_values=255)
        joined = np.concatenate(list(padded), axis=1)
        parts.append(np.pad(joined, ((0, 0), (0, _GAP), (0, 0)), constant_values=255))
    return np.concatenate(parts, axis=1)
