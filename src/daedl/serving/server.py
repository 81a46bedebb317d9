"""An app behind a socket, by uvicorn."""

import asyncio
import contextlib
import ipaddress
import math
import os
import socket

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from daedl.serving.settings import Settings


class Patient(H11Protocol):
    """uvicorn's HTTP, which would wait forever for the head of a request that never ends."""

    head_seconds = 10.0  # chosen
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """From now on the clock ticks."""
        super().connection_made(transport)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Stop the clock once a head is complete, start it with the first byte of the next."""
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """There is nothing more to wait for."""
        super().connection_lost(exc)
        self._stop()

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._late is None:
            self._late = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def listen(host: str, port: int) -> socket.socket:
    """A socket at `host`, an address of this machine, and `port`, 0 for any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        # Python's own text has the address too; codes of names that aren't found are negative.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise OSError(
            error.errno,
            f"cannot listen at {host}, port {port}: {reason}; expected an address of this "
            "machine and a free port: choose another with --host or --port",
        ) from error


def address(listening: socket.socket) -> str:
    """Where a browser finds it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_local(listening: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback


def run(app: FastAPI, listening: socket.socket, settings: Settings) -> None:
    """Serve until a signal ends it; requests that are being answered are finished first."""
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(configuration(app, settings)).run([listening])


def configuration(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """How uvicorn runs an app: /metrics counts requests, so that no line is logged for each."""
    return uvicorn.Config(
        app,
        http=Patient,
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=math.ceil(settings.timeout),
    )
