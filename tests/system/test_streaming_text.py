"""What a stream says is what the whole answer says, however the engine cuts its tokens into chunks."""

from typing import Any

import pytest

from motor.simulator import ArithmeticScript, ModelFolder, ScriptedAnswers
from tests.deployment import CHAT, COMPLETIONS, MODEL, QUIET, Answer, deployment, user
from tests.event_reader import DONE

SIZES = pytest.mark.parametrize("sizes", [(1,), (3,), (7,), (1, 4, 2)], ids=str)
TEXTS = {
    "Say hello.": "Hello there! I am a tiny test model.",
    "Say hello in Chinese.": "你好,世界!今天天气很好,我们去公园散步吧。",
    "Show me emoji.": "Party 🎉🚀 family 👩‍👩‍👧 flag 🇫🇷 café naïve ✓ done.",
    "Name a fruit.": "Apple, banana and cherry are fruit. END of the list.",
    "List three colors.": "1. Red\n2. Green\n3. Blue",
}


def finish_of(answer: Answer, index: int = 0) -> list[tuple[str, Any]]:
    """Return finish and stop reason of one choice of a stream: exactly one event has them."""
    choices = [choice for event in answer.events[:-1] for choice in event["choices"] if choice["index"] == index]
    return [(choice["finish_reason"], choice["stop_reason"]) for choice in choices if choice["finish_reason"]]


@SIZES
async def test_any_chunk_size_gives_the_same_text(sizes: tuple[int, ...]) -> None:
    async with deployment(engine={"tokens_per_chunk": sizes}) as d:
        for prompt, text in TEXTS.items():
            answer = await d.post(CHAT, user(prompt, stream=True, stream_options={"include_usage": True}, **QUIET))
            assert answer.text() == text
            assert "\ufffd" not in answer.body.decode()
            assert finish_of(answer) == [("stop", None)]
            whole = await d.post(CHAT, user(prompt, **QUIET))
            counts = ("prompt_tokens", "completion_tokens", "total_tokens")
            assert [answer.events[-2]["usage"][n] for n in counts] == [whole.json["usage"][n] for n in counts]
        await d.check_nothing_left()


@SIZES
async def test_speculative_chunks_keep_reasoning_and_content_apart(sizes: tuple[int, ...]) -> None:
    async with deployment(engine={"tokens_per_chunk": sizes}) as d:
        answer = await d.post(CHAT, user("Why is the sky blue?", stream=True))
        reasoning, content = answer.text(field="reasoning").strip(), answer.text().strip()
        assert reasoning == "The user asks about light. Short waves scatter more 💡."
        assert content == "Because air scatters blue light more than red light 🌤️."
        await d.check_nothing_left()


async def test_a_chunk_with_nothing_but_the_end() -> None:
    """An engine may tell the finish reason after all ids, in an event of its own."""
    model = ModelFolder(MODEL)
    script = ScriptedAnswers(ArithmeticScript(model.plain_ids))
    script.add(model.encode("Fish are"), model.encode(" wet."))
    async with deployment(script=script) as d:
        body = {"model": "tiny", "prompt": "Fish are", "max_tokens": 40, "stream": True, "return_token_ids": True}
        answer = await d.post(COMPLETIONS, body)
        assert answer.text() == " wet."
        last = answer.events[-2]["choices"][0]
        assert (last["text"], last["token_ids"], last["finish_reason"]) == ("", [], "stop")
        ids = [i for event in answer.events[:-1] for i in event["choices"][0]["token_ids"]]
        assert ids == model.encode(" wet.")
        await d.check_nothing_left()


async def test_usage_grows_with_speculative_chunks() -> None:
    async with deployment(engine={"tokens_per_chunk": (2, 3)}) as d:
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = user("What is the capital of France?", stream=True, stream_options=options, **QUIET)
        answer = await d.post(CHAT, body)
        counted = [event["usage"]["completion_tokens"] for event in answer.events[:-1]]
        assert counted[:2] == [0, 2]  # the role, then the first chunk, which always goes alone
        assert counted == sorted(counted)
        assert counted[-2:] == [8, 8]  # seven tokens and the end; once more in the usage chunk
        assert answer.events[-2]["choices"] == []
        await d.check_nothing_left()


def entry(token: str, num_top: int, tops: list[str]) -> dict[str, Any]:
    """Return what chat shows of a token: the simulated probabilities fall with the cube of the rank."""
    ranked = [
        {"token": text, "logprob": -0.0078125 * rank**3, "bytes": list(text.encode())}
        for rank, text in enumerate([token, *tops], 1)
    ]
    return {**ranked[0], "top_logprobs": ranked[: max(1, num_top)]}


