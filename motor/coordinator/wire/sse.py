"""Server-sent events: bytes to events and back, at any packet boundary."""

DONE = b"[DONE]"
DONE_EVENT = b"data: [DONE]\n\n"

EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx must not collect events
]


class SseOverflow(ValueError):
    """One event is larger than the decoder's limit."""


def encode_event(payload: bytes) -> bytes:
    """Return one event whose data is `payload`, framed as vLLM frames it."""
    return b"data: " + payload + b"\n\n"


class SseDecoder:
    """Splits a byte stream into the data of its events; mutable: `_tail`, `_data`, `_held`.

    Accepts LF, CRLF and CR line ends, several `data:` lines an event, comment lines, events cut at any byte and any
    number of events a packet. An event that has no blank line after it when the stream ends is incomplete and never
    shown (as the HTML standard asks).
    """

    def __init__(self, max_event_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_event_bytes = max_event_bytes
        self._tail: list[bytes] = []
        self._data: list[bytes] = []
        self._held = 0

    def feed(self, packet: bytes) -> list[bytes]:
        """Return the data of every event that `packet` completes.

        Raises:
            SseOverflow: The unfinished event is over the limit.
        """
        if not self._tail and not self._data and b"\r" not in packet and packet.endswith(b"\n\n"):
            simple = self._feed_whole_events(packet)
            if simple is not None:
                return simple
        return self._feed_lines(packet)

    @staticmethod
    def _feed_whole_events(packet: bytes) -> list[bytes] | None:
        """The common case: whole single-line events, as vLLM writes them; `None` for anything else."""
        events = packet[:-2].split(b"\n\n")
        for event in events:
            if not event.startswith(b"data: ") or b"\n" in event:
                return None
        return [event[6:] for event in events]

    def _feed_lines(self, packet: bytes) -> list[bytes]:
        self._held += len(packet)
        if b"\n" not in packet and b"\r" not in packet:
            self._tail.append(packet)  # joined once, when the line ends: a line of many packets costs linear work
            self._check_limit()
            return []
        buffer = b"".join([*self._tail, packet]) if self._tail else packet
        # A lone CR at the very end may be half of a CRLF: keep it for the next packet.
        keep_cr = buffer.endswith(b"\r")
        lines = (buffer[:-1] if keep_cr else buffer).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest = lines.pop() + (b"\r" if keep_cr else b"")
        self._tail = [rest] if rest else []
        events = []
        for line in lines:
            if line:
                self._take_field(line)
            elif self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        self._held = len(rest) + sum(map(len, self._data))
        self._check_limit()
        return events

    def _take_field(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])

    def _check_limit(self) -> None:
        if self._held > self._max_event_bytes:
            raise SseOverflow(f"an event is over {self._max_event_bytes} bytes")
