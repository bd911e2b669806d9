"""The client's side of one answer, as the pipeline sees it: push, don't yield."""

from typing import Protocol


class ResponseSink(Protocol):
    """Where an answer is written; implemented by `api`.

    `write` returns when the bytes are accepted for the client, so a slow client slows its writer down.
    """

    @property
    def has_started(self) -> bool:
        """Whether the status line has left, so that an error can no longer be an HTTP status."""

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send status and headers; at most once."""

    async def write(self, data: bytes) -> None:
        """Send a piece of the body."""
