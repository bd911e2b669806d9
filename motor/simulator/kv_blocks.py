"""KV blocks that a prefill keeps for a decode engine, and how a decode engine takes them."""

import uuid
from dataclasses import dataclass
from typing import Any

import aiohttp

from motor.simulator.clock import Clock

TAKE_PATH = "/sim/kv/take"
_REMOTE_FIELDS = ("remote_engine_id", "remote_request_id", "remote_block_ids", "remote_host", "remote_port")


class KvLoadFailed(Exception):
    """The blocks can't be fetched; the engine lives."""


class KvParametersUnusable(Exception):
    """Parameters that vLLM's decode engine doesn't survive: incomplete, used before, or for fewer blocks."""


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """Blocks of one prefill."""

    num_blocks: int
    expires_at: float


class KvBlocks:
    """A prefill engine's kept blocks by remote request id; `held` and `num_taken` change as decodes take them.

    Args:
        block_size: Tokens a block.
        lease_seconds: How long blocks wait for their decode.
        clock: Time.
    """

    def __init__(self, block_size: int, lease_seconds: float, clock: Clock) -> None:
        self._block_size = block_size
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._next_block = 1
        self.engine_id = str(uuid.uuid4())
        self.held: dict[str, HeldBlocks] = {}
        self.num_taken = 0

    @property
    def num_blocks_held(self) -> int:
        """Blocks that wait for a decode."""
        self._expire()
        return sum(blocks.num_blocks for blocks in self.held.values())

    def num_blocks_of(self, num_tokens: int) -> int:
        """Return the blocks that a prompt needs."""
        return -(-num_tokens // self._block_size)

    def hold(self, request_id: str, num_tokens: int, num_cached: int, host: str, port: int) -> dict[str, Any]:
        """Keep a prompt's blocks.

        Returns:
            The `kv_transfer_params` for the decode leg, in the shape of vLLM's NixlConnector.
        """
        num_blocks = self.num_blocks_of(num_tokens)
        remote_request_id = f"{request_id}-{uuid.uuid4().hex[:8]}"
        block_ids = list(range(self._next_block, self._next_block + num_blocks))
        self._next_block += num_blocks
        self.held[remote_request_id] = HeldBlocks(num_blocks, self._clock.now() + self._lease_seconds)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [block_ids],
            "remote_engine_id": self.engine_id,
            "remote_request_id": remote_request_id,
            "remote_host": host,
            "remote_port": port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": num_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": num_cached,
        }

    def take(self, engine_id: object, remote_request_id: object, num_blocks: int) -> int:
        """Give a prompt's blocks to a decode engine and free them.

        Returns:
            200; 409 for another engine's id; 404 for blocks that aren't (or no longer) here; 416 for too few.
        """
        self._expire()
        if engine_id != self.engine_id:
            return 409
        blocks = self.held.get(str(remote_request_id))
        if blocks is None:
            return 404
        if blocks.num_blocks < num_blocks:
            return 416
        del self.held[str(remote_request_id)]
        self.num_taken += 1
        return 200

    def clear(self) -> None:
        """Forget everything, as a new process; the engine id is a new one."""
        self.held.clear()
        self.engine_id = str(uuid.uuid4())

    def _expire(self) -> None:
        now = self._clock.now()
        for request_id in [key for key, blocks in self.held.items() if blocks.expires_at <= now]:
            del self.held[request_id]


async def fetch_blocks(session: aiohttp.ClientSession, parameters: dict[str, Any], num_blocks: int) -> None:
    """Take a prompt's blocks from the prefill engine named in the parameters.

    Raises:
        KvParametersUnusable: vLLM's engine would die of them.
        KvLoadFailed: The prefill engine isn't there, or is another one.
    """
    if any(parameters.get(name) is None for name in _REMOTE_FIELDS):
        raise KvParametersUnusable
    url = f"http://{parameters['remote_host']}:{parameters['remote_port']}{TAKE_PATH}"
    request = {
        "engine_id": parameters["remote_engine_id"],
        "remote_request_id": parameters["remote_request_id"],
        "num_blocks": num_blocks,
    }
    try:
        async with session.post(url, json=request) as response:
            status = response.status
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise KvLoadFailed from error
    if status in (404, 416):
        raise KvParametersUnusable
    if status != 200:
        raise KvLoadFailed


async def ask_for_prefill(session: aiohttp.ClientSession, metaserver: str, request: dict[str, Any]) -> None:
    """Call a Trigger deployment's metaserver and wait for its answer.

    Raises:
        KvLoadFailed: It isn't there, or refused.
    """
    try:
        async with session.post(metaserver, json=request) as response:
            await response.read()
            if response.status != 200:
                raise KvLoadFailed
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise KvLoadFailed from error
