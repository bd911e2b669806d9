"""What is admitted, what waits and what is refused."""

from typing import Any

import pytest

from motor.coordinator.flow_control.settings import FlowControlSettings, Oversized, TenantSettings
from motor.coordinator.flow_control.token_budget import (
    Admitted,
    Queued,
    Rejected,
    RejectReason,
    TokenBudget,
)
from motor.coordinator.flow_control.wait_queue import AdmissionRequest, Ticket


def budget_of(max_inflight_tokens: int | None = 100, **settings: Any) -> TokenBudget:
    return TokenBudget(FlowControlSettings(max_inflight_tokens=max_inflight_tokens, **settings))


def offer(
    budget: TokenBudget, num_tokens: int, tenant: str = "a", priority: int = 0, deadline: float = 10.0
) -> Admitted | Queued | Rejected:
    """Offer a prompt of all tokens but one, and one expected token."""
    return budget.offer(AdmissionRequest(tenant, priority, num_tokens - 1, 1), deadline)


def admitted(budget: TokenBudget, num_tokens: int, tenant: str = "a", priority: int = 0) -> Ticket:
    answer = offer(budget, num_tokens, tenant, priority)
    assert isinstance(answer, Admitted)
    return answer.ticket


def queued(
    budget: TokenBudget, num_tokens: int, tenant: str = "a", priority: int = 0, deadline: float = 10.0
) -> Ticket:
    answer = offer(budget, num_tokens, tenant, priority, deadline)
    assert isinstance(answer, Queued)
    return answer.ticket


def test_tokens_are_booked_and_given_back() -> None:
    budget = budget_of()
    first, second = admitted(budget, 60), admitted(budget, 40, "b")
    assert (budget.in_use_tokens, budget.tenant_in_use_tokens("a"), budget.tenant_in_use_tokens("b")) == (100, 60, 40)
    third = queued(budget, 1)
    assert (budget.num_waiting, budget.num_waiting_tokens) == (1, 1)
    assert budget.release(second) == (third,)
    assert budget.release(second) == ()
    assert budget.in_use_tokens == 61
    budget.release(first)
    budget.release(third)
    assert (budget.in_use_tokens, len(budget.leases), budget.tenant_in_use_tokens("a")) == (0, 0, 0)


def test_without_a_bound_everything_is_admitted_and_counted() -> None:
    budget = budget_of(None)
    admitted(budget, 10**9)
    admitted(budget, 10**9)
    assert budget.in_use_tokens == 2 * 10**9


def test_a_large_first_is_waited_for() -> None:
    budget = budget_of()
    running = admitted(budget, 60)
    large, small = queued(budget, 80), queued(budget, 10, "b")
    assert budget.release(running) == (large, small)


def test_a_lower_number_overtakes_where_a_higher_one_waits() -> None:
    budget = budget_of()
    running = admitted(budget, 60)
    later = queued(budget, 80, priority=1)
    sooner = admitted(budget, 40, "b", priority=0)
    assert budget.release(running) == ()
    assert budget.release(sooner) == (later,)


def test_a_tenant_at_its_bound_is_passed_over_with_all_that_it_has_waiting() -> None:
    budget = budget_of(tenants={"a": TenantSettings(max_inflight_tokens=50)})
    running = admitted(budget, 30)
    large = queued(budget, 40)
    small = queued(budget, 5, priority=1)  # would fit, but must not starve its tenant's own large one
    admitted(budget, 60, "b", priority=2)
    assert budget.release(running) == (large,)
    assert budget.release(large) == (small,)


def test_an_offer_that_takes_its_tenant_to_its_bound_lets_others_by() -> None:
    budget = budget_of(tenants={"a": TenantSettings(max_inflight_tokens=60)})
    admitted(budget, 60, "x")
    queued(budget, 50, "a", priority=1)
    behind = queued(budget, 10, "b", priority=1)
    answer = offer(budget, 20, "a", priority=0)
    assert isinstance(answer, Admitted)
    assert answer.others == (behind,)


def test_growth_that_takes_a_tenant_to_its_bound_lets_others_by() -> None:
    budget = budget_of(tenants={"a": TenantSettings(max_inflight_tokens=60)})
    admitted(budget, 60, "x")
    running = admitted(budget, 10, "a")
    queued(budget, 50, "a")
    behind = queued(budget, 10, "b")
    assert budget.correct(running, 12) == (behind,)


def test_the_larger_than_everything_runs_alone() -> None:
    budget = budget_of()
    running = admitted(budget, 1)
    giant, small = queued(budget, 500), queued(budget, 1, "b")
    assert budget.release(running) == (giant,)
    assert budget.in_use_tokens == 500
    assert budget.release(giant) == (small,)


def test_alone_means_beside_nothing_even_if_that_counts_for_nothing() -> None:
    budget = budget_of()
    running = budget.offer(AdmissionRequest("b", 0, 0, 0), 10.0)
    assert isinstance(running, Admitted)
    giant = queued(budget, 500)
    assert budget.release(running.ticket) == (giant,)


