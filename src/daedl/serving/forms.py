"""Files of a form, multipart/form-data: what browsers and `curl -F` send."""

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from daedl.serving.errors import RequestError


def read_files(content_type: str, body: bytes, most: int) -> list[bytes]:
    """The contents of all parts of a form, which are at least one and at most `most`."""
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise RequestError(
            400, "the form has no boundary; expected one in the Content-Type: let the client set it"
        )
    parts: list[bytearray] = []
    ended: list[bool] = []

    def begin() -> None:
        if len(parts) == most:
            raise RequestError(413, f"the form has more than {most} parts; expected images alone")
        parts.append(bytearray())

    def extend(data: bytes, start: int, end: int) -> None:
        parts[-1].extend(data[start:end])

    try:
        parser = MultipartParser(
            boundary,
            {"on_part_begin": begin, "on_part_data": extend, "on_end": lambda: ended.append(True)},
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise RequestError(
            400, f"the form can't be read ({str(error)[:200]}); expected multipart/form-data"
        ) from error
    if not ended:
        raise RequestError(400, "the form is cut off; expected its last boundary: send it again")
    if not parts:
        raise RequestError(422, "the form is empty; expected an image file")
    return [bytes(part) for part in parts]
