"""Connections to a running server, and `daedl serve`."""

import asyncio
import errno
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from app_client import running
from PIL import Image
from typer.testing import CliRunner

import daedl
from daedl.cli import app
from daedl.networks import ConvNet
from daedl.serving import ServerConfig, create_app
from daedl.serving.server import LimitedProtocol, descriptor_error_handler

PNG = {"Content-Type": "image/png"}
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
POST = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"


def connect(url: str, seconds: float = 10) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=seconds)


def exchange(url: str, data: bytes, seconds: float = 10, then: bytes = b"") -> bytes:
    """Return all data until the server closes the connection; raise TimeoutError if it doesn't.

    `then` is sent after the first response to `data`.
    """
    received = b""
    with connect(url, seconds) as connection:
        connection.sendall(data)
        while part := connection.recv(65536):
            if not received and then:
                connection.sendall(then)
            received += part
    return received


@pytest.fixture(scope="module")
def url(model) -> Iterator[str]:
    with running(create_app(model, ServerConfig(timeout=0.5, max_bytes=200_000))) as url:
        yield url


@pytest.fixture
def is_healthy(url, encode, pixels) -> Iterator[None]:
    """Verifies after a test that the server still predicts."""
    yield
    response = httpx.post(f"{url}/predict", content=encode(pixels[0]), headers=PNG)
    assert response.json()["class_name"] == "row"


