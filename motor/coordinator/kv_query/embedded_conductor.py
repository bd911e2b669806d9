"""The embedded KV Conductor: an index in this process, fed by the engines' events. Mutable: what is registered."""

import time
from collections.abc import Callable, Mapping
from typing import Self

from motor.coordinator.domain.tokens import PhysicalTokenIds
from motor.coordinator.kv_query.event_feed import EventFeed
from motor.coordinator.kv_query.port import CacheScope, EndpointKey, EventSource
from motor.coordinator.kv_query.prefix_index import IndexStatistics, PrefixIndex
from motor.coordinator.kv_query.prompt_path import PromptPath, root_digest
from motor.coordinator.kv_query.speculation import Speculation


class EmbeddedConductor:
    """Answers from memory, on the caller's thread, without waiting for anything.

    Args:
        max_blocks: Blocks kept, summed over endpoints; each takes about 400 bytes.
        speculation_seconds: How long a routed prompt counts as held without an event that says so; 0 for not at all.
        replay_seconds: How long a replay of lost events may stand still before the endpoint's blocks are given up.
        on_fault: Called from the feed's thread with `cleared`, `malformed`, `unknown_event` or `bad_address`.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        max_blocks: int = 2_000_000,
        speculation_seconds: float = 2.0,
        replay_seconds: float = 2.0,
        on_fault: Callable[[str], None] = lambda kind: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._index = PrefixIndex(max_blocks=max_blocks)
        self._feed = EventFeed(self._index, replay_seconds=replay_seconds, on_fault=on_fault)
        self._speculation = Speculation(speculation_seconds) if speculation_seconds > 0 else None
        self._clock = clock

    def __enter__(self) -> Self:
        """Start the feed's thread."""
        self._feed.start()
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """End it and close all sockets."""
        self._feed.close()

    def register(self, source: EventSource) -> None:
        """Follow an endpoint's events; one that is registered already begins anew."""
        self.unregister(source.endpoint)
        self._feed.add(source)

    def unregister(self, endpoint: EndpointKey) -> None:
        """Leave an endpoint."""
        if self._speculation is not None and (bit := self._index.bit_of(endpoint)):
            self._speculation.forget(bit)
        self._feed.remove(endpoint)

    async def matched_tokens(self, token_ids: PhysicalTokenIds, scope: CacheScope) -> Mapping[EndpointKey, int]:
        """Return what the index knows, see `KvQuery`."""
        if self._speculation is not None:
            self._speculation.expire(self._clock())
        return self._index.matched_tokens(token_ids, scope, self._speculation)

    def note_routed(self, token_ids: PhysicalTokenIds, scope: CacheScope, endpoint: EndpointKey) -> None:
        """Count a prompt as held for a while, so that a burst with one prefix lands together."""
        bit = self._index.bit_of(endpoint)
        if self._speculation is None or not bit:
            return
        now_seconds = self._clock()
        for size in self._index.block_sizes():
            path = PromptPath(token_ids, root_digest(scope, size), size, len(token_ids) // size)
            self._speculation.add(path, bit, now_seconds)

    def statistics(self) -> IndexStatistics:
        """Count what the index holds."""
        return self._index.statistics()
