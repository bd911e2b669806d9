"""Long answers with reasoning, content and a tool call, and a client that notes when their pieces become visible."""

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.processes import BUILD, MODEL, MODEL_NAME
from motor.coordinator.wire.sse import DONE, SseDecoder
from motor.simulator import ModelFolder

CHAT = "/v1/chat/completions"
WORDS = ("red", "apple", "river", "stone", "cloud", "tiger", "piano", "seven", "door", "star", "robot", "whale")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
"""With every member that vLLM would fill in, so that its prompt is the simulator's."""
CALL = '\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


@dataclass(slots=True)
class ParsedAnswer:
    """What a client has of one answer; grows while it is read.

    Attributes:
        visible_at: When each visible piece came, on the clock of `time.perf_counter`.
        seconds: From the request to the end.
    """

    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    visible_at: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def parts(self) -> tuple[str, str, list[list[str]]]:
        """What must be equal, streamed or not."""
        return self.content, self.reasoning, self.calls

    @property
    def gaps(self) -> list[float]:
        """Seconds between visible pieces."""
        return [later - earlier for earlier, later in zip(self.visible_at, self.visible_at[1:], strict=False)]

    def take(self, members: dict[str, Any]) -> None:
        """Add a delta, or a whole message."""
        self.content += members.get("content") or ""
        self.reasoning += members.get("reasoning") or members.get("reasoning_content") or ""
        for position, call in enumerate(members.get("tool_calls") or ()):
            index = call.get("index", position)
            if index == len(self.calls):
                self.calls.append(["", ""])
            self.calls[index][0] += call["function"].get("name") or ""
            self.calls[index][1] += call["function"].get("arguments") or ""


def write_answers(lengths: Sequence[int]) -> Path:
    """Write the simulated engine's answers: for each length a chat whose output has about so many tokens."""
    folder = ModelFolder(MODEL)
    cases = [
        {"kind": "chat", "messages": messages(length), "tools": TOOLS, "raw": _text(folder, length)}
        for length in lengths
    ]
    path = BUILD / "answers.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cases": cases}), encoding="utf-8")
    return path


def messages(num_tokens: int) -> list[dict[str, str]]:
    """Return the chat that is answered with so many tokens."""
    return [{"role": "user", "content": f"Write {num_tokens} tokens."}]


def _text(folder: ModelFolder, num_tokens: int) -> str:
    rng = random.Random(1)  # noqa: S311 - not cryptography
    words: list[str] = []
    num_fixed = len(folder.encode(f"<think></think>{CALL}")) + 1
    while len(folder.encode(" ".join(words))) + num_fixed < num_tokens:
        words += rng.choices(WORDS, k=4)
    num_reasoning = len(words) // 10
    return f"<think>{' '.join(words[:num_reasoning])}</think>{' '.join(words[num_reasoning:])}{CALL}"


async def ask(http: aiohttp.ClientSession, url: str, num_tokens: int, *, is_stream: bool) -> ParsedAnswer:
    """Send the chat of that length and read the whole answer.

    Raises:
        aiohttp.ClientError: No whole 200.
        ValueError: The stream has an error event or no end.
    """
    fields = {"model": MODEL_NAME, "temperature": 0, "max_tokens": num_tokens + 64, "tools": TOOLS}
    body = {**fields, "messages": messages(num_tokens), "stream": is_stream}
    answer, started = ParsedAnswer(), time.perf_counter()
    async with http.post(url + CHAT, json=body) as response:
        response.raise_for_status()
        if is_stream:
            await _read_events(response, answer)
        else:
            answer.take((await response.json())["choices"][0]["message"])
    answer.seconds = time.perf_counter() - started
    return answer


async def _read_events(response: aiohttp.ClientResponse, answer: ParsedAnswer) -> None:
    decoder, payload = SseDecoder(), b""
    async for packet in response.content.iter_any():
        now = time.perf_counter()
        for payload in decoder.feed(packet):
            if payload == DONE:
                continue
            event = json.loads(payload)
            if "error" in event:
                raise ValueError(f"an error in the stream: {event}")
            for choice in event["choices"]:
                answer.take(choice["delta"])
                if {"content", "reasoning", "tool_calls"} & {key for key, value in choice["delta"].items() if value}:
                    answer.visible_at.append(now)
    if payload != DONE:
        raise ValueError("the stream has no end")
