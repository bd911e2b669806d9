"""What the Coordinator knows of an engine instance; its load lives in the scheduler's ledger, not here."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What an instance does in its topology (RFC: Handoff, Trigger, Union)."""

    PREFILL = "prefill"
    DECODE = "decode"
    UNION = "union"


@dataclass(frozen=True, slots=True)
class KvEvents:
    """Where an instance publishes what its KV cache holds; a data-parallel rank is added to TCP ports.

    Attributes:
        address: ZMQ address of the events.
        replay_address: ZMQ address that repeats past events, `None` if there is none.
        topic: What they are published under.
        is_bound_here: True if the engine connects to us.
    """

    address: str
    replay_address: str | None = None
    topic: str = ""
    is_bound_here: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """One engine instance, replaced whole when anything about it changes.

    Attributes:
        id: Unique name, shown in logs and metrics.
        role: Which legs it may serve.
        url: Base URL without trailing slash; may carry a path prefix.
        data_parallel_size: Number of data-parallel ranks behind the URL.
        kv_events: Where its KV events are published, if anywhere.
    """

    id: str
    role: Role
    url: str
    data_parallel_size: int = 1
    kv_events: KvEvents | None = None
