"""Requests to an app in this process, and servers in threads."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from fastapi import FastAPI

from daedl.serving import ServerConfig, server


def send_all(app: FastAPI, requests: list[dict[str, Any]]) -> list[httpx.Response]:
    """Send requests concurrently: arguments of `httpx.AsyncClient.request`, by default POST /predict.

    The keys "kind", a Content-Type, and "delay", in seconds, are additional.
    """

    async def send_one(client: httpx.AsyncClient, request: dict[str, Any]) -> httpx.Response:
        arguments = {"method": "POST", "url": "/predict", "headers": {}, **request}
        if (kind := arguments.pop("kind", None)) is not None:
            arguments["headers"] = {"Content-Type": kind, **arguments["headers"]}
        await asyncio.sleep(arguments.pop("delay", 0))
        return await client.request(**arguments)

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await asyncio.gather(*(send_one(client, each) for each in requests))

    return asyncio.run(run())


def get(app: FastAPI, url: str, **more: Any) -> httpx.Response:
    return send_all(app, [{"method": "GET", "url": url, **more}])[0]


def post(app: FastAPI, content: Any = None, kind: str | None = "image/png", **more: Any):
    """POST to /predict; `kind` is the Content-Type."""
    return send_all(app, [{"content": content, "kind": kind, **more}])[0]


@contextmanager
def running(
    app: FastAPI, config: ServerConfig | None = None, buffer: int | None = None
) -> Iterator[str]:
    """Serve an app at a free port in a thread, and return its URL.

    `buffer` is the size of the kernel's buffers for responses.
    """
    with server.listen("127.0.0.1", 0) as listening:
        if buffer:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        serving = server.LimitedServer(app, config or ServerConfig())
        thread = threading.Thread(target=serving.run, args=([listening],))
        thread.start()
        while not serving.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield server.url(listening)
        finally:
            serving.should_exit = True
            thread.join()
