"""The metaserver where prefill and decode end in the same moment."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from motor.coordinator.domain.errors import EngineFailed
from motor.coordinator.domain.tokens import SemanticTokenIds
from motor.coordinator.engine.token_engine_client import TokenEngineClient
from motor.coordinator.render.models import TokenizedRequest
from motor.coordinator.router.topology import Attempt
from motor.coordinator.router.trigger import Metaserver, _Expected
from motor.coordinator.scheduling.scheduler import Scheduler
from motor.coordinator.telemetry.stages import StageClock


class FailingScheduler:
    """Fails each reservation when it is told to."""

    def __init__(self) -> None:
        self.fails = asyncio.Event()

    @asynccontextmanager
    async def reserve(self, *asked: object) -> AsyncIterator[Any]:
        await self.fails.wait()
        raise EngineFailed("prefill failed")
        yield


async def test_prefill_may_fail_as_its_decode_ends() -> None:
    scheduler = FailingScheduler()
    metaserver = Metaserver(cast(Scheduler, scheduler), cast(TokenEngineClient, None), "http://here")
    attempt = Attempt("id", "id", StageClock(time.perf_counter))
    request = TokenizedRequest(0, SemanticTokenIds((1,)), {"max_tokens": 1})
    async with asyncio.timeout(None) as scope:
        with metaserver.expecting(_Expected(attempt, request, scope)) as url:
            prefill = asyncio.create_task(metaserver.prefill(url.rsplit("/", 1)[1], {}))
            await asyncio.sleep(0)
            scheduler.fails.set()
    with pytest.raises(EngineFailed):
        await prefill
    assert metaserver.num_expected == 0
