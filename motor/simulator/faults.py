"""Faults that a simulator shows on demand."""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import msgspec


class FaultKind(StrEnum):
    """What goes wrong."""

    REFUSE = "refuse"
    """The connection is reset before an answer."""
    STATUS = "status"
    """An HTTP error (`status`, `body`)."""
    HANG = "hang"
    """No answer ever."""
    DIE = "die_after_chunks"
    """The connection is reset after `after` stream events."""
    EOF = "eof_after_chunks"
    """The body ends cleanly after `after` stream events, without `[DONE]`."""
    STALL = "stall_after_chunks"
    """Nothing follows `after` stream events, and the connection stays open until the client leaves."""
    MALFORMED = "malformed_event_after"
    """An event that isn't JSON follows `after` good ones; then the stream goes on."""
    ERROR_EVENT = "error_event_after"
    """vLLM's in-stream error follows `after` events, then `[DONE]`."""
    SLOW = "slow"
    """All times are multiplied by `factor`."""
    FINISH = "finish_with"
    """The generation ends after `after` events with finish reason `stop` and the stop reason `reason`."""
    ABORT = "abort_after"
    """The generation ends after `after` events with finish reason `abort` and no ids."""
    KV_LOAD = "kv_load_failure"
    """A decode leg fails to load its KV blocks."""
    INVALID = "invalid_structure"
    """A well-formed answer without the fields that matter (Render: no ids, no chunk)."""


class Leg(StrEnum):
    """Which requests a fault concerns on an engine."""

    ANY = "any"
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(slots=True)
class Fault:
    """One fault; `num_hits` grows as it strikes.

    Attributes:
        kind: What goes wrong.
        times: How many requests it hits, in order of arrival; None for all.
        leg: Which leg it hits; a request without `kv_transfer_params` counts as decode.
        endpoint: `any`, or the name under which the simulator counts the request (`generate`, `render`, ...).
        after: Events that go out before.
        status: HTTP status of `status`.
        body: JSON body of `status`; None for vLLM's error object.
        factor: Multiplier of `slow`.
        reason: Stop reason of `finish_with`.
    """

    kind: FaultKind
    times: int | None = None
    leg: Leg = Leg.ANY
    endpoint: str = "any"
    after: int = 0
    status: int = 500
    body: Any = None
    factor: float = 1.0
    reason: str = "recomputed"
    num_hits: int = 0

    def __post_init__(self) -> None:
        """Accept the wire's strings."""
        self.kind = FaultKind(self.kind)
        self.leg = Leg(self.leg)

    @property
    def is_spent(self) -> bool:
        """Whether it has hit as many requests as it should."""
        return self.times is not None and self.num_hits >= self.times

    def concerns(self, leg: Leg, endpoint: str) -> bool:
        """Tell whether a request is among its victims."""
        return self.leg in (Leg.ANY, leg) and self.endpoint in ("any", "all", endpoint)


@dataclass(slots=True)
class RequestFaults:
    """The faults that one request meets, at most one of a kind."""

    by_kind: dict[FaultKind, Fault] = field(default_factory=dict)

    def get(self, kind: FaultKind) -> Fault | None:
        """Return the fault of a kind, if the request meets one."""
        return self.by_kind.get(kind)

    @property
    def slow_factor(self) -> float:
        """The multiplier of all times."""
        slow = self.by_kind.get(FaultKind.SLOW)
        return 1.0 if slow is None else slow.factor


NO_FAULTS = RequestFaults()


class FaultSet:
    """The faults in force; `faults` changes as they are set, struck and cleared."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.faults = list(faults)

    def set(self, kind: FaultKind | str, **fields: Any) -> Fault:
        """Put a fault in force, in place of one with the same kind, leg and endpoint.

        Args:
            kind: What goes wrong.
            fields: `Fault`'s other attributes.

        Returns:
            The fault; its `num_hits` tells how often it struck.
        """
        fault = Fault(FaultKind(kind), **fields)
        key = (fault.kind, fault.leg, fault.endpoint)
        self.faults = [other for other in self.faults if (other.kind, other.leg, other.endpoint) != key]
        self.faults.append(fault)
        return fault

    def clear(self, kind: FaultKind | str | None = None) -> None:
        """Remove the faults of a kind, or all."""
        self.faults = [] if kind is None else [fault for fault in self.faults if fault.kind != kind]

    def strike(self, leg: Leg, endpoint: str) -> RequestFaults:
        """Return what a new request meets, and count it."""
        if not self.faults:
            return NO_FAULTS
        met = RequestFaults()
        for fault in self.faults:
            if fault.kind not in met.by_kind and not fault.is_spent and fault.concerns(leg, endpoint):
                fault.num_hits += 1
                met.by_kind[fault.kind] = fault
        return met

    def describe(self) -> list[dict[str, Any]]:
        """Return all faults as JSON objects."""
        return [asdict(fault) for fault in self.faults]


_VALUE_FIELD = {
    FaultKind.STATUS: "status",
    FaultKind.SLOW: "factor",
    FaultKind.FINISH: "reason",
    FaultKind.DIE: "after",
    FaultKind.EOF: "after",
    FaultKind.STALL: "after",
    FaultKind.MALFORMED: "after",
    FaultKind.ERROR_EVENT: "after",
    FaultKind.ABORT: "after",
}
_ITEM = re.compile(r"^([a-z_]+)(?:=(.*))?$")
_WIRE_FIELDS = frozenset({"kind", "times", "leg", "endpoint", "after", "status", "body", "factor", "reason"})


def fault_from_json(value: object) -> Fault:
    """Make a fault of a JSON object.

    Raises:
        ValueError: An unknown field, kind or leg, or a value of a wrong type.
    """
    if not isinstance(value, dict) or "kind" not in value:
        raise ValueError("a fault is an object with a `kind`")
    if unknown := sorted(set(value) - _WIRE_FIELDS):
        raise ValueError(f"unknown fields of a fault: {', '.join(map(str, unknown))}")
    try:
        return msgspec.convert(value, Fault, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def parse_fault(text: str) -> Fault:
    """Make a fault of a command-line value such as `status=503,times=2,leg=prefill`.

    Raises:
        ValueError: It isn't one.
    """
    fields: dict[str, str] = {}
    for position, item in enumerate(text.split(",")):
        match = _ITEM.match(item.strip())
        if match is None:
            raise ValueError(f"not a fault: {text!r}")
        name, value = match[1], match[2]
        if position == 0:
            if name not in list(FaultKind):
                raise ValueError(f"{name!r} is none of {', '.join(FaultKind)}")
            kind = FaultKind(name)
            fields["kind"] = kind
            if value is not None:
                fields[_VALUE_FIELD.get(kind, "times")] = value
        elif value is None:
            raise ValueError(f"{name!r} in {text!r} has no value")
        else:
            fields[name] = value
    return fault_from_json(fields)
