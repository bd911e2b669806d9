"""A recorded SSE body taken apart strictly as vLLM frames it; whatever deviates is kept as a flaw, not repaired."""

from dataclasses import dataclass, field
from typing import Final

_DONE: Final = "[DONE]"
_PREFIX: Final = "data: "


@dataclass(frozen=True, slots=True)
class EventStream:
    """One recorded stream.

    Attributes:
        payloads: The data of every event but `[DONE]`, in order.
        flaws: Every kind of deviation from `data: <one line>\\n\\n` … `data: [DONE]\\n\\n`, in order of appearance.
    """

    payloads: tuple[str, ...]
    flaws: tuple[str, ...] = field(default=())


def parse_event_stream(body: bytes) -> EventStream:
    """Take a whole SSE body apart."""
    text = body.decode(errors="replace")
    flaws = ["no UTF-8"] if text.encode() != body else []
    *events, rest = text.split("\n\n")
    if rest:
        # A client never sees an event without its blank line: it is dropped, not shown.
        flaws.append("the last event has no blank line after it")
    payloads: list[str] = []
    num_done = 0
    for event in events:
        if not event.startswith(_PREFIX) or "\n" in event or "\r" in event:
            flaws.append("comment" if event.startswith(":") else "an event is no single `data: ` line")
        elif (payload := event.removeprefix(_PREFIX)) == _DONE:
            num_done += 1
        else:
            if num_done:
                flaws.append("data after [DONE]")
            payloads.append(payload)
    if num_done != 1:
        flaws.append(f"[DONE] sent {num_done} times")
    return EventStream(tuple(payloads), tuple(dict.fromkeys(flaws)))
