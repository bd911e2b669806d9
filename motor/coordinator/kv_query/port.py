"""What the scheduler asks before it ranks: how much of a prompt each endpoint already holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from motor.coordinator.domain.tokens import PhysicalTokenIds


class EndpointKey(NamedTuple):
    """One data-parallel rank of an instance; each has a KV cache of its own."""

    instance_id: str
    data_parallel_rank: int = 0


@dataclass(frozen=True, slots=True)
class CacheScope:
    """What two prompts must share, beside their ids, to share KV blocks.

    Attributes:
        model: The base model as the engines' registrations name it, never a client's alias.
        lora: The adapter's name, `None` for the base model.
        cache_salt: The request's `cache_salt`.
    """

    model: str
    lora: str | None = None
    cache_salt: str | None = None


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where an endpoint publishes its KV events.

    Attributes:
        endpoint: Whose cache they tell of.
        model: The base model that it serves.
        address: ZMQ address of the event stream.
        replay_address: ZMQ address that repeats past events, `None` if the engine has none.
        topic: What the engine's events are published under.
        is_bound_here: True if the engine connects to us: what vLLM does with an address that names a host.
    """

    endpoint: EndpointKey
    model: str
    address: str
    replay_address: str | None = None
    topic: str = ""
    is_bound_here: bool = False


class KvQuery(Protocol):
    """Knows, as well as one can from outside, which endpoint holds which prefix."""

    async def matched_tokens(self, token_ids: PhysicalTokenIds, scope: CacheScope) -> Mapping[EndpointKey, int]:
        """Return the number of leading prompt tokens that each endpoint holds, without those that hold none.

        Never raises for a fault of the conductor: no answer means no matches, and is counted.
        """

    def note_routed(self, token_ids: PhysicalTokenIds, scope: CacheScope, endpoint: EndpointKey) -> None:
        """Take in that a prompt has just been sent to an endpoint, which will hold it soon."""


def address_of_rank(address: str, data_parallel_rank: int) -> str:
    """Return where a rank publishes: vLLM adds the rank to a TCP port.

    Raises:
        ValueError: The address has no port to add it to.
    """
    if data_parallel_rank == 0:
        return address
    if address.startswith("inproc://"):
        return f"{address}_dp{data_parallel_rank}"
    host, _, port = address.rpartition(":")
    if not address.startswith("tcp://") or not port.isdecimal():
        raise ValueError(f"{address} has no port for data-parallel rank {data_parallel_rank}")
    return f"{host}:{int(port) + data_parallel_rank}"
