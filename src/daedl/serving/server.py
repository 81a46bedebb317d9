"""Sockets and uvicorn: connections are bounded in number, and request heads in time."""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import math
import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from PIL import Image
from uvicorn.protocols.http.h11_impl import H11Protocol

from daedl.serving.config import LOCAL_HOSTS, ServerConfig

logger = logging.getLogger("uvicorn.error")

# Connections waiting in the kernel's queue (chosen: uvicorn's default).
BACKLOG = 2048
# Connections accepted per turn of the event loop. Excess ones are closed some turns later (chosen: with
# the default of `max_connections` a burst stays below 256 file descriptors, and no connection is closed
# before its first data is read).
MAX_ACCEPT = 32
# Seconds between two log lines about exhausted file descriptors (chosen).
LOG_INTERVAL = 60.0


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, with timeouts for heads and for clients that don't read, and a limit.

    By default uvicorn waits for a request head without limit, closes a connection only when its client has
    received everything, and rejects all requests if there are too many connections. Here the connection
    that has waited longest for its client is closed instead, so that idle connections can't make the
    server unavailable.
    """

    # For a head, for the rest of a response after closing, and for paused writing to resume (chosen).
    client_seconds = 10.0
    _timer: asyncio.TimerHandle
    _write_timer: asyncio.TimerHandle | None = None
    _waiting_since: float

    def __init__(self, *arguments: Any, max_connections: int, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._max_connections = max_connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register the connection, and close one if there are too many."""
        super().connection_made(transport)
        self._start_waiting()
        if len(self.connections) > self._max_connections:
            every = (each for each in self.connections if isinstance(each, LimitedProtocol))
            idle = [each for each in every if each._is_idle()]  # at least this one
            min(idle, key=LimitedProtocol._rank)._abort()

    def send_400_response(self, msg: str) -> None:
        """Reject an invalid request; the response of the app, which may run already, is discarded."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        super().send_400_response(msg)
        self._restart_timer()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to receive the last response."""
        super().on_response_complete()
        self._timer.cancel()
        self._start_waiting()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.client_seconds, self._abort)

    def resume_writing(self) -> None:
        """Continue to write."""
        self._cancel_write_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection."""
        self._timer.cancel()
        self._cancel_write_timer()
        super().connection_lost(exc)

    def _start_waiting(self) -> None:
        self._waiting_since = self.loop.time()
        self._timer = self.loop.call_later(self.client_seconds, self._check)

    def _restart_timer(self) -> None:
        self._timer.cancel()
        self._timer = self.loop.call_later(self.client_seconds, self._check)

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()

    def _check(self) -> None:
        """Close a connection without a complete head; abort one that uvicorn or this method closed before."""
        if self.transport.is_closing():
            self._abort()
            return
        if self.conn.their_state is h11.IDLE:  # until a request head is complete
            self.transport.close()
        self._restart_timer()

    def _abort(self) -> None:
        """Discard what the client has not received; `transport.close` would wait for it without limit."""
        self.connections.discard(self)  # at once, so that it is not evicted again before it is lost
        self.transport.abort()

    def _is_idle(self) -> bool:
        """Whether the server waits for the client: for a request, or to receive a response."""
        cycle = self.cycle
        waits = cycle is None or cycle.more_body or cycle.response_started
        return waits or self.flow.write_paused or self.transport.is_closing()

    def _rank(self) -> tuple[bool, float]:
        """Closing connections are evicted first, then those that have waited longest."""
        return not self.transport.is_closing(), self._waiting_since


class LimitedServer(uvicorn.Server):
    """uvicorn with the limits of `config`.

    Requests are counted by /metrics and not logged, and neither are invalid ones: clients can't fill the
    log.
    """

    def __init__(self, app: FastAPI, config: ServerConfig) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(LimitedProtocol, max_connections=config.max_connections),  # type: ignore[arg-type]
                ws="none",
                access_log=False,
                log_level="error",
                server_header=False,
                backlog=MAX_ACCEPT,
                timeout_graceful_shutdown=math.ceil(config.timeout),
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting connections."""
        asyncio.get_running_loop().set_exception_handler(descriptor_error_handler())
        await super().startup(sockets)
        for each in sockets or []:
            each.listen(BACKLOG)  # uvicorn sets the number per turn and the queue to the same value


def hosts_for(address: str, more: Sequence[str]) -> tuple[str, ...]:
    """Return the accepted values of the Host header for a server at `address`, and `more`."""
    bound = f"[{address}]" if ":" in address else address
    return tuple(dict.fromkeys((*LOCAL_HOSTS, bound, *more)))


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at `host`, an address of this machine, and `port`, 0 for any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        # Python's own text repeats the address; codes of name resolution are negative.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise OSError(
            error.errno,
            f"cannot listen at {host}, port {port}: {reason}; expected an address of this "
            "machine and a free port: choose another with --host or --port",
        ) from error


def url(listening: socket.socket) -> str:
    """Return the URL of the server."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_local(listening: socket.socket) -> bool:
    """Whether only this machine can connect."""
    return ipaddress.ip_address(listening.getsockname()[0]).is_loopback


def run(app: FastAPI, listening: socket.socket, config: ServerConfig) -> None:
    """Serve until SIGINT or SIGTERM; requests in progress are completed first."""
    with contextlib.suppress(KeyboardInterrupt), _only_python_logs(), warnings.catch_warnings():
        # Clients cause these warnings with large or damaged images and forms, which are answered.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module="PIL")
        for name in ("PIL", "python_multipart"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        LimitedServer(app, config).run([listening])


@contextlib.contextmanager
def _only_python_logs() -> Iterator[None]:
    """Discards what C libraries write to stderr: libtiff writes lines about each damaged image."""
    if sys.stderr is None:  # closed by the parent process
        yield
        return
    copy = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    with copy, open(os.devnull, "wb") as null, contextlib.redirect_stderr(copy):
        os.dup2(null.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(copy.fileno(), 2)


def descriptor_error_handler() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return a handler of event loop errors that logs exhausted file descriptors in one line.

    asyncio's handler would log a traceback for each attempt to accept a connection.
    """
    logged = -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal logged
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
        elif loop.time() - logged > LOG_INTERVAL:
            logged = loop.time()
            logger.error(
                "cannot accept a connection: %s; expected free file descriptors: raise `ulimit -n`, or "
                "lower --max-connections",
                error.strerror,
            )

    return handle
