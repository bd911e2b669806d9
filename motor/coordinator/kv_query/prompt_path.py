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


class Span:
    """A part of a prompt, at most `num_span_blocks` long.

    Attributes:
        start: Name of the prefix before it.
        num_blocks_before: Blocks in that prefix.
        num_blocks: Blocks in the span.
        digest: Name of the prefix up to the span's end.
    """

    __slots__ = ("_ids", "_stride", "digest", "num_blocks", "num_blocks_before", "start")

    def __init__(self, start: int, num_blocks_before: int, ids: bytes, stride: int) -> None:
        self.start = start
        self.num_blocks_before = num_blocks_before
        self.num_blocks = len(ids) // stride
        self.digest = prefix_digest(start, ids)
        self._ids = ids
        self._stride = stride

    @property
    def is_whole(self) -> bool:
        """Whether it is as long as a span can be; the last one of a prompt mostly isn't."""
        return self.num_blocks == num_span_blocks(self._stride // ID_BYTES)

    def digest_after(self, num_blocks: int) -> int:
        """Name the prefix that ends after so many of the span's blocks, at least one."""
        if num_blocks == self.num_blocks:
            return self.digest
        return prefix_digest(self.start, self._ids[: num_blocks * self._stride])


class PromptPath:
    """A prompt's spans, packed and hashed no further than somebody asks. Mutable: `_spans`.

    Args:
        token_ids: The prompt.
        root: Name of the empty prefix.
        block_size: Tokens a block.
        num_blocks: How much of the prompt to name.
    """

    def __init__(self, token_ids: Sequence[int], root: int, block_size: int, num_blocks: int) -> None:
        self._token_ids = token_ids
        self._root = root
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._span_blocks = num_span_blocks(block_size)
        self._spans: list[Span] = []

    def __iter__(self) -> Iterator[Span]:
        """Yield the spans in order.

        Raises:
            struct.error: An id is not an unsigned 32-bit integer.
        """
        stride = ID_BYTES * self._block_size
        whole = id_packer(self._span_blocks * self._block_size).pack
        start = self._root
        for before in range(0, self._num_blocks, self._span_blocks):
            end = min(before + self._span_blocks, self._num_blocks)
            ids = self._token_ids[before * self._block_size : end * self._block_size]
            packed = whole(*ids) if end - before == self._span_blocks else pack_ids(ids)
            span = Span(start, before, packed, stride)
            self._spans.append(span)
            yield span
            start = span.digest

    def digest_at(self, num_blocks: int) -> int:
        """Name the prefix of so many blocks, at least one; only spans that have been iterated over are known."""
        span = self._spans[(num_blocks - 1) // self._span_blocks]
        return span.digest_after(num_blocks - span.num_blocks_before)
