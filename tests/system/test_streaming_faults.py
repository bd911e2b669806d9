"""What a client is told when Derender or an engine fails: a status before the first event, an error event after it."""

from typing import Any

import pytest

from motor.simulator import FaultKind
from tests.deployment import CHAT, COMPLETIONS, QUIET, Answer, Deployment, deployment, user
from tests.event_reader import DONE, EventReader, open_stream
from tests.step_clock import StepClock

PARIS = user("What is the capital of France?", **QUIET)
NO_RELAY = {"max_attempts": 1}
SOON = {"timeout_ms": 300}
DERENDER_FAULTS = pytest.mark.parametrize(
    ("kind", "sent", "told"),
    [
        (FaultKind.STATUS, 404, 501),
        (FaultKind.STATUS, 501, 501),
        (FaultKind.STATUS, 400, 400),
        (FaultKind.STATUS, 422, 422),
        (FaultKind.STATUS, 500, 502),
        (FaultKind.STATUS, 503, 502),
        (FaultKind.INVALID, 200, 502),
        (FaultKind.REFUSE, 0, 502),
        (FaultKind.HANG, 0, 504),
    ],
)
ENGINE_FAULTS = pytest.mark.parametrize(
    ("kind", "told"),
    [
        (FaultKind.MALFORMED, 502),
        (FaultKind.EOF, 502),
        (FaultKind.ERROR_EVENT, 502),
        (FaultKind.DIE, 502),
        (FaultKind.ABORT, 502),
    ],
)


def break_derender(d: Deployment, kind: FaultKind, status: int, times: int | None = None) -> Any:
    """Let derender calls fail from now on."""
    assert d.render is not None
    return d.render.faults.set(kind, endpoint="derender", status=status, times=times)


async def ends_with_error(stream: EventReader, status: int) -> None:
    """The stream goes on with an error event and ends with `[DONE]`."""
    *shown, failure, done = await stream.rest()
    assert failure["error"]["code"] == status, failure
    assert done == DONE
    assert all("error" not in event for event in shown)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@DERENDER_FAULTS
async def test_derender_fails_before_the_first_event(kind: FaultKind, sent: int, told: int, stream: bool) -> None:
    async with deployment(render_config=SOON) as d:
        break_derender(d, kind, sent)
        answer = await d.post(CHAT, {**PARIS, "stream": stream})
        assert (answer.status, answer.json["error"]["code"]) == (told, told)
        assert answer.headers["content-type"] == "application/json"
        assert d.num_generates == 1  # inference is not repeated
        await d.check_nothing_left()


@DERENDER_FAULTS
async def test_derender_fails_in_mid_stream(kind: FaultKind, sent: int, told: int) -> None:
    clock = StepClock()
    async with deployment(engine={"clock": clock}, render_config=SOON) as d:
        async with open_stream(d, CHAT, PARIS) as stream:
            await stream.take(2)
            break_derender(d, kind, sent)
            clock.step()
            await ends_with_error(stream, told)
        assert d.num_generates == 1
        await d.check_nothing_left()
        assert d.engines[0].stats.num_disconnected == 1


async def test_a_derender_timeout_repeats_the_identical_call_once() -> None:
    clock = StepClock()
    async with deployment(engine={"clock": clock}, render_config=SOON) as d:
        async with open_stream(d, CHAT, PARIS) as stream:
            await stream.take(2)
            fault = break_derender(d, FaultKind.HANG, 0, times=1)
            clock.step()
            event = await stream.next()
            assert event["choices"][0]["delta"] == {"content": " capital"}
            assert fault.num_hits == 1
            fault = break_derender(d, FaultKind.HANG, 0, times=2)  # the repeated call too: once means once
            clock.step()
            await ends_with_error(stream, 504)
            assert fault.num_hits == 2
        assert d.num_generates == 1
        await d.check_nothing_left()


async def test_a_completion_survives_a_derender_timeout_unchanged() -> None:
    async with deployment(render_config=SOON) as d:
        body = {"model": "tiny", "prompt": "Emoji test:", "max_tokens": 40, "temperature": 0, "stream": True}
        break_derender(d, FaultKind.HANG, 0, times=1)
        assert (await d.post(COMPLETIONS, body)).text() == " 🎉🚀 你好 done."
        await d.check_nothing_left()


@ENGINE_FAULTS
async def test_an_engine_fails_before_the_first_event(kind: FaultKind, told: int) -> None:
    async with deployment(relay=NO_RELAY) as d:
        d.engines[0].faults.set(kind, endpoint="generate", after=0)
        answer = await d.post(CHAT, {**PARIS, "stream": True})
        assert (answer.status, answer.json["error"]["code"]) == (told, told)
        await d.check_nothing_left()


@ENGINE_FAULTS
async def test_an_engine_fails_in_mid_stream(kind: FaultKind, told: int) -> None:
    async with deployment(relay=NO_RELAY) as d:
        d.engines[0].faults.set(kind, endpoint="generate", after=3)
        async with open_stream(d, CHAT, PARIS) as stream:
            assert stream.status == 200
            *shown, failure, done = await stream.rest()
        # Everything that came before the fault is shown: three tokens, in one event or in several.
        text = "".join(event["choices"][0]["delta"].get("content") or "" for event in shown)
        assert text == "The capital of"
        assert (failure["error"]["code"], done) == (told, DONE)
        assert d.num_generates == 1
        await d.check_nothing_left()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_engine_that_refuses_is_a_502(stream: bool) -> None:
    async with deployment(relay=NO_RELAY) as d:
        d.engines[0].faults.set(FaultKind.REFUSE, endpoint="generate")
        answer = await d.post(CHAT, {**PARIS, "stream": stream})
        assert (answer.status, answer.json["error"]["type"]) == (502, "BadGatewayError")
        await d.check_nothing_left()


async def test_an_engine_that_is_gone_is_a_502() -> None:
    async with deployment(relay=NO_RELAY) as d:
        await d.engines[0].crash()
        answer = await d.post(CHAT, {**PARIS, "stream": True})
        assert (answer.status, answer.json["error"]["message"]) == (502, "the engine can't be reached")
        await d.check_nothing_left()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_engine_that_hangs_before_its_first_chunk_is_a_504(stream: bool) -> None:
    limits = {"first_token_seconds": 0.3, "request_seconds": 0.3}
    async with deployment(relay=NO_RELAY, timeouts=limits) as d:
        d.engines[0].faults.set(FaultKind.HANG, endpoint="generate")
        answer = await d.post(CHAT, {**PARIS, "stream": stream})
        assert (answer.status, answer.json["error"]["type"]) == (504, "GatewayTimeoutError")
        await d.check_nothing_left()


async def test_an_engine_that_falls_silent_is_a_504_event() -> None:
    async with deployment(engine={"clock": StepClock()}, relay=NO_RELAY, timeouts={"inter_token_seconds": 0.3}) as d:
        async with open_stream(d, CHAT, PARIS) as stream:
            await ends_with_error(stream, 504)
        await d.check_nothing_left()


async def test_an_error_is_openai_shaped_wherever_it_is_told() -> None:
    async with deployment(relay=NO_RELAY) as d:
        d.engines[0].faults.set(FaultKind.ERROR_EVENT, endpoint="generate", after=2)
        streamed: Answer = await d.post(CHAT, {**PARIS, "stream": True})
        error = streamed.events[-2]["error"]
        assert error == {"message": "Internal server error", "type": "BadGatewayError", "param": None, "code": 502}
        whole = await d.post(CHAT, PARIS)
        assert (whole.status, whole.json) == (502, {"error": error})
        assert d.num_generates == 2
        await d.check_nothing_left()
