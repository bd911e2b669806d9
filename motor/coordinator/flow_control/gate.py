"""The gate that every request passes: waits where the pure cores say so, and gives everything back on every path."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from math import ceil
from typing import Protocol

from motor.coordinator.domain.errors import AdmissionTimeout, MotorError, QueueFull, RateLimited, RequestInvalid
from motor.coordinator.flow_control.rate_limit import RateLimiter
from motor.coordinator.flow_control.settings import FlowControlSettings
from motor.coordinator.flow_control.token_budget import Queued, Rejected, RejectReason, TokenBudget
from motor.coordinator.flow_control.wait_queue import AdmissionRequest, Ticket


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """Call it off; one that was made stays made."""


class Clock(Protocol):
    """Time in seconds that never goes back, and calls that are due at a time; an event loop is one."""

    def time(self) -> float:
        """Return the time."""
        ...

    def call_at(self, when: float, callback: Callable[[], None], /) -> Timer:
        """Have `callback` called at `when`, or at once if that is past."""
        ...


class AdmissionLease:
    """Tokens that one admitted request holds until its `admit` block ends; mutable through `correct`."""

    def __init__(self, gate: "AdmissionGate", ticket: Ticket) -> None:
        self._gate = gate
        self._ticket = ticket

    @property
    def num_tokens(self) -> int:
        """Tokens booked: the prompt, and what is expected of the output or more if more came; 0 after the end."""
        return self._gate.leased_tokens(self._ticket)

    def correct(self, num_completion_tokens: int, num_expected_tokens: int | None = None) -> None:
        """Tell what came of the output; cheap enough for every chunk.

        Args:
            num_completion_tokens: Output tokens that arrived so far, over all choices.
            num_expected_tokens: A better estimate of all output tokens, such as when a choice has ended early; `None`
                keeps the last one.

        Raises:
            ValueError: The lease has ended, or a count is negative.
        """
        self._gate.correct(self._ticket, num_completion_tokens, num_expected_tokens)


class AdmissionGate:
    """Admits requests by tokens; mutable: `_budget`, `_limiter`, `_waiting`, `_timer`, `_timer_at`.

    No method awaits between reading and writing shared state, so there are no locks.

    Args:
        settings: What may be in flight.
        clock: Tells the time and calls back; `None` for the running event loop.
    """

    def __init__(self, settings: FlowControlSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._injected_clock = clock
        self._budget = TokenBudget(settings)
        self._limiter = RateLimiter(settings)
        self._waiting: dict[Ticket, asyncio.Future[None]] = {}
        self._timer: Timer | None = None
        self._timer_at: float | None = None

    @property
    def in_use_tokens(self) -> int:
        """Tokens booked; the sum of all leases."""
        return self._budget.in_use_tokens

    @property
    def num_leases(self) -> int:
        """Admitted requests."""
        return len(self._budget.leases)

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return self._budget.num_waiting

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens that the waiting requests need."""
        return self._budget.num_waiting_tokens

    def tenant_in_use_tokens(self, tenant: str) -> int:
        """Return the tokens booked for one tenant."""
        return self._budget.tenant_in_use_tokens(tenant)

    @asynccontextmanager
    async def admit(
        self, tenant: str, priority: int, num_prompt_tokens: int, num_expected_tokens: int
    ) -> AsyncIterator[AdmissionLease]:
        """Wait for admission, and hold the lease until the block ends.

        Args:
            tenant: Whose budget, weight and rate count.
            priority: Lower goes first.
            num_prompt_tokens: Prompt tokens, over all prompts of the request.
            num_expected_tokens: Output tokens expected, over all choices.

        Raises:
            RateLimited: The tenant's rate is used up.
            QueueFull: No place to wait.
            AdmissionTimeout: Not admitted in time.
            RequestInvalid: Larger than the budget, where the settings refuse that.
        """
        request = AdmissionRequest(tenant, priority, num_prompt_tokens, num_expected_tokens)
        ticket = self._enter(request)
        is_running = False
        try:
            waiting = self._waiting.get(ticket)
            if waiting is not None:
                await waiting
            is_running = True
            yield AdmissionLease(self, ticket)
        finally:
            self._leave(ticket, request, is_running)

    def leased_tokens(self, ticket: Ticket) -> int:
        """Return what a ticket has booked; 0 without a lease."""
        lease = self._budget.leases.get(ticket)
        return 0 if lease is None else lease.num_tokens

    def correct(self, ticket: Ticket, num_completion_tokens: int, num_expected_tokens: int | None) -> None:
        """Correct a lease and what its tenant's rate was charged; raises as `AdmissionLease.correct`."""
        now = self._clock.time()
        self._expire(now)
        num_before = self.leased_tokens(ticket)
        admitted = self._budget.correct(ticket, num_completion_tokens, num_expected_tokens)
        lease = self._budget.leases[ticket]
        self._limiter.adjust(lease.request.tenant, lease.num_tokens - num_before, now)
        self._wake(admitted)

    @property
    def _clock(self) -> Clock:
        return self._injected_clock or asyncio.get_running_loop()

    def _enter(self, request: AdmissionRequest) -> Ticket:
        now = self._clock.time()
        self._expire(now)
        seconds = self._limiter.take(request.tenant, request.num_tokens, now)
        if seconds:
            raise RateLimited("the rate limit is reached", retry_after_seconds=_whole_seconds(seconds))
        offer = self._budget.offer(request, now + self._settings.queue_timeout_seconds)
        self._wake(offer.others)
        if isinstance(offer, Rejected):
            self._limiter.give_back(request.tenant, request.num_tokens, now)
            raise self._refusal(offer.reason, now)
        if isinstance(offer, Queued):
            self._waiting[offer.ticket] = asyncio.get_running_loop().create_future()
            self._set_timer()
        return offer.ticket

    def _leave(self, ticket: Ticket, request: AdmissionRequest, is_running: bool) -> None:
        now = self._clock.time()
        self._expire(now)
        lease = self._budget.leases.get(ticket)
        if lease is not None and is_running:
            num_used_tokens = request.num_prompt_tokens + lease.num_completion_tokens
            self._limiter.adjust(request.tenant, num_used_tokens - lease.num_tokens, now)
        else:
            # A request may have been admitted and cancelled before it could notice: it has used nothing.
            self._limiter.give_back(request.tenant, request.num_tokens, now)
        self._waiting.pop(ticket, None)
        self._wake(self._budget.release(ticket))
        self._set_timer()

    def _refusal(self, reason: RejectReason, now: float) -> MotorError:
        if reason is RejectReason.OVERSIZED:
            return RequestInvalid("the prompt and the expected output need more tokens than may be in flight")
        deadline = self._budget.next_deadline
        # By the earliest deadline a place is free, whatever the engines do.
        seconds = 0.0 if deadline is None else deadline - now
        return QueueFull("too many requests are waiting", retry_after_seconds=_whole_seconds(seconds))

    def _wake(self, admitted: Iterable[Ticket]) -> None:
        for ticket in admitted:
            waiting = self._waiting.pop(ticket, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    def _expire(self, now: float) -> None:
        deadline = self._budget.next_deadline
        if deadline is None or deadline > now:
            return
        expiry = self._budget.expire(now)
        for ticket in expiry.expired:
            waiting = self._waiting.pop(ticket)
            if not waiting.done():
                waiting.set_exception(AdmissionTimeout("the request was not admitted in time"))
        self._wake(expiry.admitted)

    def _set_timer(self) -> None:
        """Have one timer for the earliest deadline of all."""
        deadline = self._budget.next_deadline
        if deadline == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = None if deadline is None else self._clock.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_at = None
        self._expire(self._clock.time())
        self._set_timer()


def _whole_seconds(seconds: float) -> int:
    """Round up for `Retry-After`, and past what rounding alone would add; at least 1."""
    return max(ceil(seconds - 1e-6), 1)
