"""Which sidecar processes new requests are rendered by."""

from motor.coordinator.render.availability import FAULTS_TO_SUSPEND, Availability


def test_only_faults_in_a_row_suspend() -> None:
    availability = Availability(["a", "b"])
    for _ in range(5):
        for _ in range(FAULTS_TO_SUSPEND - 1):
            assert not availability.failed("a")
        assert not availability.answered("a")
    assert availability.available == ["a", "b"]


def test_a_suspended_process_is_probed_until_it_answers() -> None:
    availability = Availability(["a", "b"])
    assert [availability.failed("a") for _ in range(FAULTS_TO_SUSPEND)] == [False] * (FAULTS_TO_SUSPEND - 1) + [True]
    assert (availability.available, availability.suspended) == (["b"], ["a"])
    assert not availability.failed("a")  # calls that were under way: told once is enough
    assert availability.answered("a")
    assert (availability.available, availability.suspended) == (["a", "b"], [])
    assert not availability.failed("a")  # it starts anew
    assert availability.available == ["a", "b"]


def test_none_may_be_left() -> None:
    availability = Availability(["a"])
    for _ in range(FAULTS_TO_SUSPEND):
        availability.failed("a")
    assert availability.available == []
