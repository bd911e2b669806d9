"""The attempt loop: one logic for every topology, streamed or not (RFC: 流式 replay 与重调度).

It catches `EngineFault` and nothing else, so neither Derender nor the client can cost a retry.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from motor.coordinator.domain.errors import EngineAborted, EngineFault, EngineRecomputed
from motor.coordinator.domain.generation import GenerateChoice, GenerateChunk, GenerateResponse, GenerateUsage
from motor.coordinator.domain.request import ClientRequest
from motor.coordinator.render.models import ChunkSink, StreamProgress, TokenizedRequest
from motor.coordinator.router.replay import (
    FinishByLength,
    GiveUp,
    Refusal,
    Restart,
    Resume,
    RetryPlan,
    can_be_joined,
    plan_retry,
)
from motor.coordinator.router.retry_budget import RetryBudget
from motor.coordinator.router.topology import Attempt, Topology
from motor.coordinator.telemetry.log import get_logger
from motor.coordinator.telemetry.stages import StageClock

_log = get_logger(__name__)
RECOMPUTED = "recomputed"


@dataclass(frozen=True, slots=True)
class RetryRules:
    """How far one request may go.

    Attributes:
        max_attempts: The first one included.
        max_recomputes: How often engines may run out of KV blocks, which costs no attempt.
        delay_seconds: Before the second attempt; doubled each time, with jitter, up to `max_delay_seconds`.
        max_delay_seconds: The longest delay.
        request_seconds: No attempt begins later than this after the first.
        allow_approximate: See `plan_retry`.
    """

    max_attempts: int = 5
    max_recomputes: int = 3
    delay_seconds: float = 0.05
    max_delay_seconds: float = 1.0
    request_seconds: float = 3600.0
    allow_approximate: bool = True


class Rescheduler:
    """Runs prompts through a topology, attempt after attempt.

    Args:
        topology: How instances work together.
        rules: How far one request may go.
        budget: How many retries the deployment may make.
        randomness: Uniform over [0, 1), for jitter.
        on_retry: Told the kind of each plan, for metrics.
    """

    def __init__(
        self,
        topology: Topology,
        rules: RetryRules,
        budget: RetryBudget,
        randomness: Callable[[], float],
        on_retry: Callable[[str], None],
    ) -> None:
        self._topology = topology
        self._rules = rules
        self._budget = budget
        self._randomness = randomness
        self._on_retry = on_retry

    async def generate(self, client: ClientRequest, request: TokenizedRequest, clock: StageClock) -> GenerateResponse:
        """Return the complete answer to one prompt; nothing of it is visible before, so it may be repeated.

        Raises:
            MotorError: The last attempt's error.
        """
        loop = _Attempts(self, client, clock)
        earlier: list[GenerateResponse] = []
        current = request
        while True:
            try:
                response = await self._topology.generate(loop.attempt, current)
            except EngineFault as fault:
                await loop.next_attempt(fault, Restart())
                continue
            ending = _ending_fault(response.choices)
            if ending is None:
                return _joined([*earlier, response])
            if isinstance(ending, EngineRecomputed) and can_be_joined(request):
                earlier.append(response)
                ids = tuple(i for part in earlier for i in part.choices[0].token_ids or ())
                plan = plan_retry(request, StreamProgress(ids, is_request_visible=True), allow_approximate=True)
                if isinstance(plan, FinishByLength):
                    return _joined([*earlier, _length_ending()])
                if isinstance(plan, Resume):
                    current = plan.request
                else:
                    earlier.clear()
            await loop.next_attempt(ending, Restart())

    async def stream(
        self, client: ClientRequest, request: TokenizedRequest, sink: ChunkSink, clock: StageClock
    ) -> None:
        """Push one prompt's chunks into `sink` until every choice has its finish reason.

        After a fault the next attempt goes on where the client's text ends.

        Raises:
            MotorError: What no further attempt could mend.
        """
        loop = _Attempts(self, client, clock)
        current = request
        while True:
            sink.begin_attempt()
            try:
                await self._run_attempt(loop.attempt, current, sink, request.num_prompt_tokens)
                return
            except EngineFault as fault:
                await sink.end_attempt()
                progress = sink.progress()
                if progress.is_finished:
                    return  # only what nobody waits for has failed
                plan = plan_retry(request, progress, allow_approximate=self._rules.allow_approximate)
                if isinstance(plan, FinishByLength):
                    await sink.put(GenerateChunk(choices=_length_ending().choices))
                    return
                await loop.next_attempt(fault, plan, num_committed=len(progress.committed_ids))
                current = plan.request if isinstance(plan, Resume) else request

    async def _run_attempt(
        self, attempt: Attempt, request: TokenizedRequest, sink: ChunkSink, num_prompt_tokens: int
    ) -> None:
        async with self._topology.stream(attempt, request) as chunks, aclosing(chunks) as open_chunks:
            await sink.opened()
            has_ended = False
            async for chunk in open_chunks:
                fault = _ending_fault(chunk.choices)
                if fault is not None:
                    await self._put_without_ending(chunk, sink)
                    raise fault
                if chunk.usage is not None:
                    _limit_cached_tokens(chunk.usage, num_prompt_tokens)
                await sink.put(chunk)
                has_ended = has_ended or any(choice.finish_reason is not None for choice in chunk.choices)
                if attempt.number and not has_ended and sink.is_finished():
                    return  # by a stop string across the cut, which this engine can't see

    @staticmethod
    async def _put_without_ending(chunk: GenerateChunk, sink: ChunkSink) -> None:
        """Show the ids that came with an ending which is none for the client."""
        for choice in chunk.choices:
            choice.finish_reason = choice.stop_reason = None
        if any(choice.token_ids for choice in chunk.choices):
            await sink.put(chunk)


class _Attempts:
    """One request's attempts; mutable: `attempt` and the counts."""

    def __init__(self, rescheduler: Rescheduler, client: ClientRequest, clock: StageClock) -> None:
        self._owner = rescheduler
        self._rules = rescheduler._rules
        self._clock = clock
        self._started = clock.now()
        self._num_recomputes = 0
        self._num_faults = 0
        self._delay_seconds = 0.0
        rescheduler._budget.pay_in()
        self.attempt = Attempt(
            client.api.id_prefix + client.peer_id, client.peer_id, clock, forward_headers=client.forward_headers
        )

    async def next_attempt(self, fault: EngineFault, plan: RetryPlan, num_committed: int = 0) -> None:
        """Prepare the next attempt, after a delay; or raise the fault if there must be none."""
        refusal = plan.refusal if isinstance(plan, GiveUp) else self._refusal(fault)
        _log.warning(
            "attempt.failed",
            kind=fault.kind,
            instance=fault.instance_id,
            attempt=self.attempt.number,
            num_committed=num_committed,
            next="give_up" if refusal else type(plan).__name__.lower(),
            reason=refusal,
        )
        self._owner._on_retry(refusal.value if refusal else type(plan).__name__.lower())
        if refusal is not None:
            raise fault if refusal in _OUT_OF_TRIES else _explained(fault, refusal)
        excluded = self.attempt.excluded_instances
        if fault.instance_id is not None and not isinstance(fault, EngineRecomputed):
            excluded = excluded | {fault.instance_id}
        await asyncio.sleep(self._delay_seconds)
        self.attempt = replace(self.attempt, number=self.attempt.number + 1, excluded_instances=excluded)

    def _refusal(self, fault: EngineFault) -> Refusal | None:
        """Count the fault; return why no attempt may follow, the shared budget last: asking it costs a retry."""
        is_fault = not isinstance(fault, EngineRecomputed)
        if is_fault:
            self._num_faults += 1
        else:
            self._num_recomputes += 1
        if self._num_faults >= self._rules.max_attempts or self._num_recomputes > self._rules.max_recomputes:
            return Refusal.ATTEMPTS
        self._delay_seconds = self._delay() if is_fault else 0.0
        if self._clock.now() + self._delay_seconds - self._started > self._rules.request_seconds:
            return Refusal.DEADLINE
        return None if not is_fault or self._owner._budget.take_out() else Refusal.BUDGET

    def _delay(self) -> float:
        if self._num_faults <= 1:
            return 0.0  # the first retry goes to another instance: nobody needs time to recover
        doubled = self._rules.delay_seconds * 2.0 ** (self._num_faults - 2)
        return min(doubled, self._rules.max_delay_seconds) * (0.5 + self._owner._randomness() / 2)


