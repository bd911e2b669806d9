"""The client's side of an exchange: the head leaves with the body, and a client that leaves ends the work."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from motor.coordinator.api.client_sink import ClientSink, serve_while_connected
from motor.coordinator.domain.errors import ClientGone, EngineFailed
from motor.coordinator.wire.sse import EVENT_STREAM_HEADERS

Messages = list[dict[str, Any]]


def recording() -> tuple[ClientSink, Messages]:
    """Return a sink and what it sends."""
    sent: Messages = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    return ClientSink(send), sent


async def never() -> Any:
    """A client that neither leaves nor sends."""
    await asyncio.get_running_loop().create_future()


def after(event: asyncio.Event, message: dict[str, Any]) -> Callable[[], Awaitable[Any]]:
    """Return a `receive` that gives a message once an event has happened."""

    async def receive() -> Any:
        await event.wait()
        return message

    return receive


async def test_the_head_leaves_with_the_first_bytes() -> None:
    sink, sent = recording()
    await sink.start(200, EVENT_STREAM_HEADERS)
    assert (sent, sink.has_started, sink.is_event_stream) == ([], True, True)
    await sink.write(b"one")
    await sink.write(b"two")
    await sink.finish()
    assert [message["type"] for message in sent] == ["http.response.start", *["http.response.body"] * 3]
    assert [(m["body"], m["more_body"]) for m in sent[1:]] == [(b"one", True), (b"two", True), (b"", False)]


async def test_a_response_starts_once() -> None:
    sink, _ = recording()
    with pytest.raises(RuntimeError):
        await sink.write(b"too soon")
    await sink.start(200, [(b"x-motor-chain", b"token")])
    with pytest.raises(RuntimeError):
        await sink.start(500, [])
    assert (sink.status, sink.chain, sink.is_event_stream) == (200, "token", False)


async def test_blocked_time_runs_only_while_a_write_waits() -> None:
    may_go_on = asyncio.Event()

    async def send(message: Any) -> None:
        await may_go_on.wait()

    sink = ClientSink(send)
    await sink.start(200, [])
    assert sink.blocked_seconds() == 0.0
    writing = asyncio.create_task(sink.write(b"x"))
    await asyncio.sleep(0)
    assert sink.blocked_seconds() > 0.0
    may_go_on.set()
    await writing
    assert sink.blocked_seconds() == 0.0


async def test_abandoning_resets_the_connection() -> None:
    resets: list[str] = []

    async def send(message: Any) -> None:
        raise AssertionError("nothing is sent")

    sink = ClientSink(send, lambda: resets.append("reset"))
    sink.abandon()
    assert resets == ["reset"]


async def test_work_that_ends_ends_the_watch() -> None:
    sink, _ = recording()
    await serve_while_connected(asyncio.sleep(0), never, sink, 60)
    assert len(asyncio.all_tasks()) == 1


async def test_a_client_that_leaves_cancels_the_work_and_waits_for_its_end() -> None:
    sink, _ = recording()
    left, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        left.set()
        try:
            await never()
        finally:
            await asyncio.sleep(0)  # a release takes its time
            ended.set()

    with pytest.raises(ClientGone):
        await serve_while_connected(work(), after(left, {"type": "http.disconnect"}), sink, 60)
    assert ended.is_set()


async def test_the_works_error_is_the_exchanges_error() -> None:
    sink, _ = recording()

    async def work() -> None:
        raise EngineFailed("broken")

    with pytest.raises(EngineFailed):
        await serve_while_connected(work(), never, sink, 60)


async def test_a_client_that_takes_nothing_is_gone_after_the_stall_time_and_not_before() -> None:
    async def send(message: Any) -> None:
        await never()

    sink = ClientSink(send)

    async def work() -> None:
        await asyncio.sleep(0.15)  # nothing to write yet: that isn't the client's fault
        await sink.start(200, [])
        await sink.write(b"x")

    started = asyncio.get_running_loop().time()
    with pytest.raises(ClientGone, match="reads nothing"):
        await serve_while_connected(work(), never, sink, 0.2)
    assert asyncio.get_running_loop().time() - started >= 0.35


async def test_other_messages_are_no_disconnect() -> None:
    sink, _ = recording()
    messages = [{"type": "http.request", "body": b"", "more_body": False}]
    was_asked_again = asyncio.Event()

    async def receive() -> Any:
        if messages:
            return messages.pop()
        was_asked_again.set()
        return await never()

    async def work() -> None:
        await was_asked_again.wait()

    await serve_while_connected(work(), receive, sink, 60)
