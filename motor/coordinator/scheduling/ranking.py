"""Which candidate is best; pure functions of what the scheduler knows."""

from collections.abc import Sequence

from motor.coordinator.domain.instance import Instance


def round_robin(candidates: Sequence[Instance], turn: int) -> Instance:
    """Return the candidate whose turn it is.

    Args:
        candidates: At least one.
        turn: Counts choices, from 0.
    """
    return candidates[turn % len(candidates)]
