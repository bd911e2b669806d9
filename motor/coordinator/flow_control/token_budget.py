"""How many tokens are in flight, and who is admitted next (RFC: flow control follows Render, so counts are exact).

A ticket goes `offered → leased → ended`, `offered → waiting → leased → ended`, or ends while it waits. Every method
that frees tokens returns the tickets that it admitted; the caller tells their owners.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from motor.coordinator.flow_control.settings import FlowControlSettings, Oversized
from motor.coordinator.flow_control.wait_queue import AdmissionRequest, Ticket, Waiter, WaitQueue


class RejectReason(StrEnum):
    """Why an offer was refused."""

    QUEUE_REQUESTS = "queue_requests"
    QUEUE_TOKENS = "queue_tokens"
    OVERSIZED = "oversized"


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request may run; its tokens are booked until `release`. `others` got in with it."""

    ticket: Ticket
    others: tuple[Ticket, ...] = ()


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits; a later call admits it, unless it is released before. `others` got in because of it."""

    ticket: Ticket
    others: tuple[Ticket, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request is refused, and has left nothing behind. `others` got in because of it."""

    reason: RejectReason
    others: tuple[Ticket, ...] = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """Tokens booked for one admitted request.

    Attributes:
        request: What was asked for.
        num_expected_tokens: Output tokens expected in all, as known now.
        num_completion_tokens: Output tokens that arrived.
    """

    request: AdmissionRequest
    num_expected_tokens: int
    num_completion_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """What is booked: an output that outgrows its estimate counts as it is."""
        return self.request.num_prompt_tokens + max(self.num_expected_tokens, self.num_completion_tokens)


class Expiry(NamedTuple):
    """What a deadline brought about: the tickets that ended, and those that got in because of it."""

    expired: tuple[Ticket, ...]
    admitted: tuple[Ticket, ...]


class _Usage(NamedTuple):
    num_leases: int
    num_tokens: int


_NOTHING = _Usage(0, 0)