@SIZES
async def test_chat_logprobs(sizes: tuple[int, ...]) -> None:
    body = user("What is the capital of France?", stream=True, logprobs=True, top_logprobs=2, **QUIET)
    async with deployment(engine={"tokens_per_chunk": sizes}) as d:
        answer = await d.post(CHAT, body)
        shown = [choice["logprobs"] for event in answer.events[1:-1] for choice in event["choices"]]
        entries = [one for logprobs in shown for one in logprobs["content"]]
        # The second best of id n is id (n + 2) mod 256: 514 → 4 "%", 825 → 59 "\\", 468 → 214, 804 → 38 "G" ...
        assert entries == [
            entry("The", 2, ["%"]),
            entry(" capital", 2, ["\\"]),
            entry(" of", 2, ["\x1a"]),
            entry(" France", 2, ["G"]),
            entry(" is", 2, ["O"]),
            entry(" Paris", 2, [""]),  # the first byte of a longer character is no text
            entry(".", 2, ["0"]),
            entry("<|im_end|>", 2, [""]),
        ]
        await d.check_nothing_left()


@SIZES
async def test_completion_logprobs(sizes: tuple[int, ...]) -> None:
    """Offsets count characters; a token that completes none has no text, the emoji's last byte has all of it."""
    body = {"model": "tiny", "prompt": "Emoji test:", "temperature": 0, "max_tokens": 40, "logprobs": 1}
    async with deployment(engine={"tokens_per_chunk": sizes}) as d:
        answer = await d.post(COMPLETIONS, {**body, "stream": True})
        joined: dict[str, list[Any]] = {"tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []}
        for event in answer.events[:-1]:
            for name, values in joined.items():
                values.extend(event["choices"][0]["logprobs"][name])
        tokens = [" ", "", "", "", "🎉", "", "", "", "🚀", " 你好", " done", ".", "<|endoftext|>"]
        assert joined == {
            "tokens": tokens,
            "text_offset": [0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 6, 11, 12],
            "token_logprobs": [-0.0078125] * 13,
            "top_logprobs": [{token: -0.0078125} for token in tokens],
        }
        whole = await d.post(COMPLETIONS, body)
        assert {name: whole.json["choices"][0]["logprobs"][name] for name in joined} == joined
        await d.check_nothing_left()


STOPS: list[tuple[str, str | list[str], str, str | None]] = [
    ("Name a fruit.", "cherry are", "Apple, banana and ", "cherry are"),
    ("Name a fruit.", ["END of", "list"], "Apple, banana and cherry are fruit. ", "END of"),
    ("Name a fruit.", ["nobody", "says this"], TEXTS["Name a fruit."], None),
    ("Name a fruit.", ["ERRY", "banana", "an"], "Apple, b", "an"),
    ("Show me emoji.", "👩‍👧", "Party 🎉🚀 family 👩‍", "👩‍👧"),
    ("Say hello in Chinese.", ["今天天", "公园"], "你好,世界!", "今天天"),
    ("List three colors.", "\n3", "1. Red\n2. Green", "\n3"),
    ("List three colors.", "1", "", "1"),
]


@SIZES
async def test_stop_strings(sizes: tuple[int, ...]) -> None:
    """Over chunk borders, several, inside multi-byte text, at the very beginning; equal to the whole answer."""
    async with deployment(engine={"tokens_per_chunk": sizes}) as d:
        for prompt, stop, expected, reason in STOPS:
            body = user(prompt, stop=stop, **QUIET)
            streamed, whole = await d.post(CHAT, {**body, "stream": True}), await d.post(CHAT, body)
            assert (streamed.text(), whole.text()) == (expected, expected), stop
            assert finish_of(streamed) == [("stop", reason)]
            [choice] = whole.json["choices"]
            assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", reason)
        await d.check_nothing_left()


@SIZES
async def test_an_included_stop_string(sizes: tuple[int, ...]) -> None:
    async with deployment(engine={"tokens_per_chunk": sizes}) as d:
        body = user("Name a fruit.", stop="cherry", include_stop_str_in_output=True, **QUIET)
        streamed, whole = await d.post(CHAT, {**body, "stream": True}), await d.post(CHAT, body)
        assert (streamed.text(), whole.text()) == ("Apple, banana and cherry", "Apple, banana and cherry")
        assert finish_of(streamed) == [("stop", "cherry")]
        await d.check_nothing_left()


@SIZES
async def test_stop_strings_of_many_prompts(sizes: tuple[int, ...]) -> None:
    body = {"model": "tiny", "n": 2, "max_tokens": 40, "temperature": 0.5, "stop": ["lazy", "🚀 你"]}
    async with deployment(engine={"tokens_per_chunk": sizes}) as d:
        answer = await d.post(COMPLETIONS, {**body, "prompt": ["The quick brown fox", "Emoji test:"], "stream": True})
        assert [answer.text(index) for index in range(4)] == [" jumps over the "] * 2 + [" 🎉"] * 2
        assert [finish_of(answer, index) for index in range(4)] == [[("stop", "lazy")]] * 2 + [[("stop", "🚀 你")]] * 2
        assert answer.events.count(DONE) == 1
        await d.check_nothing_left()
