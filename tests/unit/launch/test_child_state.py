"""The life of a child, step by step."""

import itertools

import pytest

from motor.launch.child_state import (
    CALM_SECONDS,
    NO_RESTART,
    TRANSITIONS,
    ChildEvent,
    ChildRecord,
    ChildState,
    IllegalTransitionError,
    RestartPolicy,
)

L, A, X, R, S = ChildEvent.LAUNCH, ChildEvent.ANSWER, ChildEvent.EXIT, ChildEvent.RETRY, ChildEvent.STOP


def record_after(*events: ChildEvent, step_seconds: float = 1.0) -> ChildRecord:
    """Return the record after the events, one each `step_seconds`, starting at 0."""
    record = ChildRecord("engine-1", "http://127.0.0.1:1", 0.0)
    for number, event in enumerate(events, start=1):
        record = record.after(event, number * step_seconds, -9 if event is X else None)
    return record


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], ChildState.WAITING),
        ([L], ChildState.STARTING),
        ([L, A], ChildState.READY),
        ([L, X], ChildState.EXITED),
        ([L, A, X], ChildState.EXITED),
        ([L, A, X, R], ChildState.RESTARTING),
        ([L, A, X, R, L, A], ChildState.READY),
        ([L, A, S], ChildState.STOPPING),
        ([L, A, S, X], ChildState.STOPPED),
        ([L, S, X], ChildState.STOPPED),
        ([L, A, X, R, S], ChildState.STOPPED),
        ([S], ChildState.STOPPED),
    ],
)
def test_each_way_through_the_table(events: list[ChildEvent], state: ChildState) -> None:
    assert record_after(*events).state is state


@pytest.mark.parametrize("state", list(ChildState))
def test_a_step_that_is_not_in_the_table_raises_and_changes_nothing(state: ChildState) -> None:
    record = ChildRecord("engine-1", "http://127.0.0.1:1", 0.0, state=state)
    illegal = [event for event in ChildEvent if (state, event) not in TRANSITIONS]
    assert illegal
    for event in illegal:
        with pytest.raises(IllegalTransitionError, match=f"engine-1: {event} while {state}"):
            record.after(event, 1.0)
        assert record == ChildRecord("engine-1", "http://127.0.0.1:1", 0.0, state=state)


def test_ends_have_no_way_out() -> None:
    assert not [state for state, _ in TRANSITIONS if state is ChildState.STOPPED]
    assert [event for state, event in TRANSITIONS if state is ChildState.EXITED] == [R]


def test_an_exit_keeps_its_code_and_counts() -> None:
    record = record_after(L, A, X)
    assert (record.exit_code, record.pid, record.num_failures, record.was_ready) == (-9, None, 1, True)
    assert record.since == 3.0


def test_a_wanted_exit_is_no_failure() -> None:
    assert record_after(L, A, S, X).num_failures == 0


def test_failures_in_a_row_add_up_and_a_calm_time_forgets_them() -> None:
    crashes = [L, A, X, R] * 3
    assert record_after(*crashes).num_failures == 3
    assert record_after(*crashes, L, A, X, step_seconds=CALM_SECONDS).num_failures == 1


def test_pauses_double_up_to_the_bound_and_then_end() -> None:
    policy = RestartPolicy(max_failures=5, first_delay_seconds=1.0, max_delay_seconds=6.0)
    delays = []
    for num_failures in range(1, 7):
        events = [*itertools.chain.from_iterable([(L, A, X, R)] * (num_failures - 1)), L, A, X]
        delays.append(policy.delay_seconds(record_after(*events)))
    assert delays == [1.0, 2.0, 4.0, 6.0, 6.0, None]


def test_a_child_that_never_answered_stays_down() -> None:
    assert RestartPolicy().delay_seconds(record_after(L, X)) is None


def test_no_restart_means_none() -> None:
    assert NO_RESTART.delay_seconds(record_after(L, A, X)) is None
