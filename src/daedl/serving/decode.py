"""From a request's body to inputs of the network, by its content type."""

from torch import Tensor

from daedl.serving.arrays import from_json, from_npy
from daedl.serving.errors import RequestError
from daedl.serving.forms import read_files
from daedl.serving.inputs import Inputs
from daedl.serving.pictures import read_pictures
from daedl.serving.settings import Settings

PICTURES = ("image/png", "image/jpeg")
JSON = "application/json"
NPY = "application/octet-stream"
FORM = "multipart/form-data"


def decode(
    content_type: str, body: bytes, inputs: Inputs, settings: Settings, *, many: bool
) -> Tensor:
    """Inputs (N, *shape); N is 1 unless `many` may come.

    A picture is made to fit the network's channels and size; an array must have its shape.
    """
    kind = content_type.partition(";")[0].strip().lower()
    allowed = (JSON, NPY, FORM) if many else (*PICTURES, JSON, NPY, FORM)
    if kind not in allowed:
        raise RequestError(
            415,
            f"the Content-Type is {kind[:60]!r}; expected {', '.join(allowed)}: set it to what is sent",
        )
    if not body:
        raise RequestError(400, "the body is empty; expected an image or an array")
    if kind == JSON:
        return from_json(body, inputs, many, settings.max_images)
    if kind == NPY:
        return from_npy(body, inputs, many, settings.max_images)
    if not inputs.are_images:
        raise RequestError(
            415,
            f"the model takes inputs of shape {inputs.shape}, no images; expected an array: send it as "
            f"{JSON} or {NPY}",
        )
    most = settings.max_images if many else 1
    files = read_files(content_type, body, most) if kind == FORM else [body]
    return inputs.from_pixels(read_pictures(files, inputs.shape, settings.max_pixels))
