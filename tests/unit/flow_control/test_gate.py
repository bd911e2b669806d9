"""The gate with real tasks and a clock that the test moves."""

import asyncio

import pytest

from motor.coordinator.domain.errors import AdmissionTimeout, QueueFull, RateLimited, RequestInvalid
from motor.coordinator.flow_control.gate import AdmissionGate
from motor.coordinator.flow_control.settings import FlowControlSettings, Oversized, TenantSettings
from tests.unit.flow_control.desk import NOTHING, Desk
from tests.unit.flow_control.fake_clock import run_ready_tasks


async def test_a_lease_is_held_for_the_block(desk: Desk) -> None:
    async with desk.gate.admit("a", 0, 30, 20) as lease:
        assert lease.num_tokens == 50
        assert desk.counts == (1, 50, 0, 0)
        assert desk.gate.tenant_in_use_tokens("a") == 50
    assert lease.num_tokens == 0
    with pytest.raises(ValueError, match="no lease"):
        lease.correct(1)


async def test_a_fault_in_the_block_gives_the_lease_back(desk: Desk) -> None:
    async def fail_inside() -> None:
        async with desk.gate.admit("a", 0, 30, 20) as lease:
            lease.correct(25)
            assert desk.gate.in_use_tokens == 55
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_inside()


async def test_waiters_are_woken_in_their_order(desk: Desk) -> None:
    tasks = [desk.start("a1"), desk.start("a2", priority=1), desk.start("a3", priority=0)]
    await run_ready_tasks()
    assert desk.counts == (1, 100, 2, 200)
    for leaver, expected in (("a1", {"a1", "a3"}), ("a3", {"a1", "a2", "a3"})):
        await desk.leave(leaver)
        assert set(desk.leases) == expected
    await desk.leave("a2")
    await asyncio.gather(*tasks)


async def test_a_correction_wakes_whoever_fits_now(desk: Desk) -> None:
    tasks = [desk.start("a1", 100), desk.start("a2", 15)]
    await run_ready_tasks()
    desk.leases["a1"].correct(12)
    assert desk.counts == (1, 102, 1, 15)
    desk.leases["a1"].correct(0, num_expected_tokens=5)
    await run_ready_tasks()
    assert desk.counts == (1, 95, 1, 15)
    await desk.leave("a1")
    await desk.leave("a2")
    await asyncio.gather(*tasks)


async def test_a_smaller_estimate_wakes(desk: Desk) -> None:
    tasks = [desk.start("a1", 95), desk.start("a2", 15)]
    await run_ready_tasks()
    desk.leases["a1"].correct(0, num_expected_tokens=0)
    await run_ready_tasks()
    assert desk.counts == (2, 100, 0, 0)
    await desk.leave("a1")
    await desk.leave("a2")
    await asyncio.gather(*tasks)


async def test_a_deadline_is_a_503_and_makes_way(desk: Desk) -> None:
    holder, large = desk.start("a1", 60), desk.start("a2", 80)
    await run_ready_tasks()
    desk.clock.advance(10)
    small = desk.start("a3", 40)
    await run_ready_tasks()
    desk.clock.advance(19.9)
    await run_ready_tasks()
    assert desk.counts == (1, 60, 2, 120)
    desk.clock.advance(0.1)
    await run_ready_tasks()
    assert desk.counts == (2, 100, 0, 0)
    with pytest.raises(AdmissionTimeout) as caught:
        await large
    assert (caught.value.status, caught.value.domain) == (503, "flow_control")
    await desk.leave("a1")
    await desk.leave("a3")
    await asyncio.gather(holder, small)


async def test_nobody_is_admitted_after_its_deadline_though_the_timer_is_late(desk: Desk) -> None:
    holder, late = desk.start("a1"), desk.start("a2")
    await run_ready_tasks()
    desk.clock.now += 31  # the loop is busy: the timer has not been called
    await desk.leave("a1")
    with pytest.raises(AdmissionTimeout):
        await late
    await holder


async def test_an_arrival_and_a_correction_see_deadlines_that_the_timer_missed(desk: Desk) -> None:
    holder, large = desk.start("a1", 60), desk.start("a2", 80)
    await run_ready_tasks()
    desk.clock.now += 31
    async with desk.gate.admit("b", 0, 20, 0) as lease:
        assert desk.counts == (2, 80, 0, 0)
        late = desk.start("a3", 50)
        await run_ready_tasks()
        desk.clock.now += 31
        desk.leases["a1"].correct(0, num_expected_tokens=0)
        assert desk.counts == (2, 70, 0, 0)
        assert lease.num_tokens == 20
    for task in (large, late):
        with pytest.raises(AdmissionTimeout):
            await task
    await desk.leave("a1")
    await holder