@pytest.mark.usefixtures("is_healthy")
class TestConnections:
    @pytest.mark.parametrize("chunked", [False, True])
    def test_a_client_that_sends_too_much_receives_the_response(self, url, chunked) -> None:
        content = (bytes(100_000) for _ in range(50)) if chunked else bytes(5_000_000)
        with httpx.Client() as client:
            response = client.post(f"{url}/predict", content=content, headers=PNG)
            assert (response.status_code, response.headers["Connection"]) == (413, "close")
            assert client.get(f"{url}/health").json() == {"status": "ok"}

    @pytest.mark.parametrize(
        ("head", "status"),
        [
            (b"POST /missing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n", b"404"),
            (POST + b"Content-Length: 1000000000000\r\n\r\n", b"413"),
            (POST + b"Content-Length: 100\r\n\r\n", b"415"),
            (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n", b"200"),
            (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        ],
    )
    def test_the_connection_is_closed_if_the_body_is_not_read(self, url, head, status) -> None:
        if status == b"413":
            head = head.replace(b"Host", b"Content-Type: image/png\r\nHost")
        received = exchange(url, head + b"x")
        assert received.startswith(b"HTTP/1.1 " + status)
        assert b"connection: close" in received

    def test_a_body_that_stops_times_out(self, url) -> None:
        head = POST + b"Content-Type: image/png\r\nContent-Length: 100\r\n\r\nshort"
        assert b"408 Request Timeout" in exchange(url, head)

    @pytest.mark.parametrize("start", [b"", POST])
    def test_an_incomplete_head_times_out(self, url, monkeypatch, start) -> None:
        monkeypatch.setattr(LimitedProtocol, "client_seconds", 0.3)
        assert exchange(url, start) == b""

    def test_the_second_head_times_out(self, url, monkeypatch) -> None:
        monkeypatch.setattr(LimitedProtocol, "client_seconds", 0.3)
        health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert exchange(url, health, then=b"GET /hea").count(b"200 OK") == 1

    def test_a_slow_body_is_not_a_slow_head(self, url, monkeypatch, encode, pixels) -> None:
        monkeypatch.setattr(LimitedProtocol, "client_seconds", 0.1)
        data = encode(pixels[0])

        def body() -> Iterator[bytes]:
            for part in (data[:20], data[20:40], data[40:]):
                time.sleep(0.1)
                yield part

        assert httpx.post(f"{url}/predict", content=body(), headers=PNG).status_code == 200

    def test_invalid_http(self, url) -> None:
        rng = random.Random(0)
        for _ in range(30):
            received = exchange(url, rng.randbytes(300) + b"\r\n\r\n")
            assert received == b"" or b"400 Bad Request" in received
        head = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
        assert b"400 Bad Request" in exchange(url, head + b"X: " + b"x" * 100_000)
        upgrade = head + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
        assert b"200 OK" in exchange(url, upgrade)

    def test_a_client_that_disconnects(self, url) -> None:
        for data in (POST, POST + b"Content-Type: image/png\r\nContent-Length: 9\r\n\r\nx"):
            connect(url).close()
            with connect(url) as connection:
                connection.sendall(data)

    def test_idle_connections_are_evicted(self, model, monkeypatch) -> None:
        monkeypatch.setattr(LimitedProtocol, "client_seconds", 60.0)
        config = ServerConfig(max_connections=5)
        with running(create_app(model, config), config) as url, ExitStack() as stack:
            idle = [stack.enter_context(connect(url)) for _ in range(20)]
            for _ in range(10):
                assert httpx.get(f"{url}/health").status_code == 200
            for connection in idle[:15]:
                assert connection.recv(1) == b""  # closed

    # Numbers below and above the limit of the write buffer; complete, last and invalid requests.
    @pytest.mark.parametrize(
        ("requests", "last"),
        [
            (1, b"\r\n"),
            (2, b"X\r\n\r\n"),
            (30, b"\r\n"),
            (30, b"Connection: close\r\n\r\n"),
            (30, b"X\r\n\r\n"),
        ],
    )
    def test_clients_that_do_not_read_are_closed(self, model, monkeypatch, requests, last) -> None:
        monkeypatch.setattr(LimitedProtocol, "client_seconds", 0.2)
        config = ServerConfig(max_connections=5)
        get = b"GET /app.js HTTP/1.1\r\nHost: localhost\r\n"
        with running(create_app(model), config, buffer=2048) as url, ExitStack() as stack:
            for _ in range(5):
                client = stack.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                client.connect(("127.0.0.1", int(url.rsplit(":", 1)[1])))
                client.sendall((get + b"\r\n") * (requests - 1) + get + last)
            time.sleep(0.8)
            for _ in range(3):
                assert httpx.get(f"{url}/health").status_code == 200

    def test_clients_that_send_slowly_lock_nobody_out(self, model, encode, pixels) -> None:
        config = ServerConfig(max_connections=5, max_requests=5)
        head = POST + b"Content-Type: image/png\r\nContent-Length: 100\r\n\r\nx"
        with running(create_app(model, config), config) as url, ExitStack() as stack:
            for _ in range(5):
                stack.enter_context(connect(url)).sendall(head)
            time.sleep(0.2)
            response = httpx.post(f"{url}/predict", content=encode(pixels[0]), headers=PNG)
            assert response.status_code == 200

    def test_many_clients(self, model, encode, pixels) -> None:
        async def send(url: str) -> list[httpx.Response]:
            async with httpx.AsyncClient(timeout=60) as client:
                bodies = [encode(pixels[i % 3]) for i in range(100)]
                requests = [
                    client.post(f"{url}/predict", content=each, headers=PNG) for each in bodies
                ]
                return await asyncio.gather(*requests)

        config = ServerConfig(max_requests=100)
        with running(create_app(model, config), config) as url:
            responses = asyncio.run(send(url))
        assert {each.status_code for each in responses} == {200}
        assert [each.json()["class_name"] for each in responses[:3]] == model.class_names


# Optional packages are imported by the command, not with the command line.
SCRIPT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import daedl.cli.serve
assert not {"fastapi", "uvicorn", "prometheus_client"} & set(sys.modules)
daedl.cli.app()
"""


@pytest.fixture(scope="module")
def model_file(model, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.daedl"
    model.save(path)
    return path


@contextmanager
def serving(path: Path, *options: str) -> Iterator[tuple]:
    """Run `daedl serve` with a token and 256 file descriptors, and return its process and URL."""
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            SCRIPT,
            "serve",
            str(path),
            "--port",
            "0",
            "--threads",
            "1",
            *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DAEDL_TOKEN": "secret"},
    ) as process:
        try:
            line = process.stdout.readline().strip()
            assert line.startswith(f"serving {path} at http://127.0.0.1:"), process.stderr.read()
            yield process, line.split()[-1]
        finally:
            process.kill()


def error(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


class TestCommand:
    def test_sigterm_completes_requests_first(self, model, model_file, encode, pixels) -> None:
        data = encode(pixels[0])
        with serving(model_file, "--allowed-host", "model.example") as (process, url):
            for host, status in {"localhost": 200, "model.example": 200, "a.example": 400}.items():
                response = httpx.get(f"{url}/health", headers={"Host": host})
                assert response.status_code == status
            assert httpx.post(f"{url}/predict", content=data).status_code == 401

            def body() -> Iterator[bytes]:
                yield data[:20]
                time.sleep(0.3)
                process.send_signal(signal.SIGTERM)
                time.sleep(0.5)
                yield data[20:]

            headers = {**PNG, "Authorization": "Bearer secret"}
            response = httpx.post(f"{url}/predict", content=body(), headers=headers)
            expected = model.predict(pixels[:1] / 255)
            assert response.json()["log_density"] == float(expected.log_density)
            assert process.wait(60) == -signal.SIGTERM
            assert process.stderr.read() == ""

    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    def test_large_images_are_decoded_one_at_a_time(self, model_file, encode, pixels) -> None:
        """Small images are predicted meanwhile."""
        large, small = encode(Image.new("RGBA", (3000, 3000))), encode(pixels[0])
        headers = {**PNG, "Authorization": "Bearer secret"}

        def memory(process: subprocess.Popen, key: str) -> int:
            lines = Path(f"/proc/{process.pid}/status").read_text("utf-8").splitlines()
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))

        async def send(url: str, bodies: list[bytes]) -> list[int]:
            async with httpx.AsyncClient(timeout=60) as client:
                done = []

                async def send_one(body: bytes) -> None:
                    response = await client.post(f"{url}/predict", content=body, headers=headers)
                    assert response.status_code == 200
                    done.append(len(body))

                await asyncio.gather(*map(send_one, bodies))
                return done

        with serving(model_file) as (process, url):
            asyncio.run(send(url, [small] * 4))
            before = memory(process, "VmRSS")
            done = asyncio.run(send(url, [large] * 6 + [small] * 10))
            peak = memory(process, "VmHWM") - before
        # 4 bytes per pixel as decoded and 1 converted to grey, of one image; the factor is chosen.
        assert peak < 1.5 * 5 * 3000**2
        assert done[::-1].index(len(small)) >= 3  # small images don't wait for all large ones

    def test_damaged_images_and_forms_are_not_logged(self, model_file, encode, pixels) -> None:
        """Pillow and python-multipart warn of many of them: clients could fill the log."""
        rng, exif = random.Random(0), Image.Exif()
        exif[0x0112] = 6
        part = b'--b\r\nContent-Disposition: form-data; name="a"; filename="a"\r\n\r\n'
        bodies = {
            "image/tiff": encode(pixels[0], "TIFF", compression="tiff_lzw"),
            "image/jpeg": encode(pixels[0], "JPEG", exif=exif),
            "multipart/form-data; boundary=b": part + encode(pixels[0]) + b"\r\n--b--\r\n",
        }
        with serving(model_file) as (process, url), httpx.Client() as client:
            for kind, body in bodies.items():
                headers = {"Content-Type": kind, "Authorization": "Bearer secret"}
                for _ in range(100):
                    damaged = bytearray(body)
                    damaged[rng.randrange(len(body))] = rng.randrange(256)
                    response = client.post(
                        f"{url}/predict", content=bytes(damaged), headers=headers
                    )
                    assert response.status_code < 500
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert process.stderr.read() == ""

    def test_exhausted_descriptors_are_logged_in_one_line(self, caplog) -> None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(descriptor_error_handler())
        for _ in range(3):
            exhausted = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            loop.call_exception_handler({"message": "accept", "exception": exhausted})
        (record,) = caplog.records
        assert "--max-connections" in record.getMessage()
        assert record.exc_info is None
        loop.call_exception_handler({"message": "another error"})
        assert "another error" in caplog.text
        loop.close()

    def test_invalid_arguments(self, model, model_file, tmp_path) -> None:
        assert "no model file" in error(tmp_path / "missing.daedl")
        unfitted = tmp_path / "unfitted.daedl"
        daedl.Classifier(ConvNet(1, 3, 8, channels=4)).save(unfitted)
        assert "fitted" in error(unfitted)
        assert "max_images" in error(model_file, "--max-images", 0)
        assert "timeout" in error(model_file, "--timeout", -1)
        assert "host" in error(model_file, "--allowed-host", "http://a")
        for size in ("inf", "nan", -1):
            assert "--max-megabytes" in error(model_file, "--max-megabytes", size)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            assert f"port {port}: Address already in use" in error(model_file, "--port", port)
        assert "203.0.113.5" in error(model_file, "--host", "203.0.113.5")

    def test_a_missing_package_is_named(self, model_file, monkeypatch) -> None:
        monkeypatch.delitem(sys.modules, "daedl.serving")
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        message = error(model_file)
        assert "prometheus_client" in message
        assert "pip install 'daedl[serve]'" in message
