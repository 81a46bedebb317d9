"""Malformed HTTP requests, drawn with a seed."""

import json
import random
import zlib
from collections.abc import Callable
from io import BytesIO

import numpy as np
from torch import Tensor

from daedl_bench.robustness._damage import damaged, many_scans
from daedl_bench.server import picture, request

TOO_LARGE = 9 << 20  # bytes: above the server's default limit of 8 MiB
HEAD = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\n"
PATHS = ("/predict", "/predict/batch")
OTHER_TYPES = ("text/html", "image/gif", "", "é/\x7f")


class Malformed:
    """A source of malformed requests; `pixels` (1, H, W) are of an image that the server accepts."""

    def __init__(self, pixels: Tensor) -> None:
        self.draw = random.Random(0)
        buffer = BytesIO()
        np.save(buffer, pixels.numpy())
        self.scans = many_scans(1400, 30_000)  # minutes of decoding
        form = b'--b\r\nContent-Disposition: form-data; name="a"; filename="a.png"\r\n\r\n'
        self.valid = [
            ("image/png", picture(pixels)),
            ("image/jpeg", picture(pixels, "JPEG")),
            ("application/octet-stream", buffer.getvalue()),
            ("application/json", json.dumps({"array": (pixels / 255).tolist()}).encode()),
            ("multipart/form-data; boundary=b", form + picture(pixels) + b"\r\n--b--\r\n"),
        ]

    def __call__(self) -> bytes:
        """The next request."""
        draw, (kind, body) = self.draw, self.draw.choice(self.valid)
        path, kinds = draw.choice(PATHS), [*(kind for kind, _ in self.valid), *OTHER_TYPES]
        # Weights: damaged files are most frequent, large bodies rare as they cost most.
        kinds_of_request: list[tuple[int, Callable[[], bytes]]] = [
            (50, lambda: request(damaged(draw, body), kind, path)),
            (15, lambda: request(draw.randbytes(draw.randint(0, 5000)), kind)),
            (10, lambda: request(body, draw.choice(kinds), "/predict/batch")),
            (8, lambda: self._huge(draw.choice([5000, 9000, 30_000, 2**31 - 1]))),
            (8, lambda: request(draw.choice(_JSON).encode(), "application/json", path)),
            (8, lambda: draw.choice([draw.randbytes(200) + b"\r\n\r\n", *_PROTOCOL])),
            (1, lambda: draw.choice([request(bytes(TOO_LARGE)), _chunked(TOO_LARGE)])),
            (1, lambda: request(self.scans, "image/jpeg", path)),
        ]
        weights = [weight for weight, _ in kinds_of_request]
        return draw.choices(kinds_of_request, weights)[0][1]()

    def _huge(self, side: int) -> bytes:
        """An image or an array whose header announces `side` x `side` pixels."""
        if self.draw.random() < 0.5:
            header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({side}, {side})}}"
            array = b"\x93NUMPY\x01\x00v\x00" + header.ljust(117).encode() + b"\n" + bytes(64)
            return request(array, "application/octet-stream")
        size = side.to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
        chunks = _chunk(b"IHDR", size) + _chunk(b"IDAT", zlib.compress(bytes(99)))
        return request(b"\x89PNG\r\n\x1a\n" + chunks)


def _chunked(size: int) -> bytes:
    """A request whose body of `size` bytes is sent in chunks that don't end."""
    chunk = b"%x\r\n" % 2**20 + bytes(2**20) + b"\r\n"
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * (size >> 20)


def _chunk(name: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")


_ROW = [0.5] * 28
# Arrays of the wrong depth, shape or type.
_JSON = (
    "[" * 100_000,
    '{"array": ' + "[" * 500 + "]" * 500 + "}",
    json.dumps({"array": [_ROW] * 27}),
    json.dumps({"array": [[*_ROW[1:], "x" * 5000]] * 28}),
    json.dumps({"array": [[*_ROW[1:], 10**400]] * 28}).replace("0.5", "5e999"),
    json.dumps({"array": [_ROW] * 28, "max": [1]}),
    json.dumps({"images": [[_ROW] * 28] * 65}),
    '{"array": [[NaN]]}',
    json.dumps({"images": [[]] * 2_000_000}),  # hundreds of MiB as Python objects
    "null",
)
# HTTP with wrong lengths, encodings or methods.
_PROTOCOL = (
    HEAD + b"Content-Length: 1000000000000\r\n\r\n",
    HEAD + b"Content-Length: -5\r\n\r\n",
    HEAD + b"Content-Length: 10\r\nContent-Length: 11\r\n\r\n0123456789",
    HEAD + b"Content-Length: 500\r\n\r\nshort",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    HEAD + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    b"GET /" + b"%ff" * 5000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    b"DELETE /predict HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
)
