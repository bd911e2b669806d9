"""Where a request's time goes, by a clock that the test turns."""

import pytest

from motor.coordinator.telemetry.recent_requests import RecentRequests
from motor.coordinator.telemetry.stages import StageClock


class HandClock:
    """A clock that stands still until it is turned; mutable: `seconds`."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_stage_entered_again_adds_up() -> None:
    hand = HandClock()
    clock = StageClock(hand)
    for seconds in (0.25, 0.5):
        with clock.stage("derender"):
            hand.seconds += seconds
        hand.seconds += 10
    clock.add("total", 1.5)
    assert clock.seconds() == {"derender": 0.75, "total": 1.5}
    assert clock.as_milliseconds() == {"derender": 750.0, "total": 1500.0}


def test_a_stage_that_fails_is_booked() -> None:
    hand = HandClock()
    clock = StageClock(hand)

    def fail() -> None:
        with clock.stage("render"):
            hand.seconds += 2
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert clock.seconds() == {"render": 2.0}


def test_recent_requests_forget_the_oldest() -> None:
    recent = RecentRequests(capacity=2)
    for number, name in enumerate("abcb"):
        clock = StageClock(HandClock())
        clock.add("total", number)
        recent.remember(name, clock)
    assert recent.times_of("a") is None
    assert recent.times_of("b") == {"total": 3000.0}
    assert recent.times_of("c") == {"total": 2000.0}
