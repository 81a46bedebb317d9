"""Small data sets, files in the published formats, and a server on this machine."""

import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest


@dataclass
class Site:
    """What the server gives, and what it was asked for.

    Attributes:
        files: content by path.
        cut: how many answers still break off in the middle.
        ranges: whether it knows ranges.
        length: what it says of the length; by default the truth.
        asked: (path, Range header) of every request.
    """

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    cut: int = 0
    ranges: bool = True
    length: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)


class Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.site.asked.append((self.path, wanted))
        if self.path not in self.site.files:
            self.send_error(404)
            return
        content = self.site.files[self.path]
        start = 0
        if wanted and self.site.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        rest = content[start:]
        self.send_header("Content-Length", self.site.length or str(len(rest)))
        self.end_headers()
        if self.site.cut:
            self.site.cut -= 1
            rest = rest[: len(rest) // 2]
        self.wfile.write(rest)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server on 127.0.0.1."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = type("Here", (Handler,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.site = Site(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield handler.site
        server.shutdown()
        thread.join()
