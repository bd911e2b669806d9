"""The streaming session: engine chunks → Derender → the client, one lane per choice (RFC: Streaming Derender).

Each prompt has a producer that reads the engine, each choice a lane that derenders and writes. Inboxes are bounded,
so a client that reads nothing stops the lane, then the producer, then the engine's socket. All tasks live in one
task group: whoever fails first cancels the others and all are awaited before the error leaves.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from motor.coordinator.domain.generation import GenerateChoice, GenerateChunk
from motor.coordinator.domain.request import ClientRequest
from motor.coordinator.render.answer_facts import AnswerFacts
from motor.coordinator.render.choice_merge import ChoiceMerge, StreamOptions
from motor.coordinator.render.chunk_derenderer import ChunkDerenderer
from motor.coordinator.render.chunk_merge import merged, num_mergeable, split
from motor.coordinator.render.derender_requests import ChunkCallTemplate
from motor.coordinator.render.derender_state import BEFORE_FIRST_CALL
from motor.coordinator.render.echo import echoed_texts
from motor.coordinator.render.inbox import Inbox
from motor.coordinator.render.logprobs import LogprobsOptions, LogprobsStream
from motor.coordinator.render.models import ChunkSink, StreamProgress, TokenizedBatch, TokenizedRequest
from motor.coordinator.render.pacing import rest_seconds
from motor.coordinator.render.prompt_stream import ChoiceEvent, PromptStream, ended_by
from motor.coordinator.render.stop_strings import StopRules
from motor.coordinator.render.vllm_render_client import VllmRenderClient
from motor.coordinator.telemetry.stages import StageClock
from motor.coordinator.wire.response_sink import ResponseSink
from motor.coordinator.wire.sse import EVENT_STREAM_HEADERS

StreamPrompt = Callable[[ClientRequest, TokenizedRequest, ChunkSink], Awaitable[None]]
"""Runs one prompt's attempts and pushes the chunks; the router's side of the session."""


@dataclass(slots=True)
class Lane:
    """One choice's way to the client."""

    prompt_index: int
    stream: PromptStream
    derenderer: ChunkDerenderer
    inbox: Inbox
    logprobs: LogprobsStream | None


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How sessions behave.

    Attributes:
        queue_chunks: Engine chunks that a choice may have waiting.
        max_gap_seconds: Bound on the time between visible chunks that resting may cause.
        marker_ids: Added tokens of the vocabulary, if known; batching needs them.
    """

    queue_chunks: int
    max_gap_seconds: float
    marker_ids: frozenset[int] | None


class StreamingRenderSession:
    """One streamed request; mutable: its lanes and what has been written.

    Args:
        batch: The tokenized prompts.
        stream_prompt: Runs a prompt on engines.
        derenderer: The sidecar.
        sink: The client.
        model: The name that the client is told.
        created: Unix time in seconds.
        settings: How sessions behave.
        headers: Returns response headers besides those of an event stream, when they are sent.
        facts: What answers say about the deployment.
        on_progress: Told the output tokens that the client has, each time there are more.
        clock: Where the stages' time is booked.
    """

    def __init__(
        self,
        batch: TokenizedBatch,
        stream_prompt: StreamPrompt,
        derenderer: VllmRenderClient,
        sink: ResponseSink,
        *,
        model: str,
        created: int,
        settings: SessionSettings,
        headers: Callable[[], list[tuple[bytes, bytes]]],
        facts: AnswerFacts,
        on_progress: Callable[[int], None],
        clock: StageClock,
    ) -> None:
        self._batch = batch
        self._stream_prompt = stream_prompt
        self._derenderer = derenderer
        self._sink = sink
        self._headers = headers
        self._settings = settings
        self._on_progress = on_progress
        self._num_shown_tokens = 0
        self._clock = clock
        self._is_metadata_hidden = facts.has_parser and batch.client.fields.get("include_reasoning") is False
        self._merge = ChoiceMerge(
            batch.client,
            [prompt.semantic_ids for prompt in batch.prompts],
            batch.prompts[0].num_choices,
            created=created,
            model=model,
            options=StreamOptions.of(batch.client, is_metadata_hidden=self._is_metadata_hidden),
            echoed=echoed_texts(batch),
            system_fingerprint=facts.system_fingerprint,
        )
        self._lanes = [self._lanes_of(prompt, model) for prompt in batch.prompts]
        self._num_waiting = len(batch.prompts)
        self._started = clock.now()
        self._all_open = asyncio.Event()

    @property
    def num_completion_tokens(self) -> int:
        """Output tokens that the client has."""
        return sum(lane.stream.num_committed for lanes in self._lanes for lane in lanes)

    async def run(self) -> None:
        """Stream everything, `[DONE]` included.

        Raises:
            ExceptionGroup: What failed first; all tasks have ended.
        """
        async with asyncio.TaskGroup() as tasks:
            for prompt, lanes in zip(self._batch.prompts, self._lanes, strict=True):
                tasks.create_task(self._produce(prompt, lanes))
                for lane in lanes:
                    tasks.create_task(self._derender_lane(lane))
        await self._sink.write(self._merge.closing())

    def _lanes_of(self, prompt: TokenizedRequest, model: str) -> list[Lane]:
        client = self._batch.client
        derenderer = ChunkDerenderer(client, self._derenderer, ChunkCallTemplate(client, prompt, model))
        stop = StopRules(
            tuple(prompt.sampling_params.get("stop") or ()),
            bool(prompt.sampling_params.get("include_stop_str_in_output")),
            int(prompt.sampling_params.get("min_tokens") or 0),
        )
        keeps_empty = client.flag("return_token_ids") and not self._is_metadata_hidden
        options = None if self._is_metadata_hidden else LogprobsOptions.of(client)
        is_named = isinstance(client.fields.get("tool_choice"), dict)
        return [
            Lane(
                prompt.prompt_index,
                PromptStream(
                    index,
                    stop,
                    marker_ids=self._settings.marker_ids,
                    keeps_empty=keeps_empty,
                    is_named_tool_choice=is_named,
                    is_reasoning_hidden=self._is_metadata_hidden,
                ),
                derenderer,
                Inbox(self._settings.queue_chunks),
                None if options is None else LogprobsStream(client, prompt, options, self._derenderer, model),
            )
            for index in range(prompt.num_choices)
        ]

    async def _produce(self, prompt: TokenizedRequest, lanes: list[Lane]) -> None:
        await self._stream_prompt(self._batch.client, prompt, _PromptSink(self, lanes))
        for lane in lanes:
            lane.inbox.close()

    async def _derender_lane(self, lane: Lane) -> None:
        """Show chunks until the producer is done; those that wait during one call share the next."""
        inbox = lane.inbox
        while waiting := await inbox.waiting():
            is_alone = lane.stream.committed.state is BEFORE_FIRST_CALL or lane.stream.is_watching
            num = num_mergeable(waiting, self._settings.marker_ids, is_first=is_alone)
            started = self._clock.now()
            await self._show_all(lane, merged(inbox.take(num)))
            inbox.mark_drained()
            rest = rest_seconds(self._clock.now() - started, self._settings.max_gap_seconds)
            if rest:
                await inbox.rest(rest)

    async def _show_all(self, lane: Lane, choice: GenerateChoice) -> None:
        """Show a chunk, id by id where only so the token is found that completes a stop string."""
        for piece in split(choice) if lane.stream.is_watching else (choice,):
            if not lane.stream.is_finished:  # else the engine goes on past a stop string that it can't see
                await self._show(lane, piece)

    async def _show(self, lane: Lane, choice: GenerateChoice) -> None:
        """Take one chunk from staged to committed."""
        asked = lane.stream.stage(choice)
        with self._clock.stage("derender"):
            chunk, state = await lane.derenderer.derender(lane.stream, asked)
            stop = lane.stream.stop_across_cut(chunk)
            if stop is not None and stop != choice.stop_reason:
                lane.stream.abandon_staged()
                choice = ended_by(choice, stop)  # from the same state again: parsers flush at the end
                chunk, state = await lane.derenderer.derender(lane.stream, lane.stream.stage(choice))
            logprobs = None if lane.logprobs is None else await lane.logprobs.resolve(choice)
        outcome = lane.stream.derive(chunk, state, logprobs)
        if outcome.event is None:
            self._merge.skip(lane.prompt_index, lane.stream.choice_index, len(outcome.token_ids))
        else:
            await self._write(self._merge_event(lane, outcome.event))
        lane.stream.commit(outcome)
        self._num_shown_tokens += len(outcome.token_ids)
        self._on_progress(self._num_shown_tokens)

    def _merge_event(self, lane: Lane, event: ChoiceEvent) -> bytes:
        return self._merge.opening() + self._merge.event(lane.prompt_index, lane.stream.choice_index, event)

    async def _write(self, data: bytes) -> None:
        if not self._sink.has_started:
            self._clock.add("first_chunk", self._clock.now() - self._started)
            await self._sink.start(200, EVENT_STREAM_HEADERS + self._headers())
        await self._sink.write(data)

    async def wait_all_open(self) -> None:
        """Note one more open engine stream; return when every prompt's is, so that no half batch looks successful."""
        self._num_waiting -= 1
        if self._num_waiting == 0:
            self._all_open.set()
        await self._all_open.wait()

    def take_usage(self, chunk: GenerateChunk) -> None:
        """Keep what only the engine knows of the usage."""
        if chunk.usage is not None:
            self._merge.take_prompt_details(chunk.usage.prompt_tokens_details)

    def begin_attempt(self, lanes: Sequence[Lane]) -> None:
        """Remember where an attempt at a prompt starts."""
        for lane in lanes:
            lane.stream.begin_attempt()
            if lane.logprobs is not None:
                lane.logprobs.begin_attempt()

    async def end_attempt(self, lanes: Sequence[Lane]) -> None:
        """Show all that has come of a failed attempt; if that is nothing visible, forget it."""
        for lane in lanes:
            await lane.inbox.drained()
            num_taken_back = lane.stream.end_attempt()
            if num_taken_back:
                self._num_shown_tokens -= num_taken_back
                self._merge.skip(lane.prompt_index, lane.stream.choice_index, -num_taken_back)
                if lane.logprobs is not None:
                    lane.logprobs.take_back_attempt()

    def progress(self, lanes: Sequence[Lane]) -> StreamProgress:
        """Return what the client has of a prompt."""
        stream = lanes[0].stream
        return StreamProgress(
            stream.committed_ids,
            self._sink.has_started,
            len(self._lanes),
            stream.committed.has_content,
            all(lane.stream.is_finished for lane in lanes),
        )


class _PromptSink:
    """Deals one prompt's chunks to its lanes; mutable: whether an attempt has been opened."""

    def __init__(self, session: StreamingRenderSession, lanes: list[Lane]) -> None:
        self._session = session
        self._lanes = lanes
        self._has_opened = False

    def begin_attempt(self) -> None:
        self._session.begin_attempt(self._lanes)

    async def end_attempt(self) -> None:
        await self._session.end_attempt(self._lanes)

    def progress(self) -> StreamProgress:
        return self._session.progress(self._lanes)

    def is_finished(self) -> bool:
        return all(lane.stream.is_finished for lane in self._lanes)

    async def opened(self) -> None:
        if not self._has_opened:
            self._has_opened = True
            await self._session.wait_all_open()

    async def put(self, chunk: GenerateChunk) -> None:
        self._session.take_usage(chunk)
        for choice in chunk.choices:
            await self._lanes[choice.index].inbox.put(choice)
