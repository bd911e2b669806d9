"""Cancelled at every point of its way, a request leaves nothing behind."""

import asyncio

import pytest

from motor.coordinator.domain.errors import AdmissionTimeout, QueueFull, RateLimited
from tests.unit.flow_control.desk import NOTHING, Desk
from tests.unit.flow_control.fake_clock import run_ready_tasks


async def test_cancelled_before_its_first_step(desk: Desk) -> None:
    task = desk.start("a1")
    task.cancel()
    await run_ready_tasks()
    assert task.cancelled()
    assert desk.counts == NOTHING


async def test_cancelled_while_it_waits(desk: Desk) -> None:
    holder, large, small = desk.start("a1", 60), desk.start("a2", 80), desk.start("a3", 40)
    await run_ready_tasks()
    assert desk.counts == (1, 60, 2, 120)
    large.cancel()
    await run_ready_tasks()
    assert large.cancelled()
    assert desk.counts == (2, 100, 0, 0)  # the large one stood in the way of the small one
    await desk.leave("a1")
    await desk.leave("a3")
    await asyncio.gather(holder, small)


async def test_cancelled_after_it_was_admitted_but_before_it_knew(desk: Desk) -> None:
    async with desk.gate.admit("a", 0, 100, 0):
        unlucky, heir = desk.start("a2"), desk.start("a3")
        await run_ready_tasks()
    assert desk.counts == (1, 100, 1, 100)  # the lease is the unlucky one's
    unlucky.cancel()
    await run_ready_tasks()
    assert unlucky.cancelled()
    assert set(desk.leases) == {"a3"}
    await desk.leave("a3")
    await heir


async def test_admitted_after_it_was_cancelled_but_before_it_left(desk: Desk) -> None:
    async with desk.gate.admit("a", 0, 100, 0):
        unlucky, heir = desk.start("a2"), desk.start("a3")
        await run_ready_tasks()
        unlucky.cancel()
    assert desk.counts == (1, 100, 1, 100)
    await run_ready_tasks()
    assert unlucky.cancelled()
    assert set(desk.leases) == {"a3"}
    await desk.leave("a3")
    await heir


async def test_cancelled_after_its_deadline_but_before_it_knew(desk: Desk) -> None:
    holder, late = desk.start("a1"), desk.start("a2")
    await run_ready_tasks()
    desk.clock.advance(30)
    late.cancel()
    await run_ready_tasks()
    assert late.cancelled()
    assert desk.counts == (1, 100, 0, 0)
    await desk.leave("a1")
    await holder


async def test_its_deadline_after_it_was_cancelled_but_before_it_left(desk: Desk) -> None:
    holder, late = desk.start("a1"), desk.start("a2")
    await run_ready_tasks()
    late.cancel()
    desk.clock.advance(30)
    await run_ready_tasks()
    assert late.cancelled()
    await desk.leave("a1")
    await holder


async def test_cancelled_in_the_block(desk: Desk) -> None:
    holder, heir = desk.start("a1"), desk.start("a2")
    await run_ready_tasks()
    desk.leases["a1"].correct(500)
    holder.cancel()
    await run_ready_tasks()
    assert holder.cancelled()
    assert desk.counts == (1, 100, 0, 0)
    heir.cancel()
    await run_ready_tasks()
    assert heir.cancelled()


async def test_whoever_was_not_served_has_used_nothing_of_its_rate() -> None:
    # Time passes only as far as a deadline, so that next to nothing flows back into the bucket.
    desk = Desk(max_queue_requests=2, requests_per_minute=3, queue_timeout_seconds=1e-6)
    async with desk.gate.admit("b", 0, 100, 0):
        late, unlucky = desk.start("a1"), desk.start("a2")
        await run_ready_tasks()
        with pytest.raises(QueueFull):
            await desk.start("a3")
        unlucky.cancel()
        await run_ready_tasks()
        desk.clock.advance(1e-6)
        with pytest.raises(AdmissionTimeout):
            await late
        unaware = desk.start("a4")
        await run_ready_tasks()
    assert desk.counts == (1, 100, 0, 0)
    unaware.cancel()
    await run_ready_tasks()
    for _ in range(3):
        async with desk.gate.admit("a", 0, 1, 0):
            pass
    with pytest.raises(RateLimited) as caught:
        await desk.start("a5")
    assert caught.value.retry_after_seconds == 20
    assert desk.counts == NOTHING
