"""The read-only tables of corruptions: functions, published parameters, what deviates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from daedl_bench.corruptions import (
    blur,
    digital,
    drawing,
    geometry,
    noise,
    tone,
    weather,
)
from daedl_bench.corruptions.draws import Array
from daedl_bench.corruptions.spatter import spatter

EXACT = "None."


@dataclass(frozen=True)
class Corruption:
    """One corruption of a family.

    Attributes:
        function: (images (N, C, H, W) in [0, 1], draws, **parameters) -> images, not yet clipped.
        parameters: the keyword arguments of `function`, one mapping a severity, the mildest first.
        description: what it looks like.
        deviation: from the published definition.
        no_farther: the severities whose published parameters take images no farther from the clean
            ones than the severity before does, in the mean absolute difference of pixels.
    """

    function: Callable[..., Array]
    parameters: tuple[Mapping[str, float], ...]
    description: str
    deviation: str = EXACT
    no_farther: tuple[int, ...] = ()

    @property
    def severities(self) -> range:
        """1, ..., the number of severities."""
        return range(1, 1 + len(self.parameters))


@dataclass(frozen=True)
class Family:
    """A published set of corruptions, for images (channels, side, side).

    Attributes:
        folder: the name under which it is published.
        rounded: to the nearest of 256 levels; else down, as the published code of CIFAR-10-C does.
    """

    title: str
    folder: str
    reference: str
    channels: int
    side: int
    rounded: bool
    corruptions: Mapping[str, Corruption]


def _once(**parameters: float) -> tuple[Mapping[str, float], ...]:
    """Parameters of the only severity."""
    return (MappingProxyType(parameters),)


def _five(**parameters: float | Sequence[float]) -> tuple[Mapping[str, float], ...]:
    """Parameters of five severities: five values each, or one for all."""
    columns = {
        name: [value] * 5 if isinstance(value, int | float) else list(value)
        for name, value in parameters.items()
    }
    rows = zip(*columns.values(), strict=True)
    return tuple(MappingProxyType(dict(zip(columns, row, strict=True))) for row in rows)


_MAGICK = "None. ImageMagick's kernel, steps and rounding are rebuilt in numpy."

_MNIST_C = {
    "shot_noise": Corruption(
        noise.shot_noise, _once(photons=3), "Poisson noise of a camera in the dark."
    ),
    "impulse_noise": Corruption(
        noise.impulse_noise, _once(amount=0.17), "Salt and pepper: pixels black or white."
    ),
    "glass_blur": Corruption(
        blur.glass_blur,
        _once(sigma=0.7, sigma_across=0, reach=1, rounds=2, chance=0.5, exchange=True),
        "As through frosted glass: pixels change places nearby, blurred before and after.",
        "None. The published code takes the columns of a grey image for colour channels, so that it "
        "blurs down but not across; this does the same.",
    ),
    "motion_blur": Corruption(
        blur.motion_blur, _once(radius=10, sigma=3), "A trail to one side.", _MAGICK
    ),
    "shear": Corruption(
        geometry.shear,
        _once(angle=0.4),
        "Slanted to the left or right.",
        "None. The map is (1, -sin; 0, cos), which also stretches the height by 1 / cos 0.4.",
    ),
    "scale": Corruption(geometry.scale, _once(factor=0.7), "Shrunk about the centre."),
    "rotate": Corruption(geometry.rotate, _once(angle=0.4), "Turned about the centre, either way."),
    "brightness": Corruption(tone.brightness, _once(added=0.5), "Every pixel lighter by a half."),
    "translate": Corruption(
        geometry.translate, _once(pixels=3), "Moved along both axes, each either way."
    ),
    "stripe": Corruption(
        drawing.stripe, _once(columns=7), "The left and the right quarter inverted."
    ),
    "fog": Corruption(
        weather.fog, _once(amount=3.0, decay=1.4, side=256), "A plasma fractal over a faded image."
    ),
    "spatter": Corruption(
        spatter,
        _once(mean=0.65, spread=0.3, sigma=1, threshold=0.65, water=0, mud=1.5),
        "Dark grey drops.",
    ),
    "dotted_line": Corruption(
        drawing.dotted_line, _once(dash=2), "A dotted line from the left to the right."
    ),
    "zigzag": Corruption(
        drawing.zigzag, _once(length=2, width=2), "A zigzag line from the left to the right."
    ),
    "canny_edges": Corruption(
        drawing.canny_edges,
        _once(sigma=1, low=0.1, high=0.2),
        "Outlines only.",
        "None. scikit-image's detector is rebuilt with scipy.",
    ),
}

_CIFAR10_C = {
    "gaussian_noise": Corruption(
        noise.gaussian_noise,
        _five(scale=(0.04, 0.06, 0.08, 0.09, 0.10)),
        "Gaussian noise, each channel for itself.",
    ),
    "shot_noise": Corruption(
        noise.shot_noise,
        _five(photons=(500, 250, 100, 75, 50)),
        "Poisson noise of a camera in the dark.",
    ),
    "impulse_noise": Corruption(
        noise.impulse_noise,
        _five(amount=(0.01, 0.02, 0.03, 0.05, 0.07)),
        "Salt and pepper, each channel for itself.",
    ),
    "defocus_blur": Corruption(
        blur.defocus_blur,
        _five(radius=(0.3, 0.4, 0.5, 1, 1.5), softness=(0.4, 0.5, 0.6, 0.2, 0.1)),
        "Out of focus: a disk, softened.",
    ),
    "glass_blur": Corruption(
        blur.glass_blur,
        _five(
            sigma=(0.05, 0.25, 0.4, 0.25, 0.4),
            sigma_across=(0.05, 0.25, 0.4, 0.25, 0.4),
            reach=1,
            rounds=(1, 1, 1, 2, 2),
            chance=1,
            exchange=False,
        ),
        "As through frosted glass: pixels move nearby, blurred before and after.",
        "None. The published code means to swap two pixels, but overwrites the first before it is "
        "read, so that one is copied; this copies too.",
        no_farther=(3, 5),
    ),
    "motion_blur": Corruption(
        blur.motion_blur,
        _five(radius=(6, 6, 6, 8, 9), sigma=(1, 1.5, 2, 2, 2.5)),
        "A trail to one side.",
        _MAGICK,
        no_farther=(4,),
    ),
    "zoom_blur": Corruption(
        blur.zoom_blur,
        _five(stop=(1.06, 1.11, 1.16, 1.21, 1.26), step=0.01),
        "The mean of the image and enlargements of it.",
    ),
    "snow": Corruption(
        weather.snow,
        _five(
            mean=(0.1, 0.1, 0.15, 0.25, 0.3),
            spread=(0.2, 0.2, 0.3, 0.3, 0.3),
            zoom=(1, 1, 1.75, 2.25, 1.25),
            threshold=(0.6, 0.5, 0.55, 0.6, 0.65),
            radius=(8, 10, 10, 12, 14),
            sigma=(3, 4, 4, 6, 12),
            kept=(0.95, 0.9, 0.9, 0.85, 0.8),
        ),
        "Flakes with trails over a paler image.",
        _MAGICK,
    ),
    "frost": Corruption(
        weather.frost,
        _five(kept=(1, 1, 0.9, 0.85, 0.75), added=(0.2, 0.3, 0.4, 0.4, 0.45)),
        "Ice crystals over a darker image.",
        "The published generator lays crops of photographs of frost over the image. They are not part of "
        "this library: needles of ice are drawn at random instead. The parameters are the published "
        "ones, the texture is not; figures on frost are not comparable with published ones.",
    ),
    "fog": Corruption(
        weather.fog,
        _five(amount=(0.2, 0.5, 0.75, 1, 1.5), decay=(3, 3, 2.5, 2, 1.75), side=32),
        "A plasma fractal over a faded image.",
    ),
    "brightness": Corruption(
        tone.brightness, _five(added=(0.05, 0.1, 0.15, 0.2, 0.3)), "Lighter, at the same hue."
    ),
    "contrast": Corruption(
        tone.contrast, _five(factor=(0.75, 0.5, 0.4, 0.3, 0.15)), "Nearer to the mean colour."
    ),
    "elastic_transform": Corruption(
        geometry.elastic_transform,
        _five(
            strength=(0, 1.6, 2.56, 3.2, 3.2),
            sigma=(0, 6.4, 1.92, 1.28, 0.96),
            jitter=(2.56, 2.24, 1.92, 1.6, 0.96),
        ),
        "A small random affine map, then pixels moved by smooth noise.",
        "OpenCV's affine warp rounds places to 1/32 of a pixel; this does not.",
        no_farther=(2, 3, 4, 5),
    ),
    "pixelate": Corruption(
        digital.pixelate,
        _five(factor=(0.95, 0.9, 0.85, 0.75, 0.65)),
        "Shrunk and enlarged again with a box filter.",
    ),
    "jpeg_compression": Corruption(
        digital.jpeg_compression,
        _five(quality=(80, 65, 58, 50, 40)),
        "Written as JPEG and read again.",
        "None, but for what versions of Pillow's JPEG library differ in.",
    ),
    "speckle_noise": Corruption(
        noise.speckle_noise,
        _five(scale=(0.06, 0.1, 0.12, 0.16, 0.2)),
        "Gaussian noise in proportion to the pixel.",
    ),
    "gaussian_blur": Corruption(
        blur.gaussian_blur, _five(sigma=(0.4, 0.6, 0.7, 0.8, 1)), "A Gaussian blur."
    ),
    "spatter": Corruption(
        spatter,
        _five(
            mean=(0.62, 0.65, 0.65, 0.65, 0.65),
            spread=(0.1, 0.1, 0.3, 0.1, 0.1),
            sigma=(0.7, 0.8, 1, 0.7, 0.5),
            threshold=(0.7, 0.7, 0.69, 0.69, 0.68),
            water=(0.5, 0.5, 0.5, 0, 0),
            mud=(0, 0, 0, 0.6, 0.6),
        ),
        "Drops of water (1 to 3) or mud (4 and 5).",
        "OpenCV's edges, histogram equalisation and filters rebuilt with scipy; distances from the rims "
        "of drops are exact where OpenCV approximates. A layer without a drop leaves the image as it "
        "is, where the published code divides by 0.",
        no_farther=(4,),
    ),
    "saturate": Corruption(
        tone.saturate,
        _five(factor=(0.3, 0.1, 1.5, 2, 2.5), added=(0, 0, 0, 0.1, 0.2)),
        "Less colour (1 and 2) or more (3 to 5).",
        no_farther=(3,),
    ),
}

MNIST_C = Family(
    title="MNIST-C",
    folder="mnist_c",
    reference="Mu and Gilmer, 2019, arXiv:1906.02337",
    channels=1,
    side=28,
    rounded=True,
    corruptions=MappingProxyType(_MNIST_C),
)
CIFAR10_C = Family(
    title="CIFAR-10-C",
    folder="CIFAR-10-C",
    reference="Hendrycks and Dietterich, 2019, arXiv:1903.12261",
    channels=3,
    side=32,
    rounded=False,
    corruptions=MappingProxyType(_CIFAR10_C),
)
FAMILIES: Mapping[str, Family] = MappingProxyType({"mnist-c": MNIST_C, "cifar10-c": CIFAR10_C})
