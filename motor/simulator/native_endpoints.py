"""vLLM's native text endpoints of a simulated engine: plain content, no parsers."""

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from motor.simulator.answers import RequestRejected, json_answer, read_json, schema_error
from motor.simulator.chunk_plan import Chunk
from motor.simulator.engine_core import EngineCore, Generation
from motor.simulator.engine_streams import EventWriter, StreamBroken
from motor.simulator.fault_gate import break_off_complete, meet
from motor.simulator.faults import FaultSet, Leg, RequestFaults
from motor.simulator.generate_events import cached_details, usage
from motor.simulator.generate_request import GenerateRequest, SamplingParameters, StreamOptions
from motor.simulator.native_shapes import ChatShape, CompletionShape, Shape
from motor.simulator.native_text import GrowingText, chat_prompt, completion_prompts

_DEFAULT_COMPLETION_TOKENS = 16


@dataclass(slots=True)
class _Choice:
    """One choice as it grows."""

    growing: GrowingText
    parts: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class _Answer:
    """One native answer; `choices` and `num_completion` grow with its chunks.

    Attributes:
        generations: One request a prompt.
        shape: The kind of answer.
    """

    generations: list[Generation]
    shape: Shape
    choices: dict[int, _Choice] = field(default_factory=dict)
    num_completion: int = 0

    @property
    def faults(self) -> RequestFaults:
        """What goes wrong with it."""
        return self.generations[0].faults

    def usage(self, *, has_details: bool) -> dict[str, Any]:
        """Return the sums over all prompts; cached tokens are the last prompt's, as in vLLM."""
        num_prompt = sum(len(generation.request.token_ids) for generation in self.generations)
        details = cached_details(self.generations[-1].num_cached) if has_details else None
        return usage(num_prompt, self.num_completion, details)


