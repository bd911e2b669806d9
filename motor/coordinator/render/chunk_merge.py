"""Natural batching: which waiting chunks may share one derender call, and what they are together.

Each parsed derender call replays the whole output, so calls are what costs. Merging is exact for plain text; vLLM's
older parsers recognise a marker (`<think>`, `<tool_call>`) only when it stands alone, so chunks with a marker do.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice

import msgspec

from motor.coordinator.domain.generation import GenerateChoice
from motor.coordinator.render.prompt_stream import ends_with_stop_id


def num_mergeable(waiting: Sequence[GenerateChoice], marker_ids: AbstractSet[int] | None, *, is_first: bool) -> int:
    """Return how many of the waiting chunks, from the first on, may go into one call; at least 1.

    Args:
        waiting: Chunks of one choice in order, at least one.
        marker_ids: Added tokens of the vocabulary; `None` if unknown, then nothing is merged.
        is_first: Whether the first waiting chunk is the first of the stream, which always goes alone.
    """
    if is_first or marker_ids is None or _has_marker(waiting[0], marker_ids):
        return 1
    has_logprobs = waiting[0].logprobs is not None
    num = 1
    for choice in islice(waiting, 1, None):
        if _has_marker(choice, marker_ids) or (choice.logprobs is not None) != has_logprobs:
            break
        if choice.finish_reason is not None:
            break  # parsers flush at the end: what they flush must be all that the last chunk shows
        num += 1
    return num


def merged(choices: Sequence[GenerateChoice]) -> GenerateChoice:
    """Return one chunk that stands for several of one choice: ids joined, the last one's ending kept."""
    if len(choices) == 1:
        return choices[0]
    last = choices[-1]
    return msgspec.structs.replace(
        last,
        token_ids=list(chain.from_iterable(choice.token_ids or () for choice in choices)),
        logprobs=_joined_logprobs(choices),
    )


def split(choice: GenerateChoice) -> list[GenerateChoice]:
    """Return chunks of one id each that together are a chunk; the ending is the last one's."""
    ids = choice.token_ids or []
    if len(ids) < 2:
        return [choice]
    pieces = [
        GenerateChoice(
            index=choice.index,
            token_ids=[token_id],
            logprobs=None if choice.logprobs is None else {"content": [choice.logprobs["content"][at]]},
        )
        for at, token_id in enumerate(ids)
    ]
    last = msgspec.structs.replace(choice, token_ids=pieces[-1].token_ids, logprobs=pieces[-1].logprobs)
    return [*pieces[:-1], last]


def _has_marker(choice: GenerateChoice, marker_ids: AbstractSet[int]) -> bool:
    ids = choice.token_ids or ()
    if ends_with_stop_id(choice):
        ids = ids[:-1]  # the terminating id is not derendered
    return not marker_ids.isdisjoint(ids)


def _joined_logprobs(choices: Sequence[GenerateChoice]) -> object:
    if choices[0].logprobs is None:
        return None
    return {"content": [entry for choice in choices for entry in choice.logprobs["content"]]}
