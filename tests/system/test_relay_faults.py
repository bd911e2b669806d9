"""What counts as an engine's fault, what can't be continued, and what a continued answer still tells exactly."""

from typing import Any

import pytest

from motor.simulator import FaultKind
from tests.deployment import CHAT, COMPLETIONS, Answer, Deployment, deployment
from tests.relayed import REQUESTS, TOOLS, seen_by_client, streamed

RELAY = {"retry_reserve": 10_000}
COMPLETION = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}


def break_once(d: Deployment, kind: FaultKind, after: int) -> None:
    """Let the next stream break, whichever engine has it."""
    for engine in d.engines:
        engine.faults.set(kind, endpoint="generate", after=after, times=1)


def check_clean_error(answer: Answer, reason: str) -> None:
    """The stream has text, then one error that says why it doesn't go on, then `[DONE]`."""
    assert answer.status == 200
    assert any(event.get("choices") for event in answer.events[:-2])
    assert reason in answer.events[-2]["error"]["message"]
    assert answer.events[-1] == "[DONE]"


async def test_a_stream_that_stalls_is_relayed_and_its_engine_blamed() -> None:
    timeouts = {"inter_token_seconds": 0.15}
    async with deployment(num_engines=2, relay=RELAY, timeouts=timeouts) as d:
        expected = seen_by_client(await streamed(d, REQUESTS["text"]))
        stalls = d.engines[0].faults.set(FaultKind.STALL, endpoint="generate", after=3)
        for _ in range(8):
            assert seen_by_client(await streamed(d, REQUESTS["text"])) == expected
            await d.check_nothing_left()
        assert stalls.num_hits == 3  # then the breaker is open


async def test_an_engine_that_aborts_whole_answers_is_blamed() -> None:
    async with deployment(num_engines=2, relay=RELAY) as d:
        whole = await d.post(CHAT, REQUESTS["text"])
        aborts = d.engines[0].faults.set(FaultKind.ABORT, endpoint="generate", after=3)
        for _ in range(8):
            assert (await d.post(CHAT, REQUESTS["text"])).json["choices"] == whole.json["choices"]
        assert aborts.num_hits == 3
        await d.check_nothing_left()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_more_recomputes_than_allowed_end_in_an_error(stream: bool) -> None:
    async with deployment(relay={"max_recomputes": 2}) as d:
        d.engines[0].faults.set(FaultKind.FINISH, endpoint="generate", after=3)
        answer = await d.post(CHAT, {**REQUESTS["text"], "stream": stream})
        error = answer.events[-2]["error"] if stream else answer.json["error"]
        assert (error["code"], d.num_generates) == (503, 3)
        d.engines[0].faults.clear()
        assert (await d.post(CHAT, REQUESTS["text"])).status == 200  # nobody was blamed
        await d.check_nothing_left()


async def test_a_recomputed_whole_answer_ends_at_a_stop_string_across_the_cut() -> None:
    body = {**COMPLETION, "stop": ["robot who"]}
    async with deployment(relay={"max_recomputes": 1}) as d:
        whole = (await d.post(COMPLETIONS, body)).json
        assert whole["choices"][0]["stop_reason"] == "robot who"
        for after in range(1, whole["usage"]["completion_tokens"]):
            d.engines[0].faults.set(FaultKind.FINISH, endpoint="generate", after=after, times=1)
            again = (await d.post(COMPLETIONS, body)).json
            assert (again["choices"], again["usage"]) == (whole["choices"], whole["usage"])
        await d.check_nothing_left()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n": 2, "temperature": 0.5}, "several choices"),
        ({"response_format": {"type": "json_object"}}, "structured output"),
        ({"tools": TOOLS, "tool_choice": "required"}, "structured output"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_time"}}}, "structured output"),
    ],
    ids=["choices", "json", "any tool", "named tool"],
)
async def test_what_could_not_be_right_is_refused_after_output(fields: dict[str, Any], reason: str) -> None:
    """Before output it is retried as a whole: the first kill goes unnoticed."""
    async with deployment(num_engines=3, relay=RELAY) as d:
        body = {**REQUESTS["text"], **fields}
        break_once(d, FaultKind.REFUSE, 0)
        d.engines[2].faults.clear()
        answer = await streamed(d, body)
        assert answer.events[-1] == "[DONE]"
        assert not any("error" in event for event in answer.events[:-1])
        for engine in d.engines:
            engine.faults.clear()
        break_once(d, FaultKind.DIE, 8)
        check_clean_error(await streamed(d, body), reason)
        await d.check_nothing_left()


@pytest.mark.parametrize("allow", [True, False])
@pytest.mark.parametrize(
    "fields", [{"temperature": 1.0, "seed": 3}, {"presence_penalty": 1.0}], ids=["seed", "penalty"]
)
async def test_approximations_are_a_switch(fields: dict[str, Any], allow: bool) -> None:
    async with deployment(num_engines=2, relay={**RELAY, "allow_approximate": allow}) as d:
        body = {**REQUESTS["text"], **fields}
        expected = seen_by_client(await streamed(d, body))
        break_once(d, FaultKind.DIE, 5)
        answer = await streamed(d, body)
        if allow:
            assert seen_by_client(answer) == expected
        else:
            check_clean_error(answer, "approximate")
        await d.check_nothing_left()


def logprobs_of(answer: Answer, api: str) -> list[Any]:
    """Return all positions of a streamed answer: chat's entries, or a completion's parallel lists joined."""
    found: list[Any] = []
    for choice in (choice for event in answer.events[:-1] for choice in event["choices"]):
        told = choice.get("logprobs")
        if told and api == CHAT:
            found += told["content"]
        elif told:
            keys = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
            found += zip(*(told[key] for key in keys), strict=True)
    return found


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (CHAT, {**REQUESTS["multi-byte"], "logprobs": True, "top_logprobs": 2}),
        (COMPLETIONS, {**COMPLETION, "logprobs": 2}),
    ],
    ids=["chat", "completion"],
)
async def test_logprobs_go_on_exactly(api: str, body: dict[str, Any]) -> None:
    async with deployment(num_engines=2, relay=RELAY) as d:
        undisturbed = await d.post(api, {**body, "stream": True})
        expected = logprobs_of(undisturbed, api)
        assert len(expected) > 5
        for after in range(0, len(expected), 2):
            break_once(d, FaultKind.DIE, after)
            answer = await d.post(api, {**body, "stream": True})
            assert (logprobs_of(answer, api), answer.text()) == (expected, undisturbed.text()), after
        await d.check_nothing_left()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_committed_output_is_no_cached_prompt(stream: bool) -> None:
    """The engine that goes on has had the same prompt and output before, and tells that it has both."""
    async with deployment(engine={"cache_blocks": 1000, "block_size": 1}, relay=RELAY) as d:
        for _ in range(2):
            d.engines[0].faults.set(FaultKind.FINISH, endpoint="generate", after=6, times=1)
            answer = await (streamed(d, REQUESTS["text"]) if stream else d.post(CHAT, REQUESTS["text"]))
        usage = answer.events[-2]["usage"] if stream else answer.json["usage"]
        num_prompt, num_cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        assert num_prompt - 1 <= num_cached <= num_prompt
