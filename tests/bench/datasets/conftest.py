"""A local HTTP server for download tests, and files in the published formats."""

import hashlib
import http.server
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest

from daedl_bench.datasets.sources import Source, sources


@dataclass
class Site:
    """Content by path, the paths requested, and how many responses are still to be cut in half."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)
    cut: int = 0


class Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        self.site.requested.append(self.path)
        content = self.site.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.site.cut:
            self.site.cut -= 1
            content = content[: len(content) // 2]
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server on 127.0.0.1."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = type("LocalHandler", (Handler,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.site = Site(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield handler.site
        server.shutdown()
        thread.join()


class Files:
    """Writes small datasets in the published layout."""

    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    labels = np.arange(5, dtype=np.uint8)

    @staticmethod
    def idx(array: np.ndarray) -> bytes:
        return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()

    def mnist(
        self, pixels: np.ndarray | None = None, labels: np.ndarray | None = None
    ) -> dict[str, bytes]:
        """The two files of the test set by path."""
        arrays = (
            self.pixels if pixels is None else pixels,
            self.labels if labels is None else labels,
        )
        return dict(zip(sources()["mnist"].splits["test"], map(self.idx, arrays), strict=True))

    @staticmethod
    def put(root: Path, contents: dict[str, bytes]) -> None:
        for name, content in contents.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    @staticmethod
    def published(name: str, address: str, contents: dict[str, bytes]) -> dict[str, Source]:
        """A table in which `name` is published at `address` with these contents."""
        sums = {path: hashlib.md5(content).hexdigest() for path, content in contents.items()}
        urls = (f"{address}/{{name}}",)
        return {name: msgspec.structs.replace(sources()[name], urls=urls, md5=sums)}


@pytest.fixture(scope="session")
def files() -> Files:
    return Files()
