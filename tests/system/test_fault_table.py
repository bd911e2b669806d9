"""The RFC's fault table (故障处理), a row per line and per status of each peer: what clients are told, what it costs.

Each row is tried whole and streamed, before anything has been shown; `test_streaming_faults` has what comes later.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from motor.simulator import FaultKind
from tests.deployment import CHAT, QUIET, Deployment, deployment, user
from tests.event_reader import open_stream

HELLO, TEXT = user("Say hello.", **QUIET), "Hello there! I am a tiny test model."
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
NO_ROUTE = {"detail": "Not Found"}
NO_MODEL = {
    "error": {"message": "The model `x` does not exist.", "type": "NotFoundError", "param": "model", "code": 404}
}
WRONG_IDS = {"token_ids": "text", "sampling_params": {}}
NO_IDS = {"token_ids": [], "sampling_params": {}}


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        kind: What the peer does.
        status: With which status.
        body: With which body; vLLM's error object by default.
        told: The client's status.
        error_type: The type of the error that the client is told; none if the request succeeds.
        reason: Why the token chain was left, if it was.
    """

    kind: FaultKind
    status: int = 0
    body: Any = None
    told: int = 200
    error_type: str = ""
    reason: str = ""

    def __str__(self) -> str:
        what = str(self.status) if self.kind is FaultKind.STATUS else self.kind.value
        return f"{what} {'' if self.body is None else self.body}->{self.reason or self.told}"[:60]


def status(sent: int, told: int = 200, error_type: str = "", reason: str = "", body: Any = None) -> Row:
    """Return a row of a peer that answers with a status."""
    return Row(FaultKind.STATUS, sent, body, told, error_type, reason)


RENDER = [
    Row(FaultKind.REFUSE, reason="unreachable"),
    Row(FaultKind.HANG, reason="timeout"),
    Row(FaultKind.INVALID, reason="malformed"),
    status(200, reason="malformed", body=WRONG_IDS),
    status(200, reason="malformed", body=NO_IDS),
    status(200, reason="malformed", body=[1]),
    status(401, reason="failed", body={"error": "Unauthorized"}),
    status(403, reason="unsupported"),
    status(404, reason="unsupported", body=NO_ROUTE),
    status(405, reason="unsupported", body={"detail": "Method Not Allowed"}),
    status(501, reason="unsupported"),
    status(500, reason="failed"),
    status(502, reason="failed", body={}),
    status(503, reason="failed", body={"error": "The model is currently scaling."}),
    status(400, 400, "BadRequestError"),
    status(422, 422, "InternalServerError"),
    status(404, 404, "NotFoundError", body=NO_MODEL),
]
GENERATE = [
    status(403, reason="token_only_unsupported"),
    status(404, reason="token_only_unsupported", body=NO_ROUTE),
    status(405, reason="token_only_unsupported", body={"detail": "Method Not Allowed"}),
    status(501, reason="token_only_unsupported"),
    status(400, 400, "BadRequestError"),
    status(422, 422, "InternalServerError"),
    status(404, 404, "NotFoundError", body=NO_MODEL),
    status(429, 503, "ServiceUnavailableError"),
    status(503, 503, "ServiceUnavailableError"),
    status(500, 502, "BadGatewayError"),
    status(502, 502, "BadGatewayError", body={}),
    Row(FaultKind.REFUSE, told=502, error_type="BadGatewayError"),
    Row(FaultKind.HANG, told=504, error_type="GatewayTimeoutError"),
]
DERENDER = [
    status(400, 400, "BadRequestError"),
    status(422, 422, "BadRequestError"),
    status(403, 501, "NotImplementedError"),
    status(404, 501, "NotImplementedError", body=NO_ROUTE),
    status(501, 501, "NotImplementedError"),
    status(500, 502, "BadGatewayError"),
    status(503, 502, "BadGatewayError", body={"error": "The model is currently scaling."}),
    Row(FaultKind.INVALID, told=502, error_type="BadGatewayError"),
    Row(FaultKind.REFUSE, told=502, error_type="BadGatewayError"),
    Row(FaultKind.HANG, told=504, error_type="GatewayTimeoutError"),
]
TWICE: Mapping[str, Any] = {"relay": {"max_attempts": 2}}
SOON: Mapping[str, Any] = {
    **TWICE,
    "render_config": {"timeout_ms": 300},
    "timeouts": {"first_token_seconds": 0.5, "request_seconds": 0.5},
}


