"""Shared by the simulators' tests: the tiny model, its answers, and an HTTP client."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from motor.simulator import ModelFolder, ScriptedAnswers

TINY_MODEL = Path(__file__).parents[3] / "models" / "tiny-qwen3"


@pytest.fixture(scope="session")
def model() -> ModelFolder:
    """The tiny model's tokenizer and template."""
    return ModelFolder(TINY_MODEL)


@pytest.fixture(scope="session")
def answers(model: ModelFolder) -> ScriptedAnswers:
    """The tiny model's known answers."""
    return ScriptedAnswers.from_expected(TINY_MODEL / "expected.json", model)


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that gives up on a hanging test."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session
