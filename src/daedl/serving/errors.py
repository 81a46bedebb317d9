"""A request that can't be answered, with the status and the reason that its sender is told."""

from collections.abc import Mapping


class RequestError(Exception):
    """Ends a request with `status`, a 4xx or 5xx, and `reason`."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers
