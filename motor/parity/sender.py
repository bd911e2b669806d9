"""Send one request of the corpus and record the answer, byte for byte."""

from types import TracebackType
from typing import Self

import aiohttp

from motor.parity.cases import WireRequest
from motor.parity.comparison import Answer


class Sender:
    """Sends to one server; owns the connection pool between `__aenter__` and `__aexit__`."""

    def __init__(self, base_url: str, timeout_seconds: float) -> None:
        """Prepare a sender for the server at `base_url`; every request has `timeout_seconds` for its whole answer."""
        self._base_url = base_url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # vLLM closes idle connections after five seconds; a fresh one for each request can't meet that race.
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, skip_auto_headers=("Content-Type", "User-Agent")
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(self, request: WireRequest) -> Answer:
        """Return what the server answered; a transport fault is an answer with status 0 and the fault in words."""
        if self._session is None:
            raise RuntimeError("the sender is not open")
        try:
            async with self._session.request(
                request.method, self._base_url + request.path, data=request.body, headers=request.headers
            ) as response:
                body = await response.read()
                headers = response.headers
                return Answer(response.status, headers.get("Content-Type", ""), body, headers.get("x-motor-chain", ""))
        except (aiohttp.ClientError, TimeoutError) as fault:
            return Answer(0, "", f"{type(fault).__name__}: {fault}".encode())
