"""W3C trace context."""

import pytest

from motor.coordinator.telemetry.trace import child_trace_headers

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
LEGAL = f"00-{TRACE}-{PARENT}-01"
SPAN = bytes.fromhex("b7ad6b7169203331")


def test_a_child_span_keeps_trace_flags_and_state() -> None:
    assert child_trace_headers(LEGAL, "vendor=1", SPAN) == {
        "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
        "tracestate": "vendor=1",
    }


def test_without_a_state_none_is_made() -> None:
    assert child_trace_headers(LEGAL, None, SPAN).keys() == {"traceparent"}


def test_a_later_version_is_answered_in_ours() -> None:
    headers = child_trace_headers(f"01-{TRACE}-{PARENT}-00-more", None, SPAN)
    assert headers == {"traceparent": f"00-{TRACE}-{SPAN.hex()}-00"}


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        "",
        "nonsense",
        LEGAL.upper(),
        LEGAL[:-1],
        LEGAL + "-more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
    ],
)
def test_an_illegal_parent_is_dropped_with_its_state(traceparent: str | None) -> None:
    assert child_trace_headers(traceparent, "vendor=1", SPAN) == {}


def test_an_all_zero_span_is_refused() -> None:
    assert child_trace_headers(LEGAL, None, bytes(8)) == {}
