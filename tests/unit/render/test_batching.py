"""Which chunks share a derender call, how long a stream rests, and the bounded inbox between engine and client."""

import asyncio
from typing import Any

import pytest

from motor.coordinator.domain.generation import GenerateChoice
from motor.coordinator.render.chunk_merge import merged, num_mergeable
from motor.coordinator.render.inbox import Inbox
from motor.coordinator.render.pacing import rest_seconds

MARKERS = frozenset({100, 101})


def chunk(*ids: int, **fields: Any) -> GenerateChoice:
    return GenerateChoice(index=0, token_ids=list(ids), **fields)


@pytest.mark.parametrize(
    ("waiting", "is_first", "expected"),
    [
        ([chunk(1), chunk(2), chunk(3)], False, 3),
        ([chunk(1), chunk(2), chunk(3)], True, 1),
        ([chunk(100), chunk(2)], False, 1),
        ([chunk(1), chunk(100), chunk(2)], False, 1),
        ([chunk(1), chunk(2), chunk(3, 101), chunk(4)], False, 2),
        ([chunk(1), chunk(2, logprobs={"content": [{}]})], False, 1),
        ([chunk(1), chunk(), chunk(2)], False, 3),
        ([chunk(1), chunk(2), chunk(3, finish_reason="stop")], False, 2),  # the last chunk goes alone
        ([chunk(3, finish_reason="stop")], False, 1),
    ],
)
def test_how_many_chunks_share_a_call(waiting: list[GenerateChoice], is_first: bool, expected: int) -> None:
    assert num_mergeable(waiting, MARKERS, is_first=is_first) == expected


def test_nothing_is_merged_without_knowing_the_markers() -> None:
    assert num_mergeable([chunk(1), chunk(2)], None, is_first=False) == 1


def test_a_merged_chunk_stands_for_all_of_them() -> None:
    one = {"content": [{"token_id": 1}]}
    two = {"content": [{"token_id": 2}, {"token_id": 3}]}
    result = merged([chunk(1, logprobs=one), chunk(2, 3, logprobs=two)])
    assert result == chunk(
        1,
        2,
        3,
        logprobs={"content": [{"token_id": 1}, {"token_id": 2}, {"token_id": 3}]},
    )


@pytest.mark.parametrize(
    ("call_seconds", "expected"), [(0.001, 0.0), (0.01, 0.03), (0.03, 0.09), (0.1, 0.05), (0.15, 0.0), (2.0, 0.0)]
)
def test_rest_grows_with_the_call_up_to_the_visible_gap(call_seconds: float, expected: float) -> None:
    assert rest_seconds(call_seconds, 0.15) == pytest.approx(expected)


async def test_a_full_inbox_stops_the_producer() -> None:
    inbox = Inbox(2)
    await inbox.put(chunk(1))
    await inbox.put(chunk(2))
    third = asyncio.create_task(inbox.put(chunk(3)))
    await asyncio.sleep(0)
    assert not third.done()
    assert inbox.take(1) == [chunk(1)]
    await third
    assert list(await inbox.waiting()) == [chunk(2), chunk(3)]


async def test_what_was_put_before_the_end_is_still_shown() -> None:
    inbox = Inbox(2)
    await inbox.put(chunk(1))
    inbox.close()
    assert list(await inbox.waiting()) == [chunk(1)]
    inbox.take(1)
    assert not await inbox.waiting()


async def test_drained_means_shown_not_only_taken() -> None:
    inbox = Inbox(2)
    await inbox.put(chunk(1))
    drained = asyncio.create_task(inbox.drained())
    inbox.take(1)
    await asyncio.sleep(0)
    assert not drained.done()
    inbox.mark_drained()
    await drained


async def test_rest_ends_early_when_the_last_chunk_comes() -> None:
    inbox = Inbox(2)
    resting = asyncio.create_task(inbox.rest(3600))
    await asyncio.sleep(0)
    await inbox.put(chunk(1, finish_reason="stop"))
    await asyncio.wait_for(resting, 5)
    assert resting.done()
