"""The `stream_state` of one choice, as we carry it (RFC: Coordinator 保存最新已提交状态).

Two kinds of sidecar answer two kinds of state. Without a parser it is small and opaque, and goes back as it came. With
a parser it is the whole output so far, which we know ourselves: only the few members that the sidecar alone knows are
kept, and the rest is written anew when it is needed, or not at all where the sidecar keeps the parser alive.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec

from motor.coordinator.wire.openai import encode_json


class _AnsweredState(msgspec.Struct):
    """The members of an answered state that tell its kind, and those that only a sidecar with a parser knows."""

    output_chunk_lens: msgspec.Raw = msgspec.Raw(b"[]")
    role_sent: bool = False
    tools_streamed: bool = False
    last_tool_call_ids: msgspec.Raw = msgspec.Raw(b"[]")


_answered = msgspec.json.Decoder(_AnsweredState)


@dataclass(frozen=True, slots=True)
class DerenderState:
    """State after one call.

    Attributes:
        carried: The whole state of a sidecar without a parser, or the small members of one with a parser.
        is_parsed: Which of the two.
        continuation: Names the parser that is kept alive, good for one call; `None` if none is.
        base_url: The sidecar process that keeps it.
    """

    carried: bytes = b"null"
    is_parsed: bool = False
    continuation: str | None = None
    base_url: str | None = None


BEFORE_FIRST_CALL = DerenderState()


def answered_state(raw: bytes, num_output_ids: int) -> DerenderState:
    """Return the state that a standard derender call answered.

    Args:
        raw: The answer's `stream_state`.
        num_output_ids: How many ids the choice has had, this call's included.
    """
    answered = _answered.decode(raw)
    if num_output_ids == 0 or bytes(answered.output_chunk_lens) == b"[]":
        return DerenderState(bytes(raw))
    small = {
        "role_sent": answered.role_sent,
        "tools_streamed": answered.tools_streamed,
        "last_tool_call_ids": answered.last_tool_call_ids,
    }
    return DerenderState(encode_json(small), is_parsed=True)


def whole_state(state: DerenderState, output_ids: Sequence[int], chunk_lens: Sequence[int]) -> bytes:
    """Return the `stream_state` for a call that finds nothing kept alive.

    Args:
        state: After the last call.
        output_ids: All ids that were derendered.
        chunk_lens: Into which calls' chunks they are divided; sums up to their number.
    """
    if not state.is_parsed:
        return state.carried
    history = encode_json({"output_token_ids": output_ids, "output_chunk_lens": chunk_lens})
    return state.carried[:-1] + b"," + history[1:]


def extend_chunk_lens(chunk_lens: list[int], ids: Sequence[int], marker_ids: AbstractSet[int] | None) -> None:
    """Note one more derendered chunk in `chunk_lens`, joined to the one before where a replay parses both alike.

    Replaying fewer chunks costs the sidecar less. As with merging, the first chunk stays alone, and so does every
    chunk with a marker; negative numbers of `chunk_lens` mark those that must not be joined to.
    """
    if not ids:
        return
    is_alone = not chunk_lens or marker_ids is None or not marker_ids.isdisjoint(ids)
    if is_alone:
        chunk_lens.append(-len(ids))
    elif chunk_lens[-1] < 0:
        chunk_lens.append(len(ids))
    else:
        chunk_lens[-1] += len(ids)
