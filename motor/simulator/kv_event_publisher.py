"""An engine's KV event publisher over ZMQ, with vLLM's frames and replay endpoint, and with faults on demand."""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
_encode = msgspec.msgpack.Encoder().encode


class KvEventPublisher:
    """Publishes batches under rising numbers. Mutable: everything.

    Attributes:
        address: Where to subscribe, once it has started.
        replay_address: Where to ask for past batches.
        is_muted: True keeps batches for replay only, as if the network lost them.
        answers_replays: False leaves replay requests unanswered.

    Args:
        topic: What events are published under.
        num_kept_batches: Past batches that a replay can repeat.
        data_parallel_rank: The rank told in each batch.
    """

    def __init__(self, topic: str = "", num_kept_batches: int = 10_000, data_parallel_rank: int = 0) -> None:
        self.address = "tcp://127.0.0.1:*"
        self.replay_address = "tcp://127.0.0.1:*"
        self.answers_replays = True
        self.is_muted = False
        self.num_replays = 0
        self._topic = topic.encode()
        self._rank = data_parallel_rank
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=num_kept_batches)
        self._pending: list[dict[str, Any]] = []
        self._sequence = 0
        self._seconds = 1000.0
        self._context: zmq.asyncio.Context | None = None
        self._events: zmq.Socket[bytes] | None = None
        self._replays: zmq.asyncio.Socket | None = None
        self._answering: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Bind, to the same addresses as before if it has run before."""
        self._context = zmq.asyncio.Context()
        # XPUB is PUB that can tell subscriptions; `wait_for_subscriber` needs them.
        self._events = zmq.Context(self._context).socket(zmq.XPUB)
        self._events.set(zmq.LINGER, 0)
        self._events.bind(self.address)
        self._replays = self._context.socket(zmq.ROUTER)
        self._replays.set(zmq.LINGER, 0)
        self._replays.set(zmq.SNDHWM, 0)
        self._replays.bind(self.replay_address)
        self.address = self._events.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self.replay_address = self._replays.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self._answering = asyncio.create_task(self._answer_replays(self._replays))

    async def stop(self) -> None:
        """Close the sockets, as an engine that ends."""
        if self._answering is not None:
            self._answering.cancel()
            with suppress(asyncio.CancelledError):
                await self._answering
        for socket in (self._events, self._replays):
            if socket is not None:
                socket.close(0)
        if self._context is not None:
            self._context.term()
        self._events = self._replays = self._context = self._answering = None

    async def restart(self) -> None:
        """End, and start on the same addresses with an empty history, numbers from 0 and a later clock."""
        await self.stop()
        self._kept.clear()
        self._pending.clear()
        self._sequence = 0
        self._seconds += 1000.0
        await self.start()

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        """Stop."""
        await self.stop()

    async def wait_for_subscriber(self) -> None:
        """Return when somebody has subscribed; what is published before is lost to them."""
        while self._events is not None and not self._events.poll(0):  # noqa: ASYNC110 - a monitor socket is polled, it has no event
            await asyncio.sleep(0.002)
        if self._events is not None:
            self._events.recv()

    def stored(
        self,
        parent: int | None,
        hashes: Sequence[int],
        token_ids: Sequence[int],
        block_size: int,
        *,
        lora: str | None = None,
        salt: str | None = None,
        medium: str = "GPU",
    ) -> None:
        """Add a `BlockStored` to the next batch; `salt` goes with a prompt's first block."""
        first_keys = [key for key in (lora, salt if parent is None else None) if key is not None]
        other_keys = None if lora is None else [lora]
        self.event(
            {
                "type": "BlockStored",
                "block_hashes": list(hashes),
                "parent_block_hash": parent,
                "token_ids": list(token_ids),
                "block_size": block_size,
                "lora_id": None if lora is None else 1,
                "medium": medium,
                "lora_name": lora,
                "extra_keys": [first_keys or None, *([other_keys] * (len(hashes) - 1))],
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
        )

    def removed(self, hashes: Sequence[int], medium: str = "GPU") -> None:
        """Add a `BlockRemoved` for each block, as vLLM does."""
        for block_hash in hashes:
            self.event({"type": "BlockRemoved", "block_hashes": [block_hash], "medium": medium, "group_idx": 0})

    def cleared(self) -> None:
        """Add an `AllBlocksCleared`."""
        self.event({"type": "AllBlocksCleared"})

    def event(self, event: dict[str, Any]) -> None:
        """Add any event."""
        self._pending.append(event)

    def publish(self, *, is_lost: bool = False, times: int = 1) -> int:
        """Send the next batch and return its number.

        Args:
            is_lost: Only keep it for replay, as if the network had lost it.
            times: Send it more than once.
        """
        number, self._sequence = self._sequence, self._sequence + 1
        self._seconds += 0.001
        payload = _encode([self._seconds, self._pending, self._rank])
        self._pending = []
        self._kept.append((number, payload))
        for _ in range(0 if is_lost or self.is_muted else times):
            self.send(number, payload)
        return number

    def send(self, number: int, payload: bytes) -> None:
        """Send a frame as it is.

        Raises:
            RuntimeError: It is not running.
        """
        if self._events is None:
            raise RuntimeError("the publisher is not running")
        self._events.send_multipart((self._topic, number.to_bytes(8, "big"), payload))

    async def _answer_replays(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            client, empty, first = await socket.recv_multipart()
            self.num_replays += 1
            if not self.answers_replays:
                continue
            for number, payload in list(self._kept):
                if number >= int.from_bytes(first, "big"):
                    await socket.send_multipart((client, empty, self._topic, number.to_bytes(8, "big"), payload))
            await socket.send_multipart((client, empty, b"", _END_OF_REPLAY, b""))