def test_the_larger_than_its_tenant_runs_alone_in_it() -> None:
    budget = budget_of(tenants={"a": TenantSettings(max_inflight_tokens=10)})
    running, other = admitted(budget, 5), admitted(budget, 20, "b")
    giant = queued(budget, 50)
    assert budget.release(other) == ()
    assert budget.release(running) == (giant,)


@pytest.mark.parametrize("tenant", ["a", "b"])
def test_the_oversized_may_be_refused(tenant: str) -> None:
    tenants = {"b": TenantSettings(max_inflight_tokens=50)}
    budget = budget_of(oversized=Oversized.REFUSE, tenants=tenants)
    limit = 50 if tenant == "b" else 100
    assert offer(budget, limit + 1, tenant) == Rejected(RejectReason.OVERSIZED)
    admitted(budget, limit, tenant)


def test_the_queue_is_bounded_in_requests() -> None:
    budget = budget_of(max_queue_requests=2)
    running = admitted(budget, 100)
    tickets = [queued(budget, 1), queued(budget, 1)]
    assert offer(budget, 1) == Rejected(RejectReason.QUEUE_REQUESTS)
    assert (budget.num_waiting, budget.num_waiting_tokens, budget.in_use_tokens) == (2, 2, 100)
    assert list(budget.release(running)) == tickets


def test_without_a_queue_what_fits_is_admitted() -> None:
    budget = budget_of(max_queue_requests=0)
    admitted(budget, 60)
    assert offer(budget, 41) == Rejected(RejectReason.QUEUE_REQUESTS)
    admitted(budget, 40)


def test_the_queue_is_bounded_in_tokens_but_takes_one_of_any_size() -> None:
    budget = budget_of(max_queue_tokens=20)
    admitted(budget, 100)
    large = queued(budget, 90)
    assert offer(budget, 1) == Rejected(RejectReason.QUEUE_TOKENS)
    budget.release(large)
    queued(budget, 15)
    queued(budget, 5)
    assert offer(budget, 1) == Rejected(RejectReason.QUEUE_TOKENS)


def test_output_beyond_its_estimate_counts_as_it_is() -> None:
    budget = budget_of()
    running = admitted(budget, 60)  # 59 of prompt, 1 expected
    for num_completion, in_use in ((0, 60), (1, 60), (2, 61), (50, 109)):
        assert budget.correct(running, num_completion) == ()
        assert budget.in_use_tokens == budget.tenant_in_use_tokens("a") == in_use
    waiting = queued(budget, 1)
    assert budget.release(running) == (waiting,)


def test_a_better_estimate_lets_others_in() -> None:
    budget = budget_of()
    running = budget.offer(AdmissionRequest("a", 0, 10, 90), 10.0)
    assert isinstance(running, Admitted)
    waiting = queued(budget, 50)
    assert budget.correct(running.ticket, 30, num_expected_tokens=41) == ()
    assert budget.correct(running.ticket, 30, num_expected_tokens=35) == (waiting,)
    assert budget.in_use_tokens == 95
    assert budget.correct(running.ticket, 40) == ()
    assert budget.in_use_tokens == 100


def test_an_illegal_correction_changes_nothing() -> None:
    budget = budget_of()
    running = admitted(budget, 60)
    waiting = queued(budget, 60)
    for ticket, num_completion, num_expected in ((running, -1, None), (running, 0, -1), (waiting, 1, None)):
        with pytest.raises(ValueError, match=r"negative|no lease"):
            budget.correct(ticket, num_completion, num_expected)
    budget.release(running)
    with pytest.raises(ValueError, match="no lease"):
        budget.correct(running, 1)
    assert budget.in_use_tokens == 60


def test_a_deadline_ends_the_wait_and_makes_way() -> None:
    budget = budget_of()
    running = admitted(budget, 60)
    large = queued(budget, 80, deadline=5.0)
    small = queued(budget, 10, deadline=9.0)
    assert budget.next_deadline == 5.0
    assert budget.expire(4.9) == ((), ())
    assert budget.expire(5.0) == ((large,), (small,))
    assert budget.next_deadline is None
    assert budget.release(large) == ()
    assert set(budget.leases) == {running, small}


def test_a_waiter_that_withdraws_makes_way() -> None:
    budget = budget_of()
    admitted(budget, 60)
    large, small = queued(budget, 80), queued(budget, 10)
    assert budget.release(large) == (small,)


def test_weights_hold_while_the_budget_is_short() -> None:
    budget = budget_of(10, tenants={"a": TenantSettings(weight=2)})
    running = admitted(budget, 10, "x")
    names = {queued(budget, 10, tenant): tenant for tenant in "aaaabb"}
    order = ""
    for _ in range(6):
        [running] = budget.release(running)
        order += names[running]
    # By hand, as in the queue's own test: a's clock runs at half speed, ties go to the first that came.
    assert order == "abaaba"


@pytest.mark.parametrize(
    "settings",
    [
        {"max_inflight_tokens": 0},
        {"max_queue_requests": -1},
        {"max_queue_tokens": 0},
        {"queue_timeout_seconds": 0.0},
        {"requests_per_minute": 0},
        {"tokens_per_minute": -5},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        FlowControlSettings(**settings)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_a_weight_is_above_zero_and_finite(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        TenantSettings(weight=weight)
