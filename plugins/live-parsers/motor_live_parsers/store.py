"""A bounded store of values that are taken out while they are used."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counters since start, and what is kept now (`num_entries`, `num_tokens`)."""

    num_entries: int
    num_tokens: int
    num_hits: int
    num_misses: int
    num_evictions: int


@dataclass(frozen=True, slots=True)
class _Slot(Generic[_Value]):
    key: bytes
    value: _Value
    num_tokens: int
    expires_at_seconds: float


class TakeOutStore(Generic[_Value]):
    """Least recently put goes first; at most `max_entries` and `max_tokens`; nothing is older than `ttl_seconds`.

    `take` removes what it returns, so that a value is never in two hands. One key may hold several values: identical
    streams that run side by side have identical keys, and each needs a value of its own. Thread-safe.
    """

    def __init__(
        self, max_entries: int, max_tokens: int, ttl_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_entries = max_entries
        self._max_tokens = max_tokens
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._slots: OrderedDict[int, _Slot[_Value]] = OrderedDict()
        self._serials_of_key: dict[bytes, list[int]] = {}
        self._next_serial = 0
        self._num_tokens = 0
        self._num_hits = 0
        self._num_misses = 0
        self._num_evictions = 0

    def put(self, key: bytes, value: _Value, num_tokens: int) -> None:
        """Keep `value` under `key`, at the price of the oldest others; one that is too large alone is not kept."""
        with self._lock:
            serial = self._next_serial
            self._next_serial += 1
            self._slots[serial] = _Slot(key, value, num_tokens, self._clock() + self._ttl_seconds)
            self._serials_of_key.setdefault(key, []).append(serial)
            self._num_tokens += num_tokens
            self._evict()

    def take(self, key: bytes) -> _Value | None:
        """Remove and return the value put last under `key`; None if there is none (any more)."""
        with self._lock:
            self._evict()
            serials = self._serials_of_key.get(key)
            if serials is None:
                self._num_misses += 1
                return None
            self._num_hits += 1
            return self._remove(serials[-1]).value

    def statistics(self) -> StoreStatistics:
        """What is kept and how often it was found."""
        with self._lock:
            self._evict()
            return StoreStatistics(
                num_entries=len(self._slots),
                num_tokens=self._num_tokens,
                num_hits=self._num_hits,
                num_misses=self._num_misses,
                num_evictions=self._num_evictions,
            )

    def _evict(self) -> None:
        now = self._clock()
        while self._slots:
            serial, oldest = next(iter(self._slots.items()))
            is_full = len(self._slots) > self._max_entries or self._num_tokens > self._max_tokens
            if not is_full and oldest.expires_at_seconds > now:
                return
            self._remove(serial)
            self._num_evictions += 1

    def _remove(self, serial: int) -> _Slot[_Value]:
        slot = self._slots.pop(serial)
        serials = self._serials_of_key[slot.key]
        serials.remove(serial)
        if not serials:
            del self._serials_of_key[slot.key]
        self._num_tokens -= slot.num_tokens
        return slot