def settings(row: Row) -> Mapping[str, Any]:
    """Return settings in which a row comes soon, and nothing else is taken for a timeout on a busy machine."""
    return SOON if row.kind is FaultKind.HANG else TWICE


@dataclass
class Told:
    """What came of one request."""

    status: int
    error_type: str
    text: str
    chain: str
    num_generates: int
    num_natives: int
    metrics: str = field(repr=False)


async def ask(d: Deployment, stream: bool) -> Told:
    """Send the request, and tell what came of it."""
    generates, natives = d.num_generates, num_natives(d)
    answer = await d.post(CHAT, {**HELLO, "stream": stream})
    is_good = answer.status == 200
    if not is_good:
        error = answer.json["error"]
        assert error["code"] == answer.status
        for secret in (*(engine.url for engine in d.engines), d.render.url if d.render else "", "Traceback"):
            assert secret.removeprefix("http://") not in error["message"]
    metrics = (await d.get(d.management_url + "/metrics")).body.decode()
    return Told(
        answer.status,
        "" if is_good else answer.json["error"]["type"],
        answer.text() if is_good else "",
        answer.headers.get("x-motor-chain", "none"),
        d.num_generates - generates,
        num_natives(d) - natives,
        metrics,
    )


def num_natives(d: Deployment) -> int:
    """Chats that engines have served by themselves."""
    return sum(engine.stats.requests["chat"] for engine in d.engines)


@STREAMS
@pytest.mark.parametrize("row", RENDER, ids=str)
async def test_render(row: Row, stream: bool) -> None:
    async with deployment(**settings(row)) as d:
        assert d.render is not None
        d.render.faults.set(row.kind, endpoint="render", status=row.status, body=row.body)
        told = await ask(d, stream)
        assert (told.status, told.error_type) == (row.told, row.error_type)
        assert told.num_generates == 0
        if row.reason:
            assert (told.text, told.chain, told.num_natives) == (TEXT, "native", 1)
            assert f'motor_render_fallback_total{{reason="{row.reason}"}} 1.0' in told.metrics
            assert 'motor_fallback_tokenizer_total{source="local"} 1.0' in told.metrics
        else:  # its judgement stands: nobody else is asked
            assert (told.chain, told.num_natives) == ("none", 0)
            assert "motor_render_fallback_total{" not in told.metrics
            assert "motor_fallback_tokenizer_total{" not in told.metrics
        await d.check_nothing_left()


def attempts_of(row: Row) -> tuple[int, ...]:
    """Return how many generate requests a row may cost, with two attempts allowed."""
    if row.kind is FaultKind.REFUSE:
        return (2, 3, 4)  # a reused connection may have been closed before: such a request is sent once more
    if row.kind is FaultKind.HANG:
        return (1,)  # the request's time is over
    return (2,) if row.told >= 500 else (1,)


@STREAMS
@pytest.mark.parametrize("row", GENERATE, ids=str)
async def test_generate(row: Row, stream: bool) -> None:
    async with deployment(num_engines=2, **settings(row)) as d:
        for engine in d.engines:
            engine.faults.set(row.kind, endpoint="generate", status=row.status, body=row.body)
        told = await ask(d, stream)
        assert (told.status, told.error_type) == (row.told, row.error_type)
        assert told.num_generates in attempts_of(row)
        if row.reason:
            assert (told.text, told.chain, told.num_natives) == (TEXT, "native", 1)
            assert f'motor_render_fallback_total{{reason="{row.reason}"}} 1.0' in told.metrics
            assert "motor_fallback_tokenizer_total{" not in told.metrics  # Render's ids are known
        else:
            assert (told.chain, told.num_natives) == ("none", 0)
        await d.check_nothing_left()


