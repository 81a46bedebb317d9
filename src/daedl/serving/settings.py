"""What a server allows, and how much of everything."""

import math
import re
from dataclasses import dataclass, field

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Settings:
    """Limits of a server. All of them are chosen; memory grows with `max_requests` times `max_bytes`.

    Attributes:
        token: what requests must bear, as in "Authorization: Bearer ..."; None lets everybody in.
        max_bytes: of a request's body (8 MiB holds a photograph of 12 million pixels).
        max_pixels: of all images of a request together, before they are made smaller.
        max_images: of a request.
        max_requests: that are answered at a time; what comes on top is sent away with a 503.
        timeout: seconds that a request's body may take to arrive, and its answer to be found.
        window: predictions that rolling means are taken over.
        density_reference: mean density score of known images, to compare the rolling mean with; by
            default the one that the model file holds.
    """

    token: str | None = field(default=None, repr=False)
    max_bytes: int = 8 * MEBIBYTE
    max_pixels: int = 25_000_000
    max_images: int = 64
    max_requests: int = 64
    timeout: float = 30.0
    window: int = 1000
    density_reference: float | None = None

    def __post_init__(self) -> None:
        # What a header can carry, and browsers do carry, as it is.
        if self.token is not None and not re.fullmatch("[!-~]+", self.token):
            raise ValueError(
                "the token is empty or holds spaces or signs beyond ASCII; expected letters, digits and "
                "signs such as -._~+/=: choose another, or leave it out to let everybody in"
            )
        for name in ("max_bytes", "max_pixels", "max_images", "max_requests", "window"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; expected at least 1: raise it, or leave it out"
                )
        if not (self.timeout > 0 and math.isfinite(self.timeout)):
            raise ValueError(
                f"timeout is {self.timeout}; expected seconds above 0: raise it, or leave it out"
            )
