"""A stop string that lies across a relay's cut ends the answer as if one engine had made all of it."""

from typing import Any

import pytest

from motor.simulator import FaultKind
from tests.deployment import CHAT, QUIET, deployment, user
from tests.relayed import TOOLS, seen_by_client, streamed

RELAY = {"retry_reserve": 10_000}
FRUIT = user("Name a fruit.", **QUIET)  # Apple, banana and cherry are fruit. END of the list.
REQUESTS: dict[str, dict[str, Any]] = {
    "words": {**FRUIT, "stop": ["fruit. END of"]},
    "the earliest of several": {**FRUIT, "stop": ["fruit. END of the", "are fruit. EN", " fruit. END"]},
    "its beginning comes twice": {**FRUIT, "stop": ["and cherry are it", "a and cherry are f"]},
    "not before min_tokens": {**FRUIT, "stop": ["ana and"], "min_tokens": 20},
    "half a token's text": {**FRUIT, "stop": ["na and cherry are fr"]},
    "multi-byte": {**user("Show me emoji.", **QUIET), "stop": ["👩‍👧 flag 🇫🇷"]},
    "reasoning": {**user("Why is the sky blue?"), "stop": ["waves scatter more 💡"]},
    "arguments": {**user("What is the weather in Paris?", tools=TOOLS), "stop": ['"city": "Paris']},
}


@pytest.mark.parametrize("includes", [False, True], ids=["cut", "included"])
@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_stop_string_across_the_cut(name: str, chunk: int, includes: bool) -> None:
    body = {**REQUESTS[name], "include_stop_str_in_output": includes}
    async with deployment(num_engines=2, engine={"tokens_per_chunk": (chunk,)}, relay=RELAY) as d:
        expected = seen_by_client(await streamed(d, body))
        for after in range(1, 1 + expected["usage"]["completion_tokens"] // chunk):
            for engine in d.engines:
                engine.faults.set(FaultKind.DIE, endpoint="generate", after=after, times=1)
            assert seen_by_client(await streamed(d, body)) == expected, f"killed after {after}"
            for engine in d.engines:
                engine.faults.clear()
            await d.check_nothing_left()


@pytest.mark.parametrize(("includes", "text"), [(False, "Apple, bana"), (True, "Apple, banana and cherry are fr")])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_text_after_a_stop_string_in_its_last_token_is_cut(*, stream: bool, includes: bool, text: str) -> None:
    """`fr` ends inside the token ` fruit`: vLLM cuts at the string's end where it belongs to the text."""
    body = {**REQUESTS["half a token's text"], "include_stop_str_in_output": includes, "stream": stream}
    async with deployment(engine={"tokens_per_chunk": (8,)}) as d:
        answer = await d.post(CHAT, body)
        assert answer.text() == text
