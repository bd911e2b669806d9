"""Who waits, and whose turn it is: priorities, and weighted fairness between the tenants of one priority.

The fairness is start-time fair queueing. Each tenant has a clock of its own, which a grant moves on by
`num_tokens / weight`; whoever's clock shows the least goes first. Only grants move clocks, so a request that gave up
has cost its tenant nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NewType

Ticket = NewType("Ticket", int)
"""Names one request from its offer to its end; a later offer has a greater one."""

MAX_DEPARTED = 1024
"""Clocks and turns of those who don't wait any more that a priority remembers."""


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """What is asked for.

    Attributes:
        tenant: Who asks.
        priority: Lower is served earlier, as in vLLM.
        num_prompt_tokens: Exact.
        num_expected_tokens: Output tokens expected; corrected later.

    Raises:
        ValueError: A count is negative.
    """

    tenant: str
    priority: int
    num_prompt_tokens: int
    num_expected_tokens: int

    def __post_init__(self) -> None:
        if self.num_prompt_tokens < 0 or self.num_expected_tokens < 0:
            raise ValueError("a count of tokens is negative")

    @property
    def num_tokens(self) -> int:
        """What the request needs to be admitted."""
        return self.num_prompt_tokens + self.num_expected_tokens


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request in the queue; it must be granted before `deadline`, in seconds of the caller's clock."""

    ticket: Ticket
    request: AdmissionRequest
    deadline: float


@dataclass(slots=True)
class _PriorityClass:
    """The waiters of one priority; all fields are mutable.

    Attributes:
        lines: Each tenant's waiters in order of arrival; a tenant without any has no line.
        turns: A heap of (virtual start, ticket, tenant), one for the first of each line and some of the departed.
        clocks: When each tenant's next request starts, in virtual time; not below `now` if absent.
        now: Virtual time: the start of the latest grant.
    """

    lines: dict[str, OrderedDict[Ticket, Waiter]] = field(default_factory=dict)
    turns: list[tuple[float, Ticket, str]] = field(default_factory=list)
    clocks: dict[str, float] = field(default_factory=dict)
    now: float = 0.0

    def push(self, waiter: Waiter) -> None:
        """Put a waiter at the end of its tenant's line."""
        line = self.lines.setdefault(waiter.request.tenant, OrderedDict())
        line[waiter.ticket] = waiter
        if len(line) == 1:
            self._add_turn(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Take a waiter out of its tenant's line."""
        line = self.lines[waiter.request.tenant]
        was_first = next(iter(line)) == waiter.ticket
        del line[waiter.ticket]
        if not line:
            del self.lines[waiter.request.tenant]
        elif was_first:
            self._add_turn(next(iter(line.values())))

    def first(self, is_eligible: Callable[[Waiter], bool]) -> Waiter | None:
        """Return the eligible first of a line with the earliest start, then of the earliest arrival."""
        passed_over = []
        found = None
        while self.turns and found is None:
            turn = self.turns[0]
            line = self.lines.get(turn[2])
            waiter = line.get(turn[1]) if line else None
            if waiter is not None and is_eligible(waiter):
                found = waiter
                continue
            heappop(self.turns)
            if waiter is not None:
                passed_over.append(turn)
        for turn in passed_over:
            heappush(self.turns, turn)
        return found

    def charge(self, waiter: Waiter, weight: float) -> None:
        """Move virtual time to the waiter's start, and its tenant's clock past it."""
        tenant = waiter.request.tenant
        self.now = self._start_of(tenant)
        self.clocks[tenant] = self.now + waiter.request.num_tokens / weight
        if len(self.clocks) > len(self.lines) + MAX_DEPARTED:
            # Tenant names may come from clients. Forgetting lets an idle tenant in one request early, no more.
            self.clocks = {name: clock for name, clock in self.clocks.items() if name in self.lines}

    def _start_of(self, tenant: str) -> float:
        """Return when the tenant's next request starts; time that it didn't use is not saved up."""
        return max(self.clocks.get(tenant, 0.0), self.now)

    def _add_turn(self, waiter: Waiter) -> None:
        tenant = waiter.request.tenant
        heappush(self.turns, (self._start_of(tenant), waiter.ticket, tenant))
        if len(self.turns) > 2 * len(self.lines) + MAX_DEPARTED:
            # The departed surface only where grants are made; a starved priority would collect them.
            self.turns = [turn for turn in self.turns if turn[1] in self.lines.get(turn[2], ())]
            heapify(self.turns)


class WaitQueue:
    """Waiters in the order of their turn; mutable: `_classes`, `_waiters`, `_deadlines`, `_num_tokens`.

    Args:
        weight_of: Tells a tenant's weight, above 0.
    """

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._weight_of = weight_of
        self._classes: dict[int, _PriorityClass] = {}
        self._waiters: dict[Ticket, Waiter] = {}
        self._deadlines: list[tuple[float, Ticket]] = []
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._waiters

    @property
    def num_tokens(self) -> int:
        """What all waiters together need."""
        return self._num_tokens

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of a waiter; `None` if nobody waits."""
        return self._deadlines[0][0] if self._deadlines else None

    def first(self, is_eligible: Callable[[Waiter], bool]) -> Waiter | None:
        """Return whose turn it is.

        Args:
            is_eligible: Judges the first waiter of a tenant in a priority, in the order of their turns.

        Returns:
            The first that is eligible; `None` if nobody is.
        """
        for priority in sorted(self._classes):
            waiter = self._classes[priority].first(is_eligible)
            if waiter is not None:
                return waiter
        return None

    def push(self, waiter: Waiter) -> None:
        """Put a waiter at the end of its tenant's line."""
        request = waiter.request
        self._classes.setdefault(request.priority, _PriorityClass()).push(waiter)
        self._waiters[waiter.ticket] = waiter
        heappush(self._deadlines, (waiter.deadline, waiter.ticket))
        self._num_tokens += request.num_tokens

    def grant(self, waiter: Waiter) -> None:
        """Take out a waiter whose turn has come, and charge its tenant's clock."""
        request = waiter.request
        self._classes[request.priority].charge(waiter, self._weight_of(request.tenant))
        self.remove(waiter.ticket)

    def remove(self, ticket: Ticket) -> None:
        """Take out a waiter at no cost to its tenant; an unknown ticket changes nothing."""
        waiter = self._waiters.pop(ticket, None)
        if waiter is None:
            return
        request = waiter.request
        self._num_tokens -= request.num_tokens
        priority_class = self._classes[request.priority]
        priority_class.remove(waiter)
        if not priority_class.lines:
            # With nobody waiting there is nothing to be fair about; who used an idle deployment owes for nothing.
            del self._classes[request.priority]
        while self._deadlines and self._deadlines[0][1] not in self._waiters:
            heappop(self._deadlines)

    def overdue(self, now: float) -> Iterator[Ticket]:
        """Take out and yield every waiter whose deadline is `now` or earlier."""
        while self._deadlines and self._deadlines[0][0] <= now:
            ticket = self._deadlines[0][1]
            self.remove(ticket)
            yield ticket