_OUT_OF_TRIES = frozenset({Refusal.ATTEMPTS, Refusal.BUDGET, Refusal.DEADLINE})


def _explained(fault: EngineFault, refusal: Refusal) -> EngineFault:
    """Return the fault in words that say why the answer was not continued on another engine."""
    reason = refusal.value.replace("_", " ")
    return type(fault)(f"{fault}; the answer can't be continued on another engine ({reason})", status=fault.status)


def _ending_fault(choices: list[GenerateChoice]) -> EngineFault | None:
    """Return the fault behind an ending that is none for the client: out of KV blocks, or aborted unasked."""
    for choice in choices:
        if choice.stop_reason == RECOMPUTED:
            return EngineRecomputed("the engine ran out of KV blocks")
        if choice.finish_reason == "abort":
            return EngineAborted("the engine aborted the request")
    return None


def _limit_cached_tokens(usage: GenerateUsage, num_prompt_tokens: int) -> None:
    """To an engine that goes on, committed output is prompt too, and may be cached; to the client it is not."""
    cached = (usage.prompt_tokens_details or {}).get("cached_tokens")
    if isinstance(cached, int) and cached > num_prompt_tokens:
        usage.prompt_tokens_details = {**(usage.prompt_tokens_details or {}), "cached_tokens": num_prompt_tokens}


def _joined(parts: list[GenerateResponse]) -> GenerateResponse:
    """Return one answer made of the parts that recomputing cut it into; the last one's ending is its ending."""
    last = parts[-1]
    if len(parts) == 1:
        return last
    last.usage = parts[0].usage  # of the client's prompt; the others' had more
    choices = [part.choices[0] for part in parts]
    ending = choices[-1]
    ending.token_ids = [i for choice in choices for i in choice.token_ids or ()]
    if choices[0].logprobs is not None:
        ending.logprobs = {"content": [entry for c in choices if c.logprobs for entry in c.logprobs["content"]]}
    return last


def _length_ending() -> GenerateResponse:
    return GenerateResponse(choices=[GenerateChoice(index=0, token_ids=[], finish_reason="length")])