class NativeEndpoints:
    """The text endpoints.

    Args:
        core: The engine.
        faults: What goes wrong.
    """

    def __init__(self, core: EngineCore, faults: FaultSet) -> None:
        self._core = core
        self._faults = faults

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat completion."""
        return await self._serve(request, "chat", lambda body: [chat_prompt(self._core.model, body)])

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Answer a text completion of one or more prompts."""
        return await self._serve(request, "completions", lambda body: completion_prompts(self._core.model, body))

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """Echo a request of the Responses API."""
        return await self._echo(request, "responses", {"object": "response", "status": "completed"})

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """Echo a request of the Messages API."""
        return await self._echo(request, "messages", {"type": "message", "role": "assistant"})

    async def text_generate(self, request: web.Request) -> web.StreamResponse:
        """Echo a request of SGLang's `/generate`."""
        return await self._echo(request, "text_generate", {"text": "echo"})

    async def _echo(self, request: web.Request, endpoint: str, fields: dict[str, Any]) -> web.StreamResponse:
        self._core.statistics.requests[endpoint] += 1
        early = await meet(request, self._faults.strike(Leg.DECODE, endpoint))
        return early if early is not None else json_answer({**fields, "echo": await read_json(request)})

    async def _serve(
        self, request: web.Request, endpoint: str, prompts_of: Callable[[dict[str, Any]], list[list[int]]]
    ) -> web.StreamResponse:
        core = self._core
        core.statistics.requests[endpoint] += 1
        body = await read_json(request)
        faults = self._faults.strike(Leg.DECODE, endpoint)
        early = await meet(request, faults)
        if early is not None:
            return early
        core.check_model(body.get("model"))
        generations = self._generations(request, body, endpoint, prompts_of(body), faults)
        answer = _Answer(generations, self._shape(endpoint, generations[0]))
        if generations[0].request.stream:
            return await self._stream(request, answer)
        async for _ in self._events(answer):
            pass
        if break_off_complete(request, faults, answer.num_completion):
            return web.Response()
        choices = [answer.choices[index] for index in sorted(answer.choices)]
        told = [("".join(choice.parts), choice.finish_reason, choice.stop_reason) for choice in choices]
        return json_answer(answer.shape.complete(told, answer.usage(has_details=self._has_details)))

    @property
    def _has_details(self) -> bool:
        return self._core.settings.has_prompt_tokens_details

    def _generations(
        self, request: web.Request, body: dict[str, Any], endpoint: str, prompts: list[list[int]], faults: RequestFaults
    ) -> list[Generation]:
        sampling = _sampling_of(body, endpoint)
        base_id = request.headers.get("X-Request-Id") or uuid.uuid4().hex[:16]
        prefix = "chatcmpl" if endpoint == "chat" else "cmpl"
        options = body.get("stream_options") if body.get("stream") else None
        generations = []
        for position, ids in enumerate(prompts):
            suffix = "" if endpoint == "chat" else f"-{position}"
            generate = GenerateRequest(
                token_ids=ids,
                sampling_params=sampling,
                stream=bool(body.get("stream")),
                stream_options=_convert(options, StreamOptions | None, "stream_options"),
                cache_salt=body.get("cache_salt"),
                kv_transfer_params=body.get("kv_transfer_params"),
            )
            self._core.check_prompt(generate)
            generations.append(Generation(generate, f"{prefix}-{base_id}{suffix}", faults))
        return generations

    def _shape(self, endpoint: str, first: Generation) -> Shape:
        kind = ChatShape if endpoint == "chat" else CompletionShape
        answer_id = first.external_id if endpoint == "chat" else first.external_id.removesuffix("-0")
        settings = self._core.settings
        return kind(
            answer_id,
            int(self._core.clock.unix_time()),
            settings.served_model_name,
            f"vllm-{settings.version}-simulated",
            has_usage=first.request.includes_usage,
        )

    async def _stream(self, request: web.Request, answer: _Answer) -> web.StreamResponse:
        writer = EventWriter(request, answer.faults)
        await writer.start()
        try:
            async with aclosing(self._events(answer)) as events:
                async for event in events:
                    await writer.write(event)
            if answer.generations[0].request.includes_usage:
                told = answer.usage(has_details=self._has_details)
                await writer.write(answer.shape.usage_event(_without_nulls(told)))
            await writer.finish()
        except RequestRejected as rejected:
            await writer.fail(rejected.body)
        except StreamBroken:
            pass
        return writer.response

    async def _events(self, answer: _Answer) -> AsyncGenerator[bytes]:
        """Run the prompts one after the other and yield their events."""
        for position, generation in enumerate(answer.generations):
            sampling = generation.request.sampling_params
            first = position * sampling.n
            async with aclosing(self._core.generate(generation)) as chunks:
                async for chunk in chunks:
                    index = first + chunk.index
                    if index not in answer.choices:
                        answer.choices[index] = _Choice(GrowingText(self._core.model, sampling.stop_strings))
                        if opening := answer.shape.opening(index):
                            yield opening
                    yield self._event(answer, index, chunk)

    def _event(self, answer: _Answer, index: int, chunk: Chunk) -> bytes:
        choice = answer.choices[index]
        text = choice.growing.add(chunk)
        choice.parts.append(text)
        choice.finish_reason, choice.stop_reason = chunk.finish_reason, chunk.stop_reason
        answer.num_completion += len(chunk.ids)
        return answer.shape.chunk(index, text, chunk.finish_reason, chunk.stop_reason)


def _sampling_of(body: dict[str, Any], endpoint: str) -> SamplingParameters:
    fields = {name: body[name] for name in SamplingParameters.__struct_fields__ if body.get(name) is not None}
    if endpoint == "chat":
        fields.pop("logprobs", None)
        if body.get("max_completion_tokens") is not None:
            fields["max_tokens"] = body["max_completion_tokens"]
    else:
        fields.setdefault("max_tokens", _DEFAULT_COMPLETION_TOKENS)
    sampling: SamplingParameters = _convert(fields, SamplingParameters, None)
    return sampling


def _convert(value: object, kind: Any, place: str | None) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        path = str(error).rpartition("`$")[2].rstrip("`") if place is None else f".{place}"
        raise schema_error(f"body{path}", str(error)) from error


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(item) if isinstance(item, dict) else item
        for name, item in value.items()
        if item is not None
    }
