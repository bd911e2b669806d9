"""The connection under an exchange: ASGI can end a response, but not a connection whose client reads nothing."""

import socket
import struct
from collections.abc import Callable
from typing import cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_RESET = "motor.reset"
_NO_LINGER = struct.pack("ii", 1, 0)


class ResettableProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol, which tells the application how to reset the connection."""

    def on_message_begin(self) -> None:
        """Begin a request's scope."""
        super().on_message_begin()
        self.scope["extensions"] = {_RESET: {"call": self._reset}}

    def _reset(self) -> None:
        """Close at once; without lingering, so that the kernel drops what it has buffered too."""
        connection = self.transport.get_extra_info("socket")
        if connection is not None and not self.transport.is_closing():
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()


def reset_of(scope: Scope) -> Callable[[], None]:
    """Return what resets an exchange's connection; nothing does under another server."""
    extension = scope.get("extensions", {}).get(_RESET)
    return cast(Callable[[], None], extension["call"]) if extension is not None else lambda: None