async def test_the_timer_goes_on_to_the_next_deadline_if_its_waiter_was_admitted(desk: Desk) -> None:
    tasks = [desk.start("a1", 90), desk.start("a2", 20)]
    await run_ready_tasks()
    desk.clock.advance(10)
    late = desk.start("a3", 90)
    await run_ready_tasks()
    desk.leases["a1"].correct(0, num_expected_tokens=0)  # 80: lets the second in, and the timer stays
    await run_ready_tasks()
    assert desk.counts == (2, 100, 1, 90)
    desk.clock.advance(20)
    assert [timer.when for timer in desk.clock.timers] == [1040.0]
    desk.clock.advance(10)
    with pytest.raises(AdmissionTimeout):
        await late
    for name in ("a1", "a2"):
        await desk.leave(name)
    await asyncio.gather(*tasks)


async def test_an_arrival_that_lets_others_by_wakes_them() -> None:
    desk = Desk(tenants={"a": TenantSettings(max_inflight_tokens=60)})
    tasks = [desk.start("x1", 60), desk.start("a1", 50, priority=1), desk.start("b1", 10, priority=1)]
    await run_ready_tasks()
    assert set(desk.leases) == {"x1"}
    tasks.append(desk.start("a2", 20))  # takes its tenant to where its large one does not stand in the way any more
    await run_ready_tasks()
    assert set(desk.leases) == {"x1", "a2", "b1"}
    for name in ("x1", "a2", "a1", "b1"):
        await desk.leave(name)
    await asyncio.gather(*tasks)
    assert desk.counts == NOTHING


async def test_one_timer_serves_all_waiters(desk: Desk) -> None:
    tasks = [desk.start(f"a{number}") for number in range(20)]
    await run_ready_tasks()
    assert [timer.when for timer in desk.clock.timers] == [1030.0]
    desk.clock.advance(30)
    results = asyncio.gather(*tasks[1:], return_exceptions=True)
    assert {type(result) for result in await results} == {AdmissionTimeout}
    assert desk.clock.timers == []
    await desk.leave("a0")
    await tasks[0]


async def test_a_full_queue_says_when_a_place_is_free_at_the_latest() -> None:
    desk = Desk(max_queue_requests=1, queue_timeout_seconds=12.5)
    holder, waiter = desk.start("a1"), desk.start("a2")
    await run_ready_tasks()
    for passed_seconds, retry_after in ((0.0, 13), (2.5, 10), (9.9, 1)):
        desk.clock.advance(passed_seconds)
        with pytest.raises(QueueFull) as caught:
            await desk.start("b1")
        assert (caught.value.status, caught.value.retry_after_seconds) == (429, retry_after)
        assert desk.counts == (1, 100, 1, 100)
    await desk.leave("a1")
    await desk.leave("a2")
    await asyncio.gather(holder, waiter)


async def test_without_a_queue_a_retry_makes_sense_at_once() -> None:
    desk = Desk(max_queue_requests=0)
    async with desk.gate.admit("a", 0, 100, 0):
        with pytest.raises(QueueFull) as caught:
            await desk.start("a1")
    assert caught.value.retry_after_seconds == 1
    assert desk.counts == NOTHING


async def test_a_rate_says_when_the_request_would_pass() -> None:
    desk = Desk(max_inflight_tokens=None, tokens_per_minute=600)
    async with desk.gate.admit("a", 0, 500, 40) as lease:
        lease.correct(60)  # 560 in all
        with pytest.raises(RateLimited) as caught:
            await desk.start("a1", 72)
        assert (caught.value.status, caught.value.kind) == (429, "rate_limited")
        assert caught.value.retry_after_seconds == 4  # 32 tokens short at 10 a second
        async with desk.gate.admit("b", 0, 600, 0):
            pass
    desk.clock.advance(3.2)
    async with desk.gate.admit("a", 0, 72, 0):
        pass


async def test_a_rate_is_charged_what_was_used_and_not_what_was_expected() -> None:
    desk = Desk(tokens_per_minute=100)
    async with desk.gate.admit("a", 0, 10, 80) as lease:
        lease.correct(5)
    async with desk.gate.admit("a", 0, 85, 0):
        pass
    with pytest.raises(RateLimited):
        await desk.start("a1", 10)


async def test_the_oversized_is_the_clients_mistake_where_so_set() -> None:
    desk = Desk(oversized=Oversized.REFUSE, requests_per_minute=1)
    with pytest.raises(RequestInvalid) as caught:
        await desk.start("a1", 101)
    assert caught.value.status == 400
    async with desk.gate.admit("a", 0, 100, 0):
        pass


async def test_a_negative_count_leaves_nothing_behind(desk: Desk) -> None:
    with pytest.raises(ValueError, match="negative"):
        async with desk.gate.admit("a", 0, -1, 5):
            pass


async def test_the_running_loop_is_the_clock_by_default() -> None:
    gate = AdmissionGate(FlowControlSettings(max_inflight_tokens=10, queue_timeout_seconds=1e-3))
    async with gate.admit("a", 0, 10, 0):
        with pytest.raises(AdmissionTimeout):
            async with gate.admit("a", 0, 10, 0):
                pass
    assert (gate.num_leases, gate.in_use_tokens, gate.num_waiting) == (0, 0, 0)
