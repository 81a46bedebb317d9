"""docs/corruptions.md, rendered from the families."""

from daedl_bench.corruptions.corruption import Corruption
from daedl_bench.corruptions.families import FAMILIES, Family

# The table was measured on the first 2,000 test images of CIFAR-10 with seed 0.
_HEAD = """# Corruptions

Rendered from `daedl_bench.corruptions.FAMILIES`; do not edit. To write it again:
`python -c "from daedl_bench.corruptions import markdown; print(markdown(), end='')" > docs/corruptions.md`

`python -m daedl_bench data corrupt mnist-c` (or `cifar10-c`) generates the dataset from the clean test set,
in the published layout, where the published files are not available; `data sheet` draws the pictures below.
Parameters are the published ones. The published code needs OpenCV and ImageMagick; this implementation
uses numpy, scipy, scikit-image and Pillow. A corruption is a function and an entry in `CORRUPTIONS` of its
module.

For all of them:

- Each image draws its random numbers from (seed, family, corruption, severity, index in the dataset), the
  published generators draw from one stream. Results are reproducible for any batch size, but are other draws
  than the published files. A new version of numpy may change what its generators draw.
- Values are clipped to [0, 255] and rounded as published: MNIST-C to the nearest integer, CIFAR-10-C down.
- "Deviation" is any other difference from the published definition. "None" may be followed by
  peculiarities of the published code that are kept, because the published files have them.
- MNIST-C was compared with files from the published generator: without randomness the images agree within
  one grey level, otherwise in their mean and their mean distance from the clean images (tested where the
  data are available). The published files of CIFAR-10-C were not available: there "None" is based on the
  published code and parameters alone.
- Lengths are in pixels, angles in radians, brightness is in [0, 1].

A higher severity takes images farther from the clean ones (mean absolute difference of pixels), except for
the severities under "no farther". There the published parameters change in kind, not in degree: spatter
changes from water to mud and saturate from less colour to more, the elastic transform trades a global shift
for a local one, a glass blur smooths its own noise, a motion blur gets a longer kernel whose additional
weights are negligible, and frost darkens the image that its ice brightens. This is tested.

## Frost

The published generator adds crops of five photographs of frost. They are used if the package
`imagecorruptions` is installed (`pip install --no-deps imagecorruptions`), which contains them; it is not
imported. Otherwise needles of ice are drawn, with a warning. Drawn ice is darker (mean 0.26, the photographs
0.64) and has more contrast (standard deviation within a crop 0.27 and 0.11), so it corrupts less, and results
on drawn frost are not comparable with published ones. Grey levels, CIFAR-10:

| severity | distance from clean, photographs | drawn | mean level (clean 122), photographs | drawn |
|---|---|---|---|---|
| 1 | 30.5 | 12.3 | 153 | 135 |
| 2 | 44.9 | 18.5 | 167 | 141 |
| 3 | 48.9 | 22.1 | 171 | 136 |
| 4 | 44.5 | 23.3 | 167 | 130 |
| 5 | 43.3 | 29.4 | 164 | 121 |

`data corrupt` keeps existing files: to replace drawn frost, remove `CIFAR-10-C/frost.npy` first.
The contact sheet below shows drawn frost.
"""


def markdown() -> str:
    """The text of docs/corruptions.md."""
    return "\n".join([_HEAD, *map(_section, FAMILIES.values())])


def _section(family: Family) -> str:
    several = family.severities > 1
    severities = f"{family.severities} severities" if several else "one severity"
    size = f"{family.side} x {family.side} x {family.channels}"
    picture = f"corruptions_{family.name.replace('-', '_')}.png"
    columns = ["corruption", "description", "parameters", "deviation", "no farther"][: 4 + several]
    lines = [
        f"## {family.title} (`{family.name}`)",
        "",
        f"{family.reference}. {len(family.corruptions)} corruptions of {size} images, {severities}.",
        "",
        f"![Every corruption of {family.title}, clean images first]({picture})",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *(_row(each, len(columns)) for each in family.corruptions.values()),
        "",
    ]
    return "\n".join(lines)


def _row(each: Corruption, columns: int) -> str:
    parameters = "; ".join(f"{key} {_value(value)}" for key, value in each.parameters.items())
    severities = ", ".join(map(str, each.no_farther))
    cells = [f"`{each.name}`", each.description, parameters, each.deviation, severities]
    return f"| {' | '.join(cells[:columns])} |"


def _value(value: float | tuple[float, ...]) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " / ".join(f"{each:g}" for each in (value if isinstance(value, tuple) else (value,)))
