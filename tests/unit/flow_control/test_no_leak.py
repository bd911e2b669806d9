"""Random schedules of arrivals, cancels, corrections and faults: the books are right after every step, and empty after.

10,000 schedules in all: most on the pure core, where every step is judged, the rest on the gate with real tasks.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from motor.coordinator.domain.errors import MotorError
from motor.coordinator.flow_control.gate import AdmissionGate, AdmissionLease
from motor.coordinator.flow_control.settings import FlowControlSettings, Oversized, TenantSettings
from motor.coordinator.flow_control.token_budget import Admitted, Queued, Rejected, TokenBudget
from motor.coordinator.flow_control.wait_queue import AdmissionRequest, Ticket
from tests.unit.flow_control.fake_clock import FakeClock, run_ready_tasks

NUM_CORE_SCHEDULES = 9_000
NUM_GATE_SCHEDULES = 1_000
NUM_IN_EXAMPLE = 20
TENANTS = "abc"
LIMITS = (None, 40, 100, 150)
UNKNOWN = Ticket(-1)

# A schedule is bytes, four a step, and an example is many schedules, because both are quick to draw and shrink well.
schedules = st.lists(st.binary(min_size=40, max_size=100), min_size=NUM_IN_EXAMPLE, max_size=NUM_IN_EXAMPLE)


def steps_of(schedule: bytes) -> Iterator[tuple[int, int, int, int]]:
    for at in range(4, len(schedule) - 3, 4):
        yield schedule[at], schedule[at + 1], schedule[at + 2], schedule[at + 3]


def settings_of(schedule: bytes) -> FlowControlSettings:
    first, second, third, fourth = schedule[:4]
    return FlowControlSettings(
        max_inflight_tokens=LIMITS[first % 4],
        max_queue_requests=second % 8,
        max_queue_tokens=LIMITS[third % 4],
        queue_timeout_seconds=1 + third % 5,
        oversized=Oversized.REFUSE if fourth % 4 == 0 else Oversized.ALONE,
        tenants={
            "a": TenantSettings(weight=1 + fourth % 3, max_inflight_tokens=LIMITS[fourth // 4 % 4]),
            "b": TenantSettings(max_inflight_tokens=LIMITS[fourth // 16 % 4], tokens_per_minute=500),
        },
        requests_per_minute=None if second & 64 else 30,
    )


class CoreSchedule:
    """Runs steps on the core and keeps books of its own."""

    def __init__(self, schedule: bytes) -> None:
        self.settings = settings_of(schedule)
        self.budget = TokenBudget(self.settings)
        self.requests: dict[Ticket, AdmissionRequest] = {}
        self.tokens: dict[Ticket, int] = {}
        self.expected: dict[Ticket, int] = {}
        self.waiting: dict[Ticket, float] = {}
        self.now = 0.0

    def run(self, steps: Iterator[tuple[int, int, int, int]]) -> None:
        for kind, *arguments in steps:
            if kind < 120:
                self.offer(*arguments)
            elif kind < 160:
                self.correct(*arguments)
            elif kind < 220:
                self.release(arguments[0])
            elif kind < 240:
                self.now += arguments[0] / 100
                self.expire()
            else:
                self.break_a_rule(arguments[0])
            self.judge()
        for ticket in [*self.tokens, *self.waiting]:
            self.end(ticket)
            self.judge()
        assert (self.budget.in_use_tokens, self.budget.num_waiting, self.budget.num_waiting_tokens) == (0, 0, 0)
        assert dict(self.budget.leases) == {}
        assert self.budget.next_deadline is None

    def offer(self, who: int, num_prompt_tokens: int, other: int) -> None:
        request = AdmissionRequest(TENANTS[who % 3], who // 3 % 3, num_prompt_tokens // 2, other % 60)
        deadline = self.now + other / 50
        answer = self.budget.offer(request, deadline)
        if not isinstance(answer, Rejected):
            assert answer.ticket not in self.requests
            self.requests[answer.ticket] = request
            self.waiting[answer.ticket] = deadline
        if isinstance(answer, Queued):
            assert len(self.waiting) - len(answer.others) <= self.settings.max_queue_requests
        self.note_admitted(answer.others + ((answer.ticket,) if isinstance(answer, Admitted) else ()))

    def correct(self, which: int, num_completion_tokens: int, num_expected: int) -> None:
        if not self.tokens:
            return
        ticket = list(self.tokens)[which % len(self.tokens)]
        if num_expected % 2:
            self.expected[ticket] = num_expected
        admitted = self.budget.correct(ticket, num_completion_tokens, num_expected if num_expected % 2 else None)
        prompt = self.requests[ticket].num_prompt_tokens
        self.tokens[ticket] = prompt + max(num_completion_tokens, self.expected[ticket])
        self.note_admitted(admitted)

    def release(self, which: int) -> None:
        tickets = [*self.tokens, *self.waiting]
        if tickets:
            self.end(tickets[which % len(tickets)])

    def end(self, ticket: Ticket) -> None:
        self.tokens.pop(ticket, None)
        self.waiting.pop(ticket, None)
        self.note_admitted(self.budget.release(ticket))

    def expire(self) -> None:
        expired, admitted = self.budget.expire(self.now)
        assert set(expired) == {ticket for ticket, deadline in self.waiting.items() if deadline <= self.now}
        for ticket in expired:
            del self.waiting[ticket]
        self.note_admitted(admitted)

    def break_a_rule(self, which: int) -> None:
        """Release what has ended, and correct what has no lease."""
        for ticket in ([UNKNOWN, *self.requests], [UNKNOWN, *self.waiting])[which % 2]:
            if ticket not in self.tokens:
                with pytest.raises(ValueError, match="no lease"):
                    self.budget.correct(ticket, 5)
                if ticket not in self.waiting:
                    assert self.budget.release(ticket) == ()

    def note_admitted(self, admitted: tuple[Ticket, ...]) -> None:
        for ticket in admitted:
            del self.waiting[ticket]  # fails if it was admitted twice, or after its end
            request = self.requests[ticket]
            self.tokens[ticket] = request.num_tokens
            self.expected[ticket] = request.num_expected_tokens
        if admitted:
            last = self.requests[admitted[-1]]
            in_last = [count for ticket, count in self.tokens.items() if self.requests[ticket].tenant == last.tenant]
            for counts, bound in (
                (list(self.tokens.values()), self.settings.max_inflight_tokens),
                (in_last, self.settings.tenant(last.tenant).max_inflight_tokens),
            ):
                assert bound is None or len(counts) == 1 or sum(counts) <= bound

    def judge(self) -> None:
        budget = self.budget
        assert {ticket: lease.num_tokens for ticket, lease in budget.leases.items()} == self.tokens
        assert budget.in_use_tokens == sum(self.tokens.values())
        by_tenant: Counter[str] = Counter()
        for ticket, count in self.tokens.items():
            by_tenant[self.requests[ticket].tenant] += count
        assert [budget.tenant_in_use_tokens(tenant) for tenant in TENANTS] == [by_tenant[tenant] for tenant in TENANTS]
        assert budget.num_waiting == len(self.waiting)
        assert budget.num_waiting_tokens == sum(self.requests[ticket].num_tokens for ticket in self.waiting)
        assert budget.next_deadline == min(self.waiting.values(), default=None)
        assert self.tokens or not self.waiting, "nothing runs, yet somebody waits"
        assert budget.release(UNKNOWN) == (), "somebody could have been admitted before"


def examples(num_schedules: int) -> settings:
    return settings(
        max_examples=num_schedules // NUM_IN_EXAMPLE,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],  # explaining a failure traces every line of every run, which is slow
        suppress_health_check=[HealthCheck.too_slow],
    )


@examples(NUM_CORE_SCHEDULES)
@given(schedules)
def test_the_cores_books_are_right_after_every_step(many: list[bytes]) -> None:
    for schedule in many:
        CoreSchedule(schedule).run(steps_of(schedule))


class GateSchedule:
    """Runs clients as tasks, and cancels them at any point."""

    def __init__(self, schedule: bytes) -> None:
        self.clock = FakeClock()
        self.gate = AdmissionGate(settings_of(schedule), self.clock)
        self.tasks: list[asyncio.Task[None]] = []
        self.leases: dict[asyncio.Task[None], AdmissionLease] = {}
        self.exits: dict[asyncio.Task[None], asyncio.Event] = {}

    async def run(self, steps: Iterator[tuple[int, int, int, int]]) -> None:
        for kind, which, size, other in steps:
            self.act(kind, which, size, other)
            for _ in range(other % 4):  # so that what follows meets tasks half-way
                await asyncio.sleep(0)
            self.judge()
        await self.end()

    def act(self, kind: int, which: int, size: int, other: int) -> None:
        if kind < 110:
            client = self.client(TENANTS[which % 3], which // 3 % 3, size // 2, other)
            self.tasks.append(asyncio.create_task(client))
        elif kind < 150 and self.tasks:
            self.tasks[which % len(self.tasks)].cancel()
        elif kind < 180 and self.leases:
            list(self.leases.values())[which % len(self.leases)].correct(size, other if other % 2 else None)
        elif kind < 220 and self.exits:
            list(self.exits.values())[which % len(self.exits)].set()
        elif kind < 235:
            self.clock.advance(size / 100)
        else:
            self.clock.now += size / 100  # time passes without the loop noticing

    async def end(self) -> None:
        for task in self.tasks[::2]:
            task.cancel()
        while not all(task.done() for task in self.tasks):
            for exit_of_client in self.exits.values():
                exit_of_client.set()
            self.clock.advance(1)
            await run_ready_tasks()
            self.judge()
        gate = self.gate
        assert (gate.in_use_tokens, gate.num_leases, gate.num_waiting, gate.num_waiting_tokens) == (0, 0, 0, 0)
        assert self.clock.timers == []
        for task in self.tasks:
            error = None if task.cancelled() else task.exception()
            assert error is None or isinstance(error, MotorError | ZeroDivisionError), error

    async def client(self, tenant: str, priority: int, num_prompt_tokens: int, other: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        async with self.gate.admit(tenant, priority, num_prompt_tokens, other % 60) as lease:
            self.leases[task], self.exits[task] = lease, asyncio.Event()
            try:
                await self.exits[task].wait()
                if other % 7 == 0:
                    raise ZeroDivisionError
            finally:
                del self.leases[task], self.exits[task]

    def judge(self) -> None:
        gate = self.gate
        num_leased_tokens = sum(lease.num_tokens for lease in gate._budget.leases.values())
        assert gate.in_use_tokens == num_leased_tokens
        assert sum(lease.num_tokens for lease in self.leases.values()) <= num_leased_tokens
        assert gate.num_leases + gate.num_waiting <= len(self.tasks)
        assert set(gate._waiting) == set(gate._budget._queue._waiters)


def test_tasks_that_end_in_any_way_leave_nothing_at_the_gate() -> None:
    with asyncio.Runner() as runner:

        @examples(NUM_GATE_SCHEDULES)
        @given(schedules)
        def run(many: list[bytes]) -> None:
            for schedule in many:
                runner.run(GateSchedule(schedule).run(steps_of(schedule)))

        run()
