"""Readiness of a child, by HTTP."""

import asyncio
from collections.abc import Sequence

import aiohttp

POLL_SECONDS = 0.1
ANSWER_SECONDS = 5.0


async def poll_until_ready(base_url: str, paths: Sequence[str]) -> None:
    """Return once every path has answered 200; poll for ever otherwise.

    Each path is asked until it has answered, in order: `/health` of an engine says that the server runs, `/v1/models`
    that it serves the model.
    """
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for path in paths:
            while True:
                if await _answers(session, base_url + path):
                    break
                await asyncio.sleep(POLL_SECONDS)


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
