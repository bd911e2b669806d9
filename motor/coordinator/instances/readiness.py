"""Whether a request could be served now; asked by `GET /ready`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.transport.faults import TransportFault
from motor.coordinator.transport.http_pool import HttpPool

PROBE_SECONDS = 1.0
REUSE_SECONDS = 1.0
"""How long an answer is given again, so that frequent questions don't become load on the engines."""


class ReadinessProbe:
    """Asks peers for their health; mutable: the last answer and its time.

    Args:
        registry: The instances.
        pool: The HTTP client.
        is_render_healthy: Asks the sidecar; `None` if Render is off.
    """

    def __init__(
        self, registry: InstanceRegistry, pool: HttpPool, is_render_healthy: Callable[[], Awaitable[bool]] | None
    ) -> None:
        self._registry = registry
        self._pool = pool
        self._is_render_healthy = is_render_healthy
        self._reasons: Sequence[str] = ()
        self._asked_at = float("-inf")

    async def reasons(self) -> Sequence[str]:
        """Return why no request could be served; empty when ready."""
        now = asyncio.get_running_loop().time()
        if now - self._asked_at >= REUSE_SECONDS:
            self._reasons = await self._ask()
            self._asked_at = now
        return self._reasons

    async def _ask(self) -> list[str]:
        reasons = []
        instances = self._registry.all()
        if not instances:
            reasons.append("no instance is configured")
        elif not any(await asyncio.gather(*(self._is_healthy(instance.url) for instance in instances))):
            reasons.append("no instance answers its health check")
        if self._is_render_healthy is not None and not await self._is_render_healthy():
            reasons.append("the Render sidecar does not answer its health check")
        return reasons

    async def _is_healthy(self, url: str) -> bool:
        try:
            answer = await self._pool.request("GET", url + "/health", timeout_seconds=PROBE_SECONDS)
        except TransportFault:
            return False
        return answer.status == 200
