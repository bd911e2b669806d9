"""How long a stream waits before its next derender call, so that no stream takes the sidecar from the others."""

FREE_SECONDS = 0.005
"""A call this short replays next to nothing: the sidecar keeps up, and nobody waits."""

REST_RATIO = 3.0
"""Longer calls are followed by so many times their own length of rest."""


def rest_seconds(call_seconds: float, max_gap_seconds: float) -> float:
    """Return the rest after a call: it grows with the call, until call and rest together reach the visible gap.

    Args:
        call_seconds: How long the last call took, queueing included.
        max_gap_seconds: The bound on gaps between visible chunks.
    """
    if call_seconds < FREE_SECONDS:
        return 0.0
    # The next call will take about as long as this one, and its text is seen at its end.
    return min(REST_RATIO * call_seconds, max(0.0, max_gap_seconds - call_seconds))
