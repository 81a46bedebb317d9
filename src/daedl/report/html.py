"""Templates to HTML, and images to data URLs."""

from base64 import b64encode
from io import BytesIO
from typing import Any

import jinja2
from PIL import Image
from torch import Tensor

# Images from this size are JPEG; below it PNG is smaller, and exact (measured on digits and photographs).
JPEG_SIZE = 32
# Largest side of an image in pixels, and its quality: about 2 kB per image (chosen).
MAX_SIDE, QUALITY = 96, 80


def render(package: str, template: str, **values: Any) -> str:
    """Renders `template` of `package`; pages extend base.html.j2 of this package. Only HTML is escaped."""
    packages = (package, "daedl.report")
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name) for name in packages]),
        autoescape=lambda name: name is not None and ".html" in name,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)


def inline(data: bytes, kind: str = "png") -> str:
    """Returns an image file as a data URL."""
    return f"data:image/{kind};base64,{b64encode(data).decode()}"


def thumbnail(image: Tensor) -> str:
    """Returns an image (C, H, W), uint8, as the data URL of a small file."""
    pixels = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels.squeeze(-1) if len(image) == 1 else pixels)
    picture.thumbnail((MAX_SIDE, MAX_SIDE))
    kind = "jpeg" if min(picture.size) >= JPEG_SIZE else "png"
    buffer = BytesIO()
    picture.save(buffer, kind, quality=QUALITY)
    return inline(buffer.getvalue(), kind)
