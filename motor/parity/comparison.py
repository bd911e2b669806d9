"""Two recorded answers to one request: everything in which they differ."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from motor.parity.chunk_shape import ChunkShape, collapsed, differs_by_boundaries_only
from motor.parity.difference import Difference, Tolerance
from motor.parity.documented import Json, tolerance_of
from motor.parity.event_stream import EventStream, parse_event_stream
from motor.parity.joined_stream import JoinedStream, join_stream
from motor.parity.json_comparison import differing_values, repeated_keys, shown, writing_traits
from motor.parity.untold import set_aside, untold_paths


@dataclass(frozen=True, slots=True)
class Answer:
    """One recorded HTTP answer.

    Attributes:
        status: The HTTP status; 0 when the peer closed or refused the connection or did not answer in time.
        content_type: The `Content-Type` header as sent, or `""`.
        body: The whole body; the fault in words when `status` is 0.
        chain: The `x-motor-chain` header, or `""`.
    """

    status: int
    content_type: str
    body: bytes
    chain: str = ""

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of server-sent events."""
        return self.content_type.startswith("text/event-stream")


def compare_answers(native: Answer, ours: Answer, *, is_cache_comparable: bool = True) -> list[Difference]:
    """Return every difference of the two answers, the documented ones marked as such.

    Args:
        native: What native vLLM answered.
        ours: What the Coordinator answered to the same request.
        is_cache_comparable: Whether both sides were sure to meet equally filled prefix caches for this request.
    """
    if native.status == 0:
        return [Difference("$connection", _excerpt(native), _excerpt(ours))]
    if native.status != ours.status:
        return [
            Difference("$status", str(native.status), str(ours.status)),
            Difference("$body", _excerpt(native), _excerpt(ours)),
        ]
    differences = []
    if native.content_type != ours.content_type:
        differences.append(Difference("$content_type", native.content_type, ours.content_type))
    if native.is_event_stream and ours.is_event_stream:
        found = _compare_streams(native.body, ours.body, is_cache_comparable)
    else:
        found = _compare_documents(native.body, ours.body, is_cache_comparable)
    return [*differences, *found]


def num_events(answer: Answer) -> int:
    """Return how many events a streamed answer has, `[DONE]` included; 0 for any other answer."""
    return answer.body.count(b"\n\n") if answer.is_event_stream else 0


def _excerpt(answer: Answer) -> str:
    return shown(answer.body.decode(errors="replace"))


def _parsed(text: str) -> tuple[bool, Json]:
    try:
        return True, json.loads(text)
    except ValueError:
        return False, text


def _compare_documents(native: bytes, ours: bytes, is_cache_comparable: bool) -> Iterator[Difference]:
    native_text, our_text = native.decode(errors="replace"), ours.decode(errors="replace")
    native_is_json, native_value = _parsed(native_text)
    our_is_json, our_value = _parsed(our_text)
    if not (native_is_json and our_is_json):
        if native != ours:
            yield Difference("$body", shown(native_text), shown(our_text))
        return
    yield from _compare_writing([native_text], [our_text])
    untold = untold_paths([native_value], [our_value])
    yield from _untold_differences(untold)
    yield from _classified(set_aside(native_value, untold), set_aside(our_value, untold), "", is_cache_comparable)


def _untold_differences(paths: Iterable[tuple[str, ...]]) -> Iterator[Difference]:
    for path in paths:
        yield Difference(".".join(path), "told", "not told", Tolerance.NOT_TOLD)


def _compare_writing(native: Sequence[str], ours: Sequence[str]) -> Iterator[Difference]:
    native_traits, our_traits = writing_traits(native), writing_traits(ours)
    if native_traits != our_traits:
        yield Difference("$writing", ", ".join(native_traits), ", ".join(our_traits))
    native_repeated, our_repeated = (
        ", ".join(sorted({key for text in texts for key in repeated_keys(text)})) for texts in (native, ours)
    )
    if native_repeated != our_repeated:
        yield Difference("$repeated_keys", native_repeated, our_repeated)


def _classified(native: Json, ours: Json, path: str, is_cache_comparable: bool) -> Iterator[Difference]:
    for where, left, right in differing_values(native, ours, path):
        tolerance = tolerance_of(where, left, right, is_cache_comparable=is_cache_comparable)
        yield Difference(where, shown(left), shown(right), tolerance)


def _compare_streams(native: bytes, ours: bytes, is_cache_comparable: bool) -> Iterator[Difference]:
    streams = [parse_event_stream(body) for body in (native, ours)]
    native_stream, our_stream = streams
    if native_stream.flaws != our_stream.flaws:
        yield Difference("$framing", shown(list(native_stream.flaws)), shown(list(our_stream.flaws)))
    parsed = [[_parsed(payload) for payload in stream.payloads] for stream in streams]
    if not all(is_json for side in parsed for is_json, _ in side):
        yield from _compare_payloads(native_stream, our_stream)
        return
    yield from _compare_writing(native_stream.payloads, our_stream.payloads)
    native_values, our_values = ([value for _, value in side] for side in parsed)
    untold = untold_paths(native_values, our_values)
    yield from _untold_differences(untold)
    native_joined, our_joined = (
        join_stream([set_aside(value, untold) for value in values]) for values in (native_values, our_values)
    )
    yield from _compare_joined(native_joined, our_joined, is_cache_comparable)


def _compare_payloads(native: EventStream, ours: EventStream) -> Iterator[Difference]:
    if native.payloads != ours.payloads:
        yield Difference("$payloads", shown(list(native.payloads)), shown(list(ours.payloads)))


def _compare_joined(native: JoinedStream, ours: JoinedStream, is_cache_comparable: bool) -> Iterator[Difference]:
    yield from _classified(native.answer, ours.answer, "", is_cache_comparable)
    if len(native.others) != len(ours.others):
        yield Difference("$other_chunks", shown(native.others), shown(ours.others))
    for left, right in zip(native.others, ours.others, strict=False):
        yield from _classified(left, right, "", is_cache_comparable)
    if native.openers != ours.openers:
        yield Difference("$openers", shown(native.openers), shown(ours.openers))
    if sorted(set(native.drifting)) != sorted(set(ours.drifting)):
        yield Difference("$drifting", shown(list(native.drifting)), shown(list(ours.drifting)))
    for index in sorted(native.shapes.keys() & ours.shapes.keys()):
        native_shapes, our_shapes = collapsed(native.shapes[index]), collapsed(ours.shapes[index])
        if native_shapes != our_shapes:
            is_covered = differs_by_boundaries_only(native_shapes, our_shapes)
            yield Difference(
                f"choices[{index}].$chunk_shapes",
                _shown_shapes(native_shapes, our_shapes),
                _shown_shapes(our_shapes, native_shapes),
                Tolerance.CHUNK_BOUNDARIES if is_covered else None,
            )


def _shown_shapes(shapes: Sequence[ChunkShape], others: Sequence[ChunkShape]) -> str:
    """Return the shapes that only one side has; the order of all deltas when both have the same ones."""
    own = [f"{shape.outer} {shape.delta}" for shape in dict.fromkeys(shapes) if shape not in others]
    return " | ".join(own) if own else "in order: " + " | ".join(shape.delta for shape in shapes)