class TokenBudget:
    """Books tokens; mutable: `_leases`, `_in_use_tokens`, `_usage`, `_queue`, `_next_ticket`.

    The sum of all leases is the budget in use, after every call. Corrections may take it over the bound; nobody is
    admitted then until it is back. The first in turn is waited for even if a later, smaller one would fit, so that
    large requests don't starve; only a tenant that is at its own bound is passed over, with everything it has waiting.
    """

    def __init__(self, settings: FlowControlSettings) -> None:
        self._settings = settings
        self._leases: dict[Ticket, Lease] = {}
        self._in_use_tokens = 0
        self._usage: dict[str, _Usage] = {}
        self._queue = WaitQueue(lambda tenant: settings.tenant(tenant).weight)
        self._next_ticket = 0

    @property
    def leases(self) -> Mapping[Ticket, Lease]:
        """The admitted requests, read only."""
        return MappingProxyType(self._leases)

    @property
    def in_use_tokens(self) -> int:
        """Tokens booked."""
        return self._in_use_tokens

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens that the requests in the queue need."""
        return self._queue.num_tokens

    @property
    def next_deadline(self) -> float | None:
        """When `expire` has something to do next."""
        return self._queue.next_deadline

    def tenant_in_use_tokens(self, tenant: str) -> int:
        """Return the tokens booked for one tenant."""
        return self._usage.get(tenant, _NOTHING).num_tokens

    def offer(self, request: AdmissionRequest, deadline: float) -> Admitted | Queued | Rejected:
        """Admit a request now, let it wait until `deadline`, or refuse it.

        An offer can let others in: when it takes its tenant to the tenant's bound, what that tenant has waiting is
        passed over, and no longer stands in the way.
        """
        if self._settings.oversized is Oversized.REFUSE and self._is_oversized(request):
            return Rejected(RejectReason.OVERSIZED)
        ticket = Ticket(self._next_ticket)
        self._next_ticket += 1
        self._queue.push(Waiter(ticket, request, deadline))
        admitted = self._admit()
        others = tuple(one for one in admitted if one != ticket)
        if ticket in admitted:
            return Admitted(ticket, others)
        reason = self._queue_overflow()
        if reason is None:
            return Queued(ticket, others)
        self._queue.remove(ticket)
        return Rejected(reason, others)

    def release(self, ticket: Ticket) -> tuple[Ticket, ...]:
        """End a ticket: give its lease back, or withdraw it from the queue; one that has ended changes nothing.

        Returns:
            The tickets admitted because of it.
        """
        lease = self._leases.pop(ticket, None)
        if lease is not None:
            self._book(lease.request.tenant, -1, -lease.num_tokens)
        else:
            self._queue.remove(ticket)
        return self._admit()

    def correct(
        self, ticket: Ticket, num_completion_tokens: int, num_expected_tokens: int | None = None
    ) -> tuple[Ticket, ...]:
        """Correct a lease's estimate.

        Args:
            ticket: Whose.
            num_completion_tokens: Output tokens that arrived so far.
            num_expected_tokens: A better estimate of all output tokens; `None` keeps the last one.

        Returns:
            The tickets admitted because of it.

        Raises:
            ValueError: The ticket has no lease, or a count is negative; nothing has changed.
        """
        lease = self._leases.get(ticket)
        if lease is None:
            raise ValueError("the ticket has no lease")
        num_expected = lease.num_expected_tokens if num_expected_tokens is None else num_expected_tokens
        if num_completion_tokens < 0 or num_expected < 0:
            raise ValueError("a count of tokens is negative")
        corrected = Lease(lease.request, num_expected, num_completion_tokens)
        self._leases[ticket] = corrected
        num_more = corrected.num_tokens - lease.num_tokens
        if not num_more:
            return ()
        self._book(lease.request.tenant, 0, num_more)
        # Growth lets others in only where it takes a tenant to its own bound, so that it is passed over.
        is_bounded = self._settings.tenant(lease.request.tenant).max_inflight_tokens is not None
        return self._admit() if num_more < 0 or is_bounded else ()

    def expire(self, now: float) -> Expiry:
        """End every waiter whose deadline is `now` or earlier."""
        expired = tuple(self._queue.overdue(now))
        return Expiry(expired, self._admit() if expired else ())

    def _admit(self) -> tuple[Ticket, ...]:
        admitted = []
        while (waiter := self._next()) is not None:
            self._queue.grant(waiter)
            request = waiter.request
            self._leases[waiter.ticket] = Lease(request, request.num_expected_tokens)
            self._book(request.tenant, 1, request.num_tokens)
            admitted.append(waiter.ticket)
        return tuple(admitted)

    def _next(self) -> Waiter | None:
        passed_over = set()

        def is_eligible(waiter: Waiter) -> bool:
            tenant = waiter.request.tenant
            bound = self._settings.tenant(tenant).max_inflight_tokens
            if tenant not in passed_over and _fits(waiter.request.num_tokens, bound, self._tenant_usage(tenant)):
                return True
            passed_over.add(tenant)
            return False

        waiter = self._queue.first(is_eligible)
        in_use = _Usage(len(self._leases), self._in_use_tokens)
        if waiter is None or not _fits(waiter.request.num_tokens, self._settings.max_inflight_tokens, in_use):
            return None
        return waiter

    def _tenant_usage(self, tenant: str) -> _Usage:
        return self._usage.get(tenant, _NOTHING)

    def _book(self, tenant: str, num_leases: int, num_tokens: int) -> None:
        self._in_use_tokens += num_tokens
        usage = self._tenant_usage(tenant)
        left = _Usage(usage.num_leases + num_leases, usage.num_tokens + num_tokens)
        if left.num_leases:
            self._usage[tenant] = left
        else:
            del self._usage[tenant]

    def _is_oversized(self, request: AdmissionRequest) -> bool:
        bounds = (self._settings.max_inflight_tokens, self._settings.tenant(request.tenant).max_inflight_tokens)
        return any(bound is not None and request.num_tokens > bound for bound in bounds)

    def _queue_overflow(self) -> RejectReason | None:
        """Judge the queue with its newest waiter; the only waiter may be of any size."""
        num_waiting, bound = len(self._queue), self._settings.max_queue_tokens
        if num_waiting > self._settings.max_queue_requests:
            return RejectReason.QUEUE_REQUESTS
        is_over = bound is not None and num_waiting > 1 and self._queue.num_tokens > bound
        return RejectReason.QUEUE_TOKENS if is_over else None


def _fits(num_tokens: int, bound: int | None, in_use: _Usage) -> bool:
    """Judge one bound; whatever finds it unused fits, so that a request over the whole bound runs alone."""
    return bound is None or in_use.num_leases == 0 or in_use.num_tokens + num_tokens <= bound
