"""The life of one OpenAI request: the RFC's stages in order, and nothing else."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from motor.coordinator.domain.errors import (
    ChoicesUnsupported,
    MotorError,
    RenderFault,
    RequestInvalid,
    TokenOnlyUnsupported,
    root_cause,
)
from motor.coordinator.domain.generation import GenerateResponse
from motor.coordinator.domain.request import ClientRequest
from motor.coordinator.engine.openai_engine_client import NativeRequest
from motor.coordinator.flow_control.admission import Admission
from motor.coordinator.flow_control.gate import AdmissionLease
from motor.coordinator.render.chain_choice import native_reason
from motor.coordinator.render.models import ChunkSink, TokenizedBatch, TokenizedRequest
from motor.coordinator.render.parity_probe import ParityProbe
from motor.coordinator.render.peer_facts import PeerFactsFeed
from motor.coordinator.render.response import complete_response
from motor.coordinator.render.streaming_response import SessionSettings, StreamingRenderSession
from motor.coordinator.render.tokenization_service import TokenizationService
from motor.coordinator.render.vllm_render_client import VllmRenderClient
from motor.coordinator.router.native import CHAIN_HEADER, NativeRouter, ShownInstances
from motor.coordinator.router.rescheduler import Rescheduler
from motor.coordinator.router.token_only import native_demand
from motor.coordinator.scheduling.demand import Demand
from motor.coordinator.telemetry.log import get_logger
from motor.coordinator.telemetry.metrics import Metrics
from motor.coordinator.telemetry.stages import StageClock
from motor.coordinator.wire.response_sink import ResponseSink

_log = get_logger(__name__)
TOKEN_CHAIN = (CHAIN_HEADER, b"token")


@dataclass(frozen=True, slots=True)
class TokenChain:
    """What the token chain needs; absent when Render is off.

    Attributes:
        tokenization: Token In.
        derenderer: The sidecar's other half.
        rescheduler: Runs prompts on engines.
        model: The name that clients are told.
        session: How streaming sessions behave.
        streams_many_prompts: Whether the topology streams prompt lists; Trigger leaves them to the native chain.
        facts: What is known of the peers.
        probe: Checks the rendered ids of some requests.
    """

    tokenization: TokenizationService
    derenderer: VllmRenderClient
    rescheduler: Rescheduler
    model: str
    session: SessionSettings
    facts: PeerFactsFeed
    probe: ParityProbe
    streams_many_prompts: bool = True


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and where its answer goes.

    Attributes:
        client: What was asked.
        original: The same as it came, for the native chain.
        sink: The client's side.
        clock: Where the stages' time is booked.
    """

    client: ClientRequest
    original: NativeRequest
    sink: ResponseSink
    clock: StageClock


