"""Names for prefixes: a digest for each block boundary of a prompt.

A prompt is cut into spans of `SPAN_TOKENS` (a whole number of blocks). A prefix that ends inside a span is named by the
digest of where the span starts and the span's ids up to there. So a whole span costs one hash, whatever the block size,
and a look inside it costs one hash per block. The hash is the interpreter's keyed SipHash: names mean nothing outside
this process, and nobody outside can make two prefixes share one.
"""

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache

from motor.coordinator.kv_query.port import CacheScope

SPAN_TOKENS = 256
ID_BYTES = 4
_HEAD_SPANS = 8
"""Spans that are packed at first; most prompts that nobody holds end there."""


def num_span_blocks(block_size: int) -> int:
    """Return the number of blocks in a span."""
    return max(1, SPAN_TOKENS // block_size)


def root_digest(scope: CacheScope, block_size: int) -> int:
    """Name the empty prefix: prompts of different scopes or block sizes share no name at all."""
    return hash((scope.model, scope.lora, scope.cache_salt, block_size))


def prefix_digest(span_start: int, ids_from_there: bytes) -> int:
    """Name a prefix by its span's start and the packed ids since."""
    return hash((span_start, ids_from_there))


@lru_cache(maxsize=64)
def id_packer(num_ids: int) -> struct.Struct:
    """Return what packs that many token ids; it raises `struct.error` for an id that is not an unsigned 32-bit int."""
    return struct.Struct(f"={num_ids}I")


def pack_ids(token_ids: Sequence[int]) -> bytes:
    """Pack token ids.

    Raises:
        struct.error: An id is not an unsigned 32-bit integer.
    """
    return id_packer(len(token_ids)).pack(*token_ids)


class PromptPath:
    """A prompt's span ends, packed and hashed no further than somebody asks. Mutable: `ids`, `ends`.

    Attributes:
        num_blocks: How much of the prompt is named.
        span_blocks: Blocks in a span.
        block_bytes: Packed size of a block.
        ids: The packed ids, as far as anybody asked.
        ends: Names of the empty prefix and of those that end with a span, as far as anybody asked.

    Args:
        token_ids: The prompt.
        root: Name of the empty prefix.
        block_size: Tokens a block.
        num_blocks: How much of the prompt to name.
    """

    def __init__(self, token_ids: Sequence[int], root: int, block_size: int, num_blocks: int) -> None:
        self.num_blocks = max(0, num_blocks)
        self.span_blocks = num_span_blocks(block_size)
        self.block_bytes = ID_BYTES * block_size
        self._token_ids = token_ids
        self._block_size = block_size
        self.ids = b""
        self.ends = [root]

    def __iter__(self) -> Iterator[int]:
        """Yield the names of the prefixes that end with a span; the last span may be shorter. Once only.

        Raises:
            struct.error: An id is not an unsigned 32-bit integer.
        """
        span_tokens = self.span_blocks * self._block_size
        num_tokens = self.num_blocks * self._block_size
        head_tokens = min(span_tokens * _HEAD_SPANS, num_tokens)
        self.ids = pack_ids(self._token_ids[:head_tokens])
        yield from self._name_spans(0, head_tokens, span_tokens)
        if head_tokens < num_tokens:
            self.ids = pack_ids(self._token_ids)  # without a slice, which would take a third of the time again
            yield from self._name_spans(head_tokens, num_tokens, span_tokens)

    def _name_spans(self, first_token: int, end_token: int, span_tokens: int) -> Iterator[int]:
        ids, ends, end_bytes, span_bytes = self.ids, self.ends, end_token * ID_BYTES, span_tokens * ID_BYTES
        digest = ends[-1]
        for begin in range(first_token * ID_BYTES, end_bytes, span_bytes):
            digest = hash((digest, ids[begin : min(begin + span_bytes, end_bytes)]))
            ends.append(digest)
            yield digest

    def digest_at(self, num_blocks: int) -> int:
        """Name the prefix of so many blocks, at least one; only spans that have been iterated over are known."""
        span, num_rest = divmod(num_blocks, self.span_blocks)
        if not num_rest:
            return self.ends[span]
        end = num_blocks * self.block_bytes
        return prefix_digest(self.ends[span], self.ids[end - num_rest * self.block_bytes : end])
