"""The event decoder gives the same events for every way of cutting the bytes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motor.coordinator.wire.sse import SseDecoder, SseOverflow, encode_event

STREAM = (
    b": keep-alive comment\n"
    b'data: {"a":1}\n\n'
    b'data: {"b":"\xf0\x9f\x8e\x89"}\r\n\r\n'
    b"event: message\rid: 7\rdata:no space\r\r"
    b"data: first\ndata: second\n\n"
    b"\n\n"
    b"data: \n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [b'{"a":1}', b'{"b":"\xf0\x9f\x8e\x89"}', b"no space", b"first\nsecond", b"", b"[DONE]"]


def decode(packets: list[bytes]) -> list[bytes]:
    decoder = SseDecoder()
    return [event for packet in packets for event in decoder.feed(packet)]


def test_whole_stream_in_one_packet() -> None:
    assert decode([STREAM]) == EVENTS


def test_one_byte_a_packet() -> None:
    assert decode([STREAM[i : i + 1] for i in range(len(STREAM))]) == EVENTS


@given(st.lists(st.integers(min_value=0, max_value=len(STREAM)), max_size=12))
def test_any_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert decode([STREAM[a:b] for a, b in itertools.pairwise(edges)]) == EVENTS


@given(
    st.lists(st.binary(max_size=20).filter(lambda b: b"\n" not in b and b"\r" not in b), max_size=8), st.integers(1, 30)
)
def test_what_is_encoded_is_decoded(payloads: list[bytes], packet_size: int) -> None:
    stream = b"".join(map(encode_event, payloads))
    assert decode([stream[i : i + packet_size] for i in range(0, len(stream), packet_size)]) == payloads


def test_an_event_without_its_blank_line_is_not_shown() -> None:
    assert decode([b"data: {}\n\ndata: cut"]) == [b"{}"]
    assert decode([b"data: {}\n\ndata: cut\n"]) == [b"{}"]


def test_a_five_megabyte_line_in_small_packets() -> None:
    payload = b"x" * 5_000_000
    stream = encode_event(payload)
    assert decode([stream[i : i + 1460] for i in range(0, len(stream), 1460)]) == [payload]


def test_an_endless_event_is_refused() -> None:
    decoder = SseDecoder(max_event_bytes=100)
    decoder.feed(b"data: " + b"x" * 90)
    with pytest.raises(SseOverflow):
        decoder.feed(b"x" * 20)
