"""How much may be in flight, and for whom."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite


class Oversized(StrEnum):
    """What becomes of a request that is larger than the whole budget."""

    ALONE = "alone"
    """It waits until nothing else is in flight, then runs by itself."""
    REFUSE = "refuse"
    """It is refused at once: it could never fit."""


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """One tenant's share.

    Attributes:
        weight: Share of the admitted tokens while several tenants of one priority wait; twice the weight, twice the
            tokens.
        max_inflight_tokens: The tenant's own budget inside the deployment's; `None` for no bound of its own.
        requests_per_minute: The tenant's rate; `None` for `FlowControlSettings.requests_per_minute`.
        tokens_per_minute: The tenant's rate; `None` for `FlowControlSettings.tokens_per_minute`.

    Raises:
        ValueError: A number is out of range.
    """

    weight: float = 1.0
    max_inflight_tokens: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        if not isfinite(self.weight):
            raise ValueError("weight must be finite")
        _require_positive(self, "weight", "max_inflight_tokens", "requests_per_minute", "tokens_per_minute")


@dataclass(frozen=True, slots=True)
class FlowControlSettings:
    """What the gate lets through.

    Attributes:
        max_inflight_tokens: Prompt plus expected output tokens of all admitted requests; `None` for no bound.
        max_queue_requests: Requests that may wait; 0 refuses whatever can't start at once.
        max_queue_tokens: Tokens that may wait, though one request of any size may wait alone; `None` for no bound.
        queue_timeout_seconds: How long a request may wait.
        oversized: What becomes of a request that is larger than the deployment's or its tenant's budget.
        tenants: Tenants with settings of their own; any other has the defaults of `TenantSettings`.
        requests_per_minute: Rate of every key; `None` for no limit.
        tokens_per_minute: Rate of every key, prompt and output tokens; `None` for no limit.

    Raises:
        ValueError: A number is out of range.
    """

    max_inflight_tokens: int | None = None
    max_queue_requests: int = 1024
    max_queue_tokens: int | None = None
    queue_timeout_seconds: float = 30.0
    oversized: Oversized = Oversized.ALONE
    tenants: Mapping[str, TenantSettings] = field(default_factory=dict)
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        if self.max_queue_requests < 0:
            raise ValueError("max_queue_requests must not be negative")
        positive = ("max_inflight_tokens", "max_queue_tokens", "queue_timeout_seconds")
        _require_positive(self, *positive, "requests_per_minute", "tokens_per_minute")

    def tenant(self, name: str) -> TenantSettings:
        """Return a tenant's settings, the defaults if it has none of its own."""
        return self.tenants.get(name, _DEFAULT_TENANT)


def _require_positive(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive")


_DEFAULT_TENANT = TenantSettings()
