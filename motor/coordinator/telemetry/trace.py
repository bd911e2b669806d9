"""W3C trace context: a child span for every peer, so that a trace shows our hop."""

import re

_TRACEPARENT = re.compile(r"^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$")


def child_trace_headers(traceparent: str | None, tracestate: str | None, span_id: bytes) -> dict[str, str]:
    """Return the trace headers for a peer; none if the client sent none, or an illegal one.

    Args:
        traceparent: The client's header.
        tracestate: The client's header; only forwarded with a legal `traceparent`.
        span_id: 8 random bytes, the id of our span.
    """
    match = _TRACEPARENT.match(traceparent or "")
    if match is None:
        return {}
    version, trace_id, parent_id, flags = match.group(1, 2, 3, 4)
    if (
        version == "ff"
        or (version == "00" and match.group(5) is not None)
        or int(trace_id, 16) == 0
        or int(parent_id, 16) == 0
        or not any(span_id)
    ):
        return {}
    headers = {"traceparent": f"00-{trace_id}-{span_id.hex()}-{flags}"}
    if tracestate:
        headers["tracestate"] = tracestate
    return headers
