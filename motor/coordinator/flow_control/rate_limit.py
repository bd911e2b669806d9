"""Requests and tokens per minute and key, as token buckets that hold one minute's worth."""

from dataclasses import dataclass

from motor.coordinator.flow_control.settings import FlowControlSettings

SLACK = 1e-6
"""What rounding may take from a level; far below one request or token."""
MAX_FULL_BUCKETS = 1024
"""Keys beyond those in use that are remembered; see `RateLimiter.take`."""


@dataclass(slots=True)
class TokenBucket:
    """A level that refills at a steady rate; mutable: `_level`, `_updated_at`.

    Args:
        per_minute: Capacity, and what flows in within a minute.
        now: Seconds of the caller's clock; the bucket is full then.
    """

    per_minute: float
    _updated_at: float
    _level: float

    def __init__(self, per_minute: float, now: float) -> None:
        self.per_minute = per_minute
        self._updated_at = now
        self._level = per_minute

    def seconds_until(self, amount: float, now: float) -> float:
        """Return how long until `amount` may be taken; 0 is now.

        More than the capacity is let through by a full bucket, which is then in debt.
        """
        self._refill(now)
        missing = min(amount, self.per_minute) - self._level
        return missing * 60 / self.per_minute if missing > SLACK else 0.0

    def take(self, amount: float, now: float) -> None:
        """Take `amount`, into debt if need be; a negative amount is given back."""
        self._refill(now)
        self._level -= amount

    def is_full(self, now: float) -> bool:
        """Whether a new bucket would be the same."""
        self._refill(now)
        return self._level >= self.per_minute - SLACK

    def _refill(self, now: float) -> None:
        # A clock that went back refills nothing, and starts over from where it is.
        elapsed = max(now - self._updated_at, 0.0)
        self._level = min(self._level + elapsed * self.per_minute / 60, self.per_minute)
        self._updated_at = now


@dataclass(frozen=True, slots=True)
class _KeyBuckets:
    """A key's buckets; `None` where it has no limit."""

    requests: TokenBucket | None
    tokens: TokenBucket | None

    def seconds_until(self, num_tokens: int, now: float) -> float:
        requests = self.requests.seconds_until(1, now) if self.requests else 0.0
        return max(requests, self.tokens.seconds_until(num_tokens, now) if self.tokens else 0.0)

    def take(self, num_requests: int, num_tokens: int, now: float) -> None:
        if self.requests:
            self.requests.take(num_requests, now)
        if self.tokens:
            self.tokens.take(num_tokens, now)

    def is_full(self, now: float) -> bool:
        return all(bucket is None or bucket.is_full(now) for bucket in (self.requests, self.tokens))


class RateLimiter:
    """The buckets of all keys; mutable: `_buckets`, `_sweep_at`."""

    def __init__(self, settings: FlowControlSettings) -> None:
        self._settings = settings
        self._buckets: dict[str, _KeyBuckets] = {}
        self._sweep_at = MAX_FULL_BUCKETS

    @property
    def num_keys(self) -> int:
        """Keys that are remembered."""
        return len(self._buckets)

    def take(self, key: str, num_tokens: int, now: float) -> float:
        """Take one request of `num_tokens`, or nothing.

        Returns:
            0 if taken, else the seconds until it could be.
        """
        buckets = self._of(key, now)
        seconds = buckets.seconds_until(num_tokens, now)
        if not seconds:
            buckets.take(1, num_tokens, now)
        return seconds

    def give_back(self, key: str, num_tokens: int, now: float) -> None:
        """Undo one `take`: the request was not served."""
        self._of(key, now).take(-1, -num_tokens, now)

    def adjust(self, key: str, num_more_tokens: int, now: float) -> None:
        """Take more tokens for a request that was let through, or give some back if negative."""
        if num_more_tokens:
            self._of(key, now).take(0, num_more_tokens, now)

    def _of(self, key: str, now: float) -> _KeyBuckets:
        buckets = self._buckets.get(key)
        if buckets is not None:
            return buckets
        requests_per_minute, tokens_per_minute = self._limits(key)
        if requests_per_minute is None and tokens_per_minute is None:
            return _UNLIMITED
        if len(self._buckets) >= self._sweep_at:
            # Keys may come from clients. A full bucket says nothing that a new one wouldn't; doubling keeps it cheap.
            self._buckets = {name: one for name, one in self._buckets.items() if not one.is_full(now)}
            self._sweep_at = 2 * len(self._buckets) + MAX_FULL_BUCKETS
        buckets = _KeyBuckets(_bucket(requests_per_minute, now), _bucket(tokens_per_minute, now))
        self._buckets[key] = buckets
        return buckets

    def _limits(self, key: str) -> tuple[int | None, int | None]:
        tenant, general = self._settings.tenant(key), self._settings
        requests, tokens = tenant.requests_per_minute, tenant.tokens_per_minute
        return (
            general.requests_per_minute if requests is None else requests,
            general.tokens_per_minute if tokens is None else tokens,
        )


def _bucket(per_minute: int | None, now: float) -> TokenBucket | None:
    return None if per_minute is None else TokenBucket(per_minute, now)


_UNLIMITED = _KeyBuckets(None, None)
