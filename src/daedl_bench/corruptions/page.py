"""docs/corruptions.md, rendered from the tables."""

from daedl_bench.corruptions.table import FAMILIES, Corruption, Family

_HEAD = """# Corruptions

Rendered from `daedl_bench.corruptions.FAMILIES`; do not edit. To write it again:
`python -c "from daedl_bench.corruptions import markdown; print(markdown(), end='')" > docs/corruptions.md`

`corrupt(images, name, severity, family, seed)` changes uint8 images (N, C, H, W) as the published
generators of MNIST-C and CIFAR-10-C do; `generate(images, labels, folder, family)` writes whole sets in the
published layout, for when the published files are not at hand. Parameters are the published ones. The code
is not: everything is written for whole batches with numpy, scipy and Pillow, without OpenCV,
scikit-image or ImageMagick.

For all of them:

- Each image draws its random numbers from (seed, family, corruption, severity, index in the set), the
  published generators from one stream. So results repeat, whatever the size of the batch, but they are other
  draws than in the published files. A new version of numpy may change what its generators draw.
- Values are cut to [0, 255] and made whole as published: MNIST-C rounds to the nearest, CIFAR-10-C down.
- "Deviation" is what else differs from the published definition. "None" may be followed by peculiarities of
  the published code that are kept, because the published files have them.
- MNIST-C was compared with files that the published generator made: where nothing is drawn at random the
  images agree to one grey level, elsewhere in their mean and their mean distance from the clean images (a
  test does it where the data are at hand). The published files of CIFAR-10-C were not at hand: there "None"
  rests on the published code and parameters alone.
- Lengths are in pixels, angles in radians, brightness is in [0, 1].

A larger severity takes images farther from the clean ones (mean absolute difference of pixels), except
where "no farther" says otherwise. There the published parameters change in kind and not in degree: spatter
goes over from water to mud and saturate from less colour to more, the elastic transform trades a wide shift
for a local one, a glass blur blurs its own noise away, and a motion blur gets a longer kernel whose
further weights are 0 in effect. A test checks both the rule and the exceptions.
"""


def markdown() -> str:
    """The text of docs/corruptions.md."""
    return "\n".join([_HEAD, *map(_section, FAMILIES, FAMILIES.values())])


def _section(key: str, family: Family) -> str:
    first = next(iter(family.corruptions.values()))
    count, severities = len(family.corruptions), len(first.severities)
    levels = f"{severities} severities" if severities > 1 else "one severity"
    size = f"{family.side} x {family.side} x {family.channels}"
    picture = f"corruptions_{key.replace('-', '_')}.png"
    lines = [
        f"## {family.title} (`{key}`)",
        "",
        f"{family.reference}. {count} corruptions of {size} images, {levels}.",
        "",
        f"![Every corruption of {family.title}, clean images first]({picture})",
        "",
        "| corruption | what it does | parameters | deviation |"
        + (" no farther |" if severities > 1 else ""),
        "|---" * (5 if severities > 1 else 4) + "|",
        *(_row(name, each) for name, each in family.corruptions.items()),
        "",
    ]
    return "\n".join(lines)


def _row(name: str, each: Corruption) -> str:
    cells = [f"`{name}`", each.description, _parameters(each), each.deviation]
    if len(each.parameters) > 1:
        cells.append(", ".join(map(str, each.no_farther)))
    return "| " + " | ".join(cells) + " |"


def _parameters(each: Corruption) -> str:
    """`name` value, ...; all the values if they differ between severities."""
    parts = []
    for name in each.parameters[0]:
        values = [f"{level[name]:g}" for level in each.parameters]
        if isinstance(each.parameters[0][name], bool):
            values = ["yes" if level[name] else "no" for level in each.parameters]
        same = len(set(values)) == 1
        parts.append(f"{name} {values[0] if same else ' / '.join(values)}")
    return "; ".join(parts)
