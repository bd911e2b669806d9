"""The composition root: runs what `assembly` makes of the settings, and its servers."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager

from motor.coordinator.api.server import ServerLimits, listen, run_applications
from motor.coordinator.assembly.coordinator import Coordinator, Feed, build
from motor.coordinator.config import Settings
from motor.coordinator.telemetry.log import get_logger
from motor.coordinator.telemetry.metrics import Metrics
from motor.coordinator.transport.http_pool import HttpPool

_log = get_logger(__name__)

FEED_SECONDS = 5.0
"""How often peers are asked what they can do. No vLLM starts faster: one that is replaced is missed at least once."""
RECHECK_SECONDS = 0.5
"""How often while any of them is missed, so that another version is known as soon as it serves."""


@asynccontextmanager
async def coordinator(settings: Settings) -> AsyncIterator[Coordinator]:
    """Build everything inside the running loop; leaving the block closes every connection."""
    metrics = Metrics()
    pool = HttpPool(
        connect_seconds=settings.timeouts.connect_seconds,
        on_stale_retry=lambda origin: metrics.connection_retried(),
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            built = build(settings, metrics, pool)
            background = [tasks.create_task(_repeat(feed)) for feed in built.feeds]
            background += [tasks.create_task(service()) for service in built.services]
            yield built
            for task in background:
                task.cancel()
    finally:
        await pool.close()


async def _repeat(feed: Feed) -> None:
    while True:
        try:
            have_all_answered = await feed()
        except Exception as error:  # noqa: BLE001 - whatever a peer answers to a background question, serving goes on
            _log.exception("feed.failed", error_type=type(error).__name__)
            have_all_answered = True
        await asyncio.sleep(FEED_SECONDS if have_all_answered else RECHECK_SECONDS)


async def serve(settings: Settings) -> None:
    """Run the public and the management server until SIGTERM or SIGINT, then let requests finish.

    Raises:
        StartError: A port can't be used.
    """
    with ExitStack() as stack:
        listeners = [stack.enter_context(listen(host, port)) for host, port in _addresses(settings)]
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        _log.info(
            "coordinator.starting",
            addresses=[f"{host}:{port}" for host, port in _addresses(settings)],
            deploy_mode=settings.deploy_mode,
            render=settings.render_config.enable,
            num_instances=len(settings.instances),
        )
        async with coordinator(settings) as built:
            await run_servers(built, settings, listeners, stop)
        _log.info("coordinator.stopped")


def _addresses(settings: Settings) -> list[tuple[str, int]]:
    """Return where to listen: for clients, for operators, and with Trigger for decode engines."""
    addresses = [(settings.api.host, settings.api.port), (settings.management.host, settings.management.port)]
    if settings.deploy_mode == "trigger":
        addresses.append((settings.trigger.host, settings.trigger.port))
    return addresses


async def run_servers(
    built: Coordinator, settings: Settings, listeners: Sequence[socket.socket], stop: asyncio.Event
) -> None:
    """Serve every application on its listener until `stop` is set, then let requests finish within the grace time."""
    limits = ServerLimits(settings.api.keep_alive_timeout_seconds, settings.api.shutdown_grace_seconds)
    await run_applications(list(zip(built.applications, listeners, strict=True)), limits, stop)