class Pipeline:
    """Serves requests; holds no request of its own.

    Args:
        chain: The token chain, or `None` if Render is off.
        native: The native chain.
        admission: Flow control.
        metrics: Counters.
        shown: The response header that names the instances, if clients may see it.
        wall_clock: Unix time in seconds.
    """

    def __init__(
        self,
        chain: TokenChain | None,
        native: NativeRouter,
        admission: Admission,
        metrics: Metrics,
        *,
        shown: ShownInstances,
        wall_clock: Callable[[], float],
    ) -> None:
        self._chain = chain
        self._native = native
        self._admission = admission
        self._metrics = metrics
        self._shown = shown
        self._wall_clock = wall_clock

    async def serve(self, exchange: Exchange) -> None:
        """Answer one Chat Completions or Completions request.

        Raises:
            MotorError: What the client must be told; nothing of the request is left behind.
        """
        if self._chain is None:
            await self._serve_natively(exchange, native_demand(exchange.client.peer_id, 0))
            return
        reason = native_reason(exchange.client, self._chain.facts.peers)
        if reason is not None:
            _log.info("chain.native", reason=reason)
            self._metrics.native_chosen(reason)
            with exchange.clock.stage("render"):
                demand = await self._counted(self._chain, exchange.client)
            await self._serve_natively(exchange, demand)
            return
        try:
            with exchange.clock.stage("render"):
                batch = await self._chain.tokenization.tokenize(exchange.client)
            self._chain.probe.offer(batch)
        except RenderFault as fault:
            with exchange.clock.stage("render"):
                demand = await self._counted_locally(self._chain, exchange.client, fault)
            await self._fall_back(exchange, fault, demand)
            return
        try:
            await self._serve_tokens(self._chain, batch, exchange)
        except TokenOnlyUnsupported as error:
            if error.instance_id is not None and not isinstance(error, ChoicesUnsupported):
                self._chain.facts.generate_refused(error.instance_id)
            if exchange.sink.has_started:
                raise
            await self._fall_back(exchange, error, _demand_of(batch))

    async def relay(
        self, original: NativeRequest, request_headers: dict[str, str], sink: ResponseSink, clock: StageClock
    ) -> None:
        """Answer a request of any other API, which never tries a Render route; raises as `serve`."""
        await self._native.relay(original, request_headers, native_demand("", 0), sink, clock)

    async def _counted(self, chain: TokenChain, client: ClientRequest) -> Demand:
        """Render's ids count the load on the native chain too; what Render refuses, the engine judges alone."""
        try:
            batch = await chain.tokenization.tokenize(client)
            chain.probe.offer(batch)
            return _demand_of(batch)
        except RequestInvalid:
            return native_demand(client.peer_id, 0)
        except RenderFault as fault:
            return await self._counted_locally(chain, client, fault)

    async def _counted_locally(self, chain: TokenChain, client: ClientRequest, fault: RenderFault) -> Demand:
        prompts = await chain.tokenization.tokenize_locally(client, fault)
        self._metrics.tokenized_without_render(prompts.tokenizer_source)
        return native_demand(client.peer_id, prompts.num_prompt_tokens, prompts.prompts)

    async def _fall_back(self, exchange: Exchange, error: MotorError, demand: Demand) -> None:
        """Leave the token chain for the native one, nothing having been shown."""
        _log.warning("chain.fallback", reason=error.kind, domain=error.domain, fallback="native")
        self._metrics.render_fallback(error.kind)
        await self._serve_natively(exchange, demand)

    async def _serve_natively(self, exchange: Exchange, demand: Demand) -> None:
        client = exchange.client
        headers = {**client.forward_headers, "x-request-id": client.peer_id}
        async with self._admission.unrendered(client, demand.num_prompt_tokens, exchange.clock):
            await self._native.relay(exchange.original, headers, demand, exchange.sink, exchange.clock)

    async def _serve_tokens(self, chain: TokenChain, batch: TokenizedBatch, exchange: Exchange) -> None:
        created = int(self._wall_clock())
        client, clock = exchange.client, exchange.clock
        self._metrics.prompt_tokens(batch.num_prompt_tokens)
        if client.is_stream and len(batch.prompts) > 1 and not chain.streams_many_prompts:
            self._metrics.native_chosen("trigger_prompt_list")
            await self._serve_natively(exchange, _demand_of(batch))
            return
        async with self._admission.rendered(batch, clock) as lease:
            if client.is_stream:
                await self._stream(chain, batch, created, exchange, lease)
            else:
                await self._complete(chain, batch, created, exchange)

    async def _stream(
        self, chain: TokenChain, batch: TokenizedBatch, created: int, exchange: Exchange, lease: AdmissionLease
    ) -> None:
        clock = exchange.clock

        async def stream_prompt(client: ClientRequest, request: TokenizedRequest, chunks: ChunkSink) -> None:
            await chain.rescheduler.stream(client, request, chunks, clock)

        session = StreamingRenderSession(
            batch,
            stream_prompt,
            chain.derenderer,
            exchange.sink,
            model=chain.model,
            created=created,
            settings=chain.session,
            headers=lambda: [TOKEN_CHAIN, *self._shown(clock)],
            facts=chain.facts.answer,
            on_progress=lease.correct,
            clock=clock,
        )
        try:
            await session.run()
        except BaseExceptionGroup as group:
            raise root_cause(group) from group
        finally:
            self._metrics.completion_tokens(session.num_completion_tokens)

    async def _complete(self, chain: TokenChain, batch: TokenizedBatch, created: int, exchange: Exchange) -> None:
        clock, sink = exchange.clock, exchange.sink
        with clock.stage("first_chunk"):
            responses = await self._generate_all(chain, batch, clock)
        with clock.stage("derender"):
            body = await complete_response(
                batch, responses, chain.derenderer, model=chain.model, created=created, facts=chain.facts.answer
            )
        num_tokens = sum(len(choice.token_ids or ()) for response in responses for choice in response.choices)
        self._metrics.completion_tokens(num_tokens)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            TOKEN_CHAIN,
            *self._shown(clock),
        ]
        await sink.start(200, headers)
        await sink.write(body)

    @staticmethod
    async def _generate_all(chain: TokenChain, batch: TokenizedBatch, clock: StageClock) -> list[GenerateResponse]:
        if len(batch.prompts) == 1:
            return [await chain.rescheduler.generate(batch.client, batch.prompts[0], clock)]
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(chain.rescheduler.generate(batch.client, prompt, clock))
                    for prompt in batch.prompts
                ]
        except BaseExceptionGroup as group:
            raise root_cause(group) from group
        return [task.result() for task in running]


def _demand_of(batch: TokenizedBatch) -> Demand:
    prompts = [prompt.semantic_ids for prompt in batch.prompts]
    return native_demand(batch.client.peer_id, batch.num_prompt_tokens, prompts)
