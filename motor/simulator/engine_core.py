"""Admission, timing, KV transfer and counting of a simulated engine; knows no HTTP server."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from motor.simulator.answers import RequestRejected, internal_error, model_not_found
from motor.simulator.chunk_plan import Chunk, StopRules, plan_chunks
from motor.simulator.clock import Clock
from motor.simulator.engine_settings import EngineSettings
from motor.simulator.engine_statistics import EngineStatistics
from motor.simulator.faults import FaultKind, Leg, RequestFaults
from motor.simulator.generate_request import GenerateRequest
from motor.simulator.kv_blocks import KvBlocks, KvLoadFailed, KvParametersUnusable, ask_for_prefill, fetch_blocks
from motor.simulator.kv_event_publisher import KvEventPublisher
from motor.simulator.model_folder import ModelFolder
from motor.simulator.prefix_cache import PrefixCache
from motor.simulator.scripts import TokenScript


class EngineKilled(Exception):
    """A request that vLLM's engine process doesn't survive."""


@dataclass(slots=True)
class Generation:
    """One request in the engine; `num_cached` and `kv_result` are set before the first chunk.

    Attributes:
        request: What was asked.
        external_id: The id with vLLM's prefix, by which it can be aborted.
        faults: What goes wrong with it.
        num_cached: Prompt tokens found in the prefix cache.
        kv_result: The answer's `kv_transfer_params`.
        aborted: Set by an abort.
    """

    request: GenerateRequest
    external_id: str
    faults: RequestFaults
    num_cached: int = 0
    kv_result: dict[str, Any] | None = None
    aborted: asyncio.Event = field(default_factory=asyncio.Event)


class EngineCore:
    """A simulated engine without its HTTP; counts in `statistics`, requests under way in `_by_id`.

    Args:
        settings: What it is.
        script: What it generates.
        model: The tokenizer's side of the model, if it has one.
        clock: Time.
    """

    def __init__(self, settings: EngineSettings, script: TokenScript, model: ModelFolder | None, clock: Clock) -> None:
        self.settings = settings
        self.script = script
        self.model = model
        self.clock = clock
        self.statistics = EngineStatistics()
        self.kv_blocks = KvBlocks(settings.block_size, settings.kv_lease_seconds, clock)
        self.kv_events = KvEventPublisher() if settings.publishes_kv_events else None
        self.prefix_cache = PrefixCache(settings.cache_blocks, settings.block_size, self.kv_events)
        self.address: tuple[str, int] = ("127.0.0.1", 0)
        self.session: aiohttp.ClientSession | None = None
        self._places = asyncio.Semaphore(settings.max_num_seqs)
        self._by_id: defaultdict[str, set[int]] = defaultdict(set)
        self._generations: dict[int, Generation] = {}

    @property
    def eos_token_id(self) -> int | None:
        """The EOS that is reported as None; an engine without a tokenizer reports all as ints."""
        return self.model.eos_token_id if self.model is not None and not self.settings.is_tokens_only else None

    @property
    def num_kv_blocks_used(self) -> int:
        """Blocks held for decodes and by the prefix cache."""
        return self.kv_blocks.num_blocks_held + self.prefix_cache.num_blocks

    def check_model(self, name: str | None) -> None:
        """Accept the served name or none.

        Raises:
            RequestRejected: 404 for another.
        """
        if name is not None and name != self.settings.served_model_name:
            raise model_not_found(name)

    def check_before_engine(self, request: GenerateRequest) -> None:
        """Refuse what vLLM's front refuses, with an HTTP status in streams too.

        Raises:
            RequestRejected: The model is unknown, too many choices, or stop strings without a tokenizer.
        """
        self.check_model(request.model)
        sampling = request.sampling_params
        if sampling.n > self.settings.max_num_seqs:
            raise RequestRejected(
                f"sampling_params.n must be at most the server's max_num_seqs "
                f"({self.settings.max_num_seqs}), got {sampling.n}."
            )
        if self.settings.is_tokens_only and sampling.stop_strings:
            raise RequestRejected(
                "stop strings are not supported on a --tokens-only server because detokenization is disabled. "
                "Check stop strings on the coordinator, or use stop_token_ids."
            )

    def check_prompt(self, request: GenerateRequest) -> None:
        """Refuse what vLLM's input processor refuses; in streams an error event.

        Raises:
            RequestRejected: An id out of vocabulary, or a prompt over the context.
            EngineKilled: An id out of vocabulary on an engine without a tokenizer.
        """
        ids = request.token_ids
        vocab_size = self.settings.vocab_size if self.model is None else self.model.vocab_size
        lowest, highest = min(ids), max(ids)
        if lowest < 0 or highest >= vocab_size:
            if self.settings.is_tokens_only:
                raise EngineKilled
            wrong = lowest if lowest < 0 else highest
            raise RequestRejected(f"Token id {wrong} is out of vocabulary", param="token_ids")
        if self.settings.is_tokens_only and request.sampling_params.structured_outputs:
            raise RequestRejected("Structured outputs requires a tokenizer")
        limit = self.settings.max_model_len
        if len(ids) >= limit:
            raise RequestRejected(
                f"This model's maximum context length is {limit} tokens. However, your prompt contains {len(ids)} "
                "input tokens, which exceeds this limit even without any output tokens. "
                "Please reduce the length of the input prompt.",
                param="input_tokens",
            )

    async def generate(self, generation: Generation) -> AsyncGenerator[Chunk]:
        """Run a request.

        Closing the iterator ends the request, as a client that leaves does.

        Raises:
            RequestRejected: The prompt is refused, or KV blocks can't be loaded.
            EngineKilled: The engine dies of it.
        """
        self.check_prompt(generation.request)
        key = id(generation)
        self._by_id[generation.external_id].add(key)
        self._generations[key] = generation
        try:
            async with aclosing(self._run(generation)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            del self._generations[key]
            self._by_id[generation.external_id].discard(key)
            if not self._by_id[generation.external_id]:
                del self._by_id[generation.external_id]

    def abort(self, external_ids: Iterable[str]) -> None:
        """End requests with finish reason `abort`; unknown ids are ignored."""
        for external_id in external_ids:
            for key in self._by_id.get(external_id, ()):
                self._generations[key].aborted.set()

    def forget(self) -> None:
        """Lose all state but the counts, as a new process."""
        self.kv_blocks.clear()
        self.prefix_cache.clear()

    async def _run(self, generation: Generation) -> AsyncGenerator[Chunk]:
        statistics = self.statistics
        statistics.num_waiting += 1
        try:
            await self._places.acquire()
        finally:
            statistics.num_waiting -= 1
        statistics.num_running += 1
        try:
            await self._prefill(generation)
            async with aclosing(self._paced(generation)) as chunks:
                async for chunk in chunks:
                    statistics.num_generation_tokens += len(chunk.ids)
                    if chunk.finish_reason is not None:
                        statistics.finished[chunk.finish_reason] += 1
                    yield chunk
        finally:
            statistics.num_running -= 1
            self._places.release()

    async def _prefill(self, generation: Generation) -> None:
        request = generation.request
        is_remote = await self._load_kv(generation)
        prompt = request.token_ids
        generation.num_cached = self.prefix_cache.take(prompt, request.cache_salt)
        self.statistics.num_prompt_tokens += len(prompt)
        self.statistics.num_cached_tokens += generation.num_cached
        speed = self.settings.prefill_tokens_per_second
        seconds = self.settings.first_token_delay_seconds
        if speed and not is_remote:
            seconds += (len(prompt) - generation.num_cached) / speed
        if seconds:
            await self._sleep_unless_aborted(generation, seconds * generation.faults.slow_factor)
        if request.leg is Leg.PREFILL and (request.kv_parameters or {}).get("remote_engine_id") is None:
            generation.kv_result = self.kv_blocks.hold(
                generation.external_id, len(prompt), generation.num_cached, *self.address
            )

    async def _sleep_unless_aborted(self, generation: Generation, seconds: float) -> None:
        sleep = asyncio.ensure_future(self.clock.sleep(seconds))
        abort = asyncio.ensure_future(generation.aborted.wait())
        try:
            await asyncio.wait({sleep, abort}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            abort.cancel()

    async def _load_kv(self, generation: Generation) -> bool:
        """Fetch the prompt's blocks where the request says so; tell whether that spares the prefill."""
        parameters = generation.request.kv_parameters
        if parameters is None or not parameters.get("do_remote_prefill"):
            return False
        if generation.faults.get(FaultKind.KV_LOAD):
            raise internal_error()
        if self.session is None:
            raise RuntimeError("the engine is not running")
        num_blocks = self.kv_blocks.num_blocks_of(len(generation.request.token_ids))
        try:
            if metaserver := parameters.get("metaserver"):
                await ask_for_prefill(self.session, metaserver, self._trigger_request(generation, num_blocks))
            else:
                await fetch_blocks(self.session, parameters, num_blocks)
        except KvLoadFailed as error:
            raise internal_error() from error
        except KvParametersUnusable as error:
            if self.settings.bad_kv_transfer == "crash":
                raise EngineKilled from error
            raise internal_error() from error
        return True

    def _trigger_request(self, generation: Generation, num_blocks: int) -> dict[str, Any]:
        host, port = self.address
        return {
            "request_id": generation.external_id,
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_block_ids": list(range(num_blocks)),
            "remote_engine_id": self.kv_blocks.engine_id,
            "remote_host": host,
            "remote_port": port,
        }

    async def _paced(self, generation: Generation) -> AsyncGenerator[Chunk]:
        speed, now, sleep = self.settings.tokens_per_second, self.clock.now, self.clock.sleep
        seconds_per_token = generation.faults.slow_factor / speed if speed else 0.0
        next_at = now()
        planned = plan_chunks(
            generation.request.token_ids, self.script, self._rules(generation), self.settings.tokens_per_chunk
        )
        for position, chunk in enumerate(planned):
            if position:
                # Choices of one step come at one time, as from a batch.
                next_at += seconds_per_token * len(chunk.ids) if chunk.index == 0 else 0.0
                await sleep(max(0.0, next_at - now()) if seconds_per_token else 0.0)
            ending = _forced_ending(generation, position)
            if ending is not None:
                yield Chunk(chunk.index, [], *ending, chunk.num_generated - len(chunk.ids))
                return
            yield chunk

    def _rules(self, generation: Generation) -> StopRules:
        request = generation.request
        sampling = request.sampling_params
        room = self.settings.max_model_len - len(request.token_ids)
        eos_ids = () if self.model is None or sampling.ignore_eos else self.model.eos_token_ids
        return StopRules(
            max_tokens=room if sampling.max_tokens is None else min(room, sampling.max_tokens),
            eos_token_id=self.eos_token_id,
            stop_token_ids=frozenset([*eos_ids, *(sampling.stop_token_ids or ())]),
            model=self.model if sampling.stop_strings else None,
            sampling=sampling,
        )


def _forced_ending(generation: Generation, num_sent: int) -> tuple[str, str | None] | None:
    """Return the finish and stop reason that an abort or a fault puts here."""
    if generation.aborted.is_set():
        return "abort", None
    if not generation.faults.by_kind:
        return None
    fault = generation.faults.get(FaultKind.FINISH)
    if fault is not None and num_sent >= fault.after:
        return "stop", fault.reason
    fault = generation.faults.get(FaultKind.ABORT)
    if fault is not None and num_sent >= fault.after:
        return "abort", None
    return None