@STREAMS
async def test_engines_that_have_exited(stream: bool) -> None:
    async with deployment(num_engines=2, **TWICE) as d:
        await d.engines[0].crash()
        told = await ask(d, stream)
        assert (told.status, told.text, told.chain) == (200, TEXT, "token")
        await d.engines[1].crash()
        told = await ask(d, stream)
        assert (told.status, told.error_type, told.num_natives) == (502, "BadGatewayError", 0)
        await d.check_nothing_left()


@STREAMS
@pytest.mark.parametrize("row", DERENDER, ids=str)
async def test_derender(row: Row, stream: bool) -> None:
    async with deployment(num_engines=2, **settings(row)) as d:
        assert d.render is not None
        d.render.faults.set(row.kind, endpoint="derender", status=row.status, body=row.body)
        told = await ask(d, stream)
        assert (told.status, told.error_type, told.chain) == (row.told, row.error_type, "none")
        assert (told.num_generates, told.num_natives) == (1, 0)  # inference is never repeated
        assert "motor_attempt_plans_total{" not in told.metrics
        await d.check_nothing_left()


@pytest.mark.parametrize("endpoint", ["render", "derender"])
async def test_no_fault_of_the_sidecar_counts_against_an_engine(endpoint: str) -> None:
    """Twice as many as open a breaker: both engines go on taking turns."""
    async with deployment(num_engines=2, **TWICE) as d:
        assert d.render is not None
        d.render.faults.set(FaultKind.STATUS, endpoint=endpoint, status=500)
        for _ in range(12):
            await ask(d, stream=False)
        d.render.faults.clear()
        await d.wait_for_render()
        before = [engine.stats.requests["generate"] for engine in d.engines]
        for _ in range(6):
            assert (await ask(d, stream=False)).chain == "token"
        after = [engine.stats.requests["generate"] for engine in d.engines]
        assert [now - then for now, then in zip(after, before, strict=True)] == [3, 3]
        await d.check_nothing_left()


async def test_derenders_detail_reaches_the_client() -> None:
    async with deployment(**TWICE) as d:
        assert d.render is not None
        d.render.faults.set(FaultKind.STATUS, endpoint="derender", status=400, body={"detail": "stream_state is bad"})
        answer = await d.post(CHAT, {**HELLO, "stream": True})
        assert answer.json["error"]["message"] == "Derender answered 400: stream_state is bad"
        await d.check_nothing_left()


async def test_a_client_that_leaves_takes_everything_along() -> None:
    async with deployment(engine={"tokens_per_second": 20}) as d:
        async with open_stream(d, CHAT, user("Tell me a long story.", **QUIET)) as stream:
            await stream.take(2)
        await d.check_nothing_left()
        assert d.engines[0].stats.num_disconnected == 1
        assert d.num_generates == 1


@STREAMS
async def test_a_missing_capability_is_found_out_once(stream: bool) -> None:
    """The first request meets it; no other one asks that engine again until it is known to have the route."""
    async with deployment(**TWICE) as d:
        d.engines[0].faults.set(FaultKind.STATUS, endpoint="generate", status=404, body=NO_ROUTE, times=1)
        assert (await ask(d, stream)).num_generates == 1
        told = await ask(d, stream)
        assert (told.text, told.chain, told.num_generates) == (TEXT, "native", 0)
        assert 'motor_native_chain_total{reason="no_generate"} 1.0' in told.metrics
        for feed in d.built.feeds:
            await feed()
        assert (await ask(d, stream)).chain == "token"
        await d.check_nothing_left()


async def test_too_many_choices_for_generate_say_nothing_of_the_route() -> None:
    async with deployment(**TWICE) as d:
        refusal = {
            "error": {"message": "n is over max_num_seqs", "type": "BadRequestError", "param": None, "code": 400}
        }
        d.engines[0].faults.set(FaultKind.STATUS, endpoint="generate", status=400, body=refusal, times=1)
        assert (await ask(d, stream=False)).chain == "native"
        assert (await ask(d, stream=False)).chain == "token"
        await d.check_nothing_left()
