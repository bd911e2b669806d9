"""Whose turn it is, against turns worked out by hand."""

import pytest

from motor.coordinator.flow_control.wait_queue import MAX_DEPARTED, AdmissionRequest, Ticket, Waiter, WaitQueue


class Line:
    """A queue in which tickets are names such as `a1`, the first letter being the tenant."""

    def __init__(self, weights: dict[str, float] | None = None) -> None:
        self.queue = WaitQueue(lambda tenant: (weights or {}).get(tenant, 1.0))
        self.names: list[str] = []

    def push(self, name: str, num_tokens: int, priority: int = 0, deadline: float = 10.0) -> Ticket:
        ticket = Ticket(len(self.names))
        self.names.append(name)
        self.queue.push(Waiter(ticket, AdmissionRequest(name[0], priority, num_tokens, 0), deadline))
        return ticket

    def grant(self, count: int) -> list[str]:
        granted = []
        for _ in range(count):
            waiter = self.queue.first(lambda _: True)
            assert waiter is not None
            self.queue.grant(waiter)
            granted.append(self.names[waiter.ticket])
        return granted


def test_one_tenant_is_first_come_first_served() -> None:
    line = Line()
    for name, num_tokens in (("a1", 500), ("a2", 1), ("a3", 50)):
        line.push(name, num_tokens)
    assert line.grant(3) == ["a1", "a2", "a3"]
    assert len(line.queue) == line.queue.num_tokens == 0
    assert line.queue.next_deadline is None


def test_equal_weights_share_tokens_and_not_requests() -> None:
    line = Line()
    for name in ("a1", "a2", "a3"):
        line.push(name, 30)
    for number in range(1, 7):
        line.push(f"b{number}", 10)
    # Clocks: a 0→30; b 0→10→20→30; a and b at 30, a2 came first: a →60; b →40→50→60; a3.
    assert line.grant(9) == ["a1", "b1", "b2", "b3", "a2", "b4", "b5", "b6", "a3"]


def test_twice_the_weight_is_twice_the_tokens() -> None:
    line = Line({"a": 2.0})
    for number in range(1, 5):
        line.push(f"a{number}", 10)
    for number in range(1, 3):
        line.push(f"b{number}", 10)
    # Clocks: a →5; b →10; a →10; a3 came before b2, both at 10: a →15; b →20; a.
    assert line.grant(6) == ["a1", "b1", "a2", "a3", "b2", "a4"]


def test_a_tenant_that_comes_later_does_not_catch_up() -> None:
    line = Line()
    for number in range(1, 6):
        line.push(f"a{number}", 10)
    assert line.grant(3) == ["a1", "a2", "a3"]  # a's clock is at 30, virtual time at 20
    for number in range(1, 4):
        line.push(f"b{number}", 10)
    # b starts at 20, not at 0: b →30; a4 and b2 at 30, a4 came first.
    assert line.grant(5) == ["b1", "a4", "b2", "a5", "b3"]


def test_leaving_the_queue_does_not_reset_a_clock() -> None:
    line = Line()
    line.push("a1", 100)
    for number in range(1, 4):
        line.push(f"b{number}", 10)
    assert line.grant(2) == ["a1", "b1"]
    line.push("a2", 100)  # a has nobody in line now, and still owes 100
    assert line.grant(3) == ["b2", "b3", "a2"]


def test_an_empty_priority_forgets_what_was_used() -> None:
    line = Line()
    line.push("a1", 1000)
    assert line.grant(1) == ["a1"]
    line.push("a2", 10)
    line.push("b1", 10)
    assert line.grant(2) == ["a2", "b1"]


def test_lower_numbers_go_first_and_do_not_pay_for_each_other() -> None:
    line = Line()
    line.push("a1", 10, priority=5)
    line.push("a2", 10, priority=-1)
    line.push("b1", 10, priority=5)
    line.push("b2", 10, priority=-1)
    line.push("a3", 1000, priority=-1)
    assert line.grant(5) == ["a2", "b2", "a3", "a1", "b1"]


def test_whoever_gives_up_has_cost_its_tenant_nothing() -> None:
    line = Line()
    given_up = line.push("a1", 1000)
    line.push("a2", 10)
    line.push("b1", 10)
    line.push("b2", 10)
    line.queue.remove(given_up)
    line.queue.remove(given_up)
    assert line.queue.num_tokens == 30
    assert line.grant(3) == ["a2", "b1", "b2"]


def test_the_overdue_leave_from_anywhere_in_the_queue() -> None:
    line = Line()
    tickets = [line.push(f"a{number}", 10, deadline=deadline) for number, deadline in ((1, 30.0), (2, 10.0), (3, 20.0))]
    assert line.queue.next_deadline == 10.0
    assert list(line.queue.overdue(9.999)) == []
    assert list(line.queue.overdue(20.0)) == [tickets[1], tickets[2]]
    assert line.queue.next_deadline == 30.0
    assert line.grant(1) == ["a1"]
    assert list(line.queue.overdue(1e9)) == []


def test_whoever_is_passed_over_keeps_its_turn() -> None:
    line = Line()
    for name in ("a1", "b1", "c1"):
        line.push(name, 10)
    found = line.queue.first(lambda waiter: waiter.request.tenant == "c")
    assert found is not None
    assert line.names[found.ticket] == "c1"
    assert line.queue.first(lambda _: False) is None
    assert line.grant(3) == ["a1", "b1", "c1"]


def test_names_that_never_come_back_are_forgotten() -> None:
    line = Line()
    line.push("z", 1)  # keeps the priority in use
    for number in range(3 * MAX_DEPARTED):
        line.push(chr(0x4E00 + number), 1)
        newest = line.queue.first(lambda waiter: waiter.request.tenant != "z")
        assert newest is not None
        line.queue.grant(newest)
        assert len(line.queue._classes[0].clocks) <= MAX_DEPARTED + 2
    assert line.grant(1) == ["z"]


def test_a_starved_priority_does_not_collect_those_who_gave_up() -> None:
    line = Line()
    first = line.push("a1", 1)
    for number in range(3 * MAX_DEPARTED):
        second = line.push(f"a{number}", 1)
        line.queue.remove(line.push(chr(0x4E00 + number), 1))
        line.queue.remove(first)
        first = second
        assert len(line.queue._classes[0].turns) <= MAX_DEPARTED + 5
    assert line.grant(1) == [line.names[first]]
    assert len(line.queue) == 0


@pytest.mark.parametrize("counts", [(-1, 5), (5, -1)])
def test_a_count_below_zero_is_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="negative"):
        AdmissionRequest("a", 0, *counts)
