"""Every call is answered as vLLM answers it, whatever is kept, lost, repeated or interleaved."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.scale_out.token_in_token_out.protocol import DerenderStreamState, GenerateTokensStreamResponse
from vllm.parser.abstract_parser import DelegatingParser
from vllm.reasoning import ReasoningParserManager
from vllm.renderers.online_derenderer import OnlineDerenderer
from vllm.tool_parsers import ToolParserManager

from motor_live_parsers.kept_streams import Store
from motor_live_parsers.live_stream import Call, LiveStream, derender
from motor_live_parsers.patch import derender_with_store
from motor_live_parsers.store import TakeOutStore

# Needs something that the tiny model's tokenizer or this environment doesn't have; vLLM refuses to start with them.
TOOL_PARSERS_WITHOUT_VOCABULARY = {
    "cohere_command3", "cohere_command4", "deepseek_v3", "deepseek_v31", "hf", "hy_v3", "hy_v4", "jamba", "lfm2",
    "llama3_json", "llama4_json", "mistral",
}  # fmt: skip
REASONING_PARSERS_WITHOUT_VOCABULARY = {
    "cohere_command3", "cohere_command4", "hf", "k2_horizon", "minimax_m3", "mistral", "olmo3", "poolside_v1",
}  # fmt: skip
TOOL_PARSERS = sorted(set(ToolParserManager.list_registered()) - TOOL_PARSERS_WITHOUT_VOCABULARY)
REASONING_PARSERS = sorted(set(ReasoningParserManager.list_registered()) - REASONING_PARSERS_WITHOUT_VOCABULARY)
PAIRS = [
    *((name, name) for name in TOOL_PARSERS if name in REASONING_PARSERS),
    *(("hermes", name) for name in ("qwen3", "deepseek_r1", "deepseek_v3", "step3")),
    *(("qwen3_coder", name) for name in ("qwen3", "deepseek_r1")),
    ("pythonic", "qwen3"),
]
FAMILIES = [*((name, None) for name in TOOL_PARSERS), *((None, name) for name in REASONING_PARSERS), *PAIRS]

WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
JSON_CALL = '{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}'
OUTPUTS = [
    "<think>The user wants weather 🎉.</think>\n\nSure.",
    "reasoning that the prompt has opened</think>Answer 你好,世界!",
    f"<think>a</think><tool_call>\n{JSON_CALL}\n</tool_call>\n<tool_call>\n{JSON_CALL}\n</tool_call>",
    "Let me see. <tool_call>\n<function=get_weather>\n<parameter=city>\nGenève 👩‍👩‍👧\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call> and then",
    "[get_weather(city='Paris', days=2), get_weather(city='Rome', days=1)]",
    f"functools[{JSON_CALL}]",
    f"[{JSON_CALL}]",
    JSON_CALL.replace("arguments", "parameters"),
    f"<|action_start|><|plugin|>{JSON_CALL}<|action_end|>",
    f"<tool_calls>[{JSON_CALL}]</tool_calls>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>',
    "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n</tool_call>",
    '<minimax:tool_call><invoke name="get_weather"><parameter name="city">Wien</parameter></invoke>'
    "</minimax:tool_call>",
    "<seed:think>hm</seed:think>ok <tool_call> broken { <",
]
REQUEST_VARIANTS: list[dict[str, Any]] = [
    {},
    {"tools": [WEATHER_TOOL]},
    {"tools": [WEATHER_TOOL], "parallel_tool_calls": False, "return_token_ids": True},
    {"tools": [WEATHER_TOOL], "tool_choice": "required"},
    {"tools": [WEATHER_TOOL], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    {"tools": [WEATHER_TOOL], "include_reasoning": False},
    {"chat_template_kwargs": {"enable_thinking": False}, "spaces_between_special_tokens": False},
]
PROMPTS = ["<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n", "<think>\n\n</think>\n\n"]


@dataclass
class Stream:
    """One stream as a client sees it: mutable are `state`, `live` (for the calls that carry it) and `remaining`."""

    request: dict[str, Any]
    prompt_token_ids: list[int]
    remaining: list[dict[str, Any]]
    state: DerenderStreamState = field(default_factory=DerenderStreamState)
    live: LiveStream | None = None

    def call(self, derenderer: OnlineDerenderer, choices: list[dict[str, Any]]) -> Call:
        """The next call, made of fresh objects as if it had come over HTTP."""
        assert derenderer.parser is not None
        chunk = {"request_id": "r", "choices": choices}
        return Call(
            derenderer.parser,
            "tiny",
            GenerateTokensStreamResponse.model_validate(chunk),
            DerenderStreamState.model_validate_json(self.state.model_dump_json()),
            ChatCompletionRequest.model_validate(self.request),
            len(self.prompt_token_ids),
            list(self.prompt_token_ids),
        )


def make_stream(rng: random.Random, derenderer: OnlineDerenderer) -> Stream:
    tokenizer = derenderer.renderer.get_tokenizer()
    token_ids = tokenizer.encode(rng.choice(OUTPUTS), add_special_tokens=False)
    longest = rng.choice([1, 1, 3, 12])
    choices: list[dict[str, Any]] = []
    while token_ids:
        num_tokens = rng.randint(1, longest)
        choices.append({"index": 0, "token_ids": token_ids[:num_tokens]})
        token_ids = token_ids[num_tokens:]
        if rng.random() < 0.1:
            choices.append({"index": 0, "token_ids": []})
    finish = {"finish_reason": rng.choice(["stop", "length"])}
    if rng.random() < 0.5:
        choices[-1] |= finish
    else:
        choices.append({"index": 0, "token_ids": []} | finish)
    request = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], **rng.choice(REQUEST_VARIANTS)}
    return Stream(request, tokenizer.encode(rng.choice(PROMPTS), add_special_tokens=False), choices)


def comparable(result: tuple[Any, DerenderStreamState], num_known_ids: int) -> tuple[Any, Any]:
    """What must be equal: all but the creation time, and the tool call ids that vLLM drew at random in this call."""
    chunk, state = result[0].model_dump(), result[1].model_dump()
    del chunk["created"]
    fresh = {id_: f"fresh {i}" for i, id_ in enumerate(state["last_tool_call_ids"][num_known_ids:])}
    state["last_tool_call_ids"] = [fresh.get(id_, id_) for id_ in state["last_tool_call_ids"]]
    for choice in chunk["choices"]:
        for tool_call in choice["delta"].get("tool_calls", []):
            tool_call["id"] = fresh.get(tool_call["id"], tool_call["id"])
    return chunk, state


def outcome_of(answer: Any, num_known_ids: int) -> tuple[Any, Any]:
    """The comparable answer, or the type of the error, which the server turns into a 400 without its text."""
    try:
        return comparable(answer(), num_known_ids)
    except Exception as error:  # noqa: BLE001 - parsers raise whatever they like, and both sides must raise the same
        return type(error), str(error)


def step(rng: random.Random, derenderer: OnlineDerenderer, store: Store, stream: Stream) -> bool:
    """Make the next call of `stream` in all ways, and compare; False when the stream is over."""
    upstream = OnlineDerenderer._derender_chat_stream_parsed
    is_usage_only = rng.random() < 0.05
    choices = [] if is_usage_only else stream.remaining[:1]
    num_known_ids = len(stream.state.last_tool_call_ids)
    answers: list[tuple[Any, DerenderStreamState]] = []

    def from_store() -> tuple[Any, DerenderStreamState]:
        answers.append(derender_with_store(upstream, derenderer, stream.call(derenderer, choices), store))
        return answers[-1]

    def carried() -> tuple[Any, DerenderStreamState]:
        live, stream.live = stream.live, None
        outcome = derender(upstream, derenderer, stream.call(derenderer, choices), live)
        stream.live = outcome.live
        return outcome.chunk, outcome.state

    expected = outcome_of(lambda: upstream(derenderer, **stream.call(derenderer, choices).replaced()), num_known_ids)
    assert outcome_of(carried, num_known_ids) == expected
    for _ in range(rng.choice([1, 1, 1, 2])):
        assert outcome_of(from_store, num_known_ids) == expected
    if not answers:
        return False
    stream.state = answers[-1][1]
    if not is_usage_only:
        del stream.remaining[0]
    return bool(stream.remaining)


def disturb(rng: random.Random, store: Store, stream: Stream) -> None:
    """What happens to a stream in production: its parser is evicted, or the client shortens its history."""
    if rng.random() < 0.1:
        stream.live = None
    if rng.random() < 0.05:
        for number in range(4):
            store.put(bytes([number]), LiveStream(None, None, None), 1)  # type: ignore[arg-type]
    if rng.random() < 0.05 and len(stream.state.output_chunk_lens) > 2:
        lens = stream.state.output_chunk_lens
        stream.state = stream.state.model_copy(update={"output_chunk_lens": [lens[0], sum(lens[1:])]})
        stream.live = None


@pytest.mark.parametrize(("tool_parser", "reasoning_parser"), FAMILIES)
def test_any_history_of_calls_is_answered_as_by_vllm(make_derenderer, tool_parser, reasoning_parser):
    derenderer = make_derenderer(tool_parser, reasoning_parser)

    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        rng = random.Random(seed)  # noqa: S311 - not cryptography
        store: Store = TakeOutStore(max_entries=4, max_tokens=10_000, ttl_seconds=60)
        streams = [make_stream(rng, derenderer) for _ in range(3)]
        if rng.random() < 0.5:
            streams.append(Stream(streams[0].request, streams[0].prompt_token_ids, list(streams[0].remaining)))
        while streams:
            stream = rng.choice(streams)
            disturb(rng, store, stream)
            if not step(rng, derenderer, store, stream):
                streams.remove(stream)

    check()


def test_calls_that_continue_a_stream_replay_nothing(make_derenderer):
    derenderer = make_derenderer("hermes", "qwen3")
    store: Store = TakeOutStore(max_entries=4, max_tokens=10_000, ttl_seconds=60)
    streams = [make_stream(random.Random(7), derenderer) for _ in range(2)]  # noqa: S311 - not cryptography
    num_calls = len(streams[0].remaining)
    for _ in range(num_calls):
        for stream in streams:
            call = stream.call(derenderer, [stream.remaining.pop(0)])
            _, stream.state = derender_with_store(
                OnlineDerenderer._derender_chat_stream_parsed, derenderer, call, store
            )
    statistics = store.statistics()
    assert (statistics.num_hits, statistics.num_misses) == (2 * (num_calls - 1), 2)
    assert statistics.num_entries == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda stream: stream.request.update(tool_choice="none"),
        lambda stream: stream.request["messages"].append({"role": "user", "content": "more"}),
        lambda stream: stream.request.update(an_unknown_field=1),
        lambda stream: stream.prompt_token_ids.append(1),
        lambda stream: stream.state.output_token_ids.__setitem__(0, 5),
        lambda stream: setattr(stream.state, "output_chunk_lens", [sum(stream.state.output_chunk_lens)]),
    ],
)
def test_a_call_that_differs_in_anything_parsing_reads_is_a_miss(make_derenderer, change):
    derenderer = make_derenderer("hermes", "qwen3")
    store: Store = TakeOutStore(max_entries=4, max_tokens=10_000, ttl_seconds=60)
    tokenizer = derenderer.renderer.get_tokenizer()
    token_ids = tokenizer.encode("<think>one two three", add_special_tokens=False)
    stream = Stream({"model": "tiny", "messages": []}, [1, 2, 3], [])
    for token_id in token_ids[:-1]:
        call = stream.call(derenderer, [{"index": 0, "token_ids": [token_id]}])
        _, stream.state = derender_with_store(OnlineDerenderer._derender_chat_stream_parsed, derenderer, call, store)
    num_hits = store.statistics().num_hits
    change(stream)
    call = stream.call(derenderer, [{"index": 0, "token_ids": token_ids[-1:]}])
    derender_with_store(OnlineDerenderer._derender_chat_stream_parsed, derenderer, call, store)
    assert store.statistics().num_hits == num_hits


class FailingParser(DelegatingParser):
    """Reads everything but the token id 7."""

    def parse_delta(self, delta_text: str, delta_token_ids: list[int], *args: Any, **kwargs: Any) -> Any:
        if 7 in delta_token_ids:
            raise RuntimeError("seven")
        return super().parse_delta(delta_text, delta_token_ids, *args, **kwargs)


def test_an_error_drops_the_parser(make_derenderer):
    derenderer = make_derenderer("hermes", None)
    derenderer.parser = FailingParser
    store: Store = TakeOutStore(max_entries=4, max_tokens=10_000, ttl_seconds=60)
    upstream = OnlineDerenderer._derender_chat_stream_parsed
    stream = Stream({"model": "tiny", "messages": []}, [1, 2, 3], [])
    call = stream.call(derenderer, [{"index": 0, "token_ids": [5]}])
    _, stream.state = derender_with_store(upstream, derenderer, call, store)
    assert store.statistics().num_entries == 1
    failing = stream.call(derenderer, [{"index": 0, "token_ids": [7]}])
    with pytest.raises(RuntimeError, match="seven"):
        derender_with_store(upstream, derenderer, failing, store)
    assert store.statistics().num_entries == 0
