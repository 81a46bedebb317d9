"""Configuration of the server: authentication, allowed hosts and limits."""

import re
from dataclasses import dataclass, field

from daedl.checks import Count, Positive, require_settings

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True)
class ServerConfig:
    """Limits of a server, all chosen. Memory grows with `max_connections` times `max_bytes`.

    Attributes:
        token: required bearer token ("Authorization: Bearer ..."); None disables authentication.
        allowed_hosts: accepted values of the Host header, without the port. "*.example.org" accepts all
            subdomains, "*" disables the check, which protects against DNS rebinding.
        max_bytes: size of a request body (8 MiB fit a photograph of 12 million pixels).
        max_pixels: pixels of all images of a request together, before they are resized. Requests with many
            pixels are decoded one at a time: 25 million take 200 MiB (400 MiB in WebP).
        max_images: images per request.
        max_requests: requests processed concurrently, after their bodies have arrived; others are rejected
            with status 503.
        max_connections: open connections. 128 stay below the lowest common limit of file descriptors,
            256, and twice `max_requests` leaves room for idle ones.
        timeout: seconds for a request body to arrive, and for its predictions to be computed.
        window: number of recent predictions that rolling means are computed over.
        density_reference: mean density score of in-distribution images, exported next to the rolling mean;
            defaults to the value in the model file.
    """

    token: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = LOCAL_HOSTS
    max_bytes: Count = 8 * 2**20
    max_pixels: Count = 25_000_000
    max_images: Count = 64
    max_requests: Count = 64
    max_connections: Count = 128
    timeout: Positive = 30.0
    window: Count = 1000
    density_reference: float | None = None

    def __post_init__(self) -> None:
        require_settings(self)
        # Printable ASCII is what both a header and a browser transmit unchanged.
        if self.token is not None and not re.fullmatch("[!-~]+", self.token):
            raise ValueError(
                "the token is empty or contains spaces or non-ASCII characters; expected printable ASCII: "
                "choose another one, or omit it to disable authentication"
            )
        for host in self.allowed_hosts:
            if not re.fullmatch(r"\*|(\*\.)?[\w.-]+|\[[\da-fA-F:.]+\]", host):
                raise ValueError(
                    f"the allowed host is {host!r}; expected a name or address without a port, such as "
                    "example.org, *.example.org, 192.0.2.1 or [::1], or * for all"
                )
