"""Sidecar CPU of one parsed stream: `python -m tests.measure_cpu [--stock] [NUM_TOKENS ...]`, in the plugin's folder.

Three ways to make the calls: `standard` (vLLM's own path, the client carries the history) without and with the plugin,
and `live` (by continuations). Prints one line for each number of tokens and of tokens a call.
"""

import argparse
import random
from collections.abc import Callable
from typing import Any

from tests.sidecar import CONTINUE_PATH, LIVE_PATH, STANDARD_PATH, Sidecar, running_sidecar

WORDS = ["red", "apple", "river", "stone", "cloud", "tiger", "piano", "seven", "door", "star", "robot", "whale"]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]


def make_token_ids(sidecar: Sidecar, num_tokens: int) -> list[int]:
    """Some reasoning, then content, and a tool call at the end."""
    rng = random.Random(1)  # noqa: S311 - not cryptography
    words = [rng.choice(WORDS) for _ in range(num_tokens)]
    num_reasoning_words = num_tokens // 10
    text = f"<think>{' '.join(words[:num_reasoning_words])}</think>{' '.join(words[num_reasoning_words:])}"
    call = '\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    bodies = ({"model": "tiny", "prompt": part, "add_special_tokens": False} for part in (text, call))
    text_ids, call_ids = (sidecar.post("/tokenize", body)["tokens"] for body in bodies)
    return text_ids[: num_tokens - len(call_ids)] + call_ids


def standard(sidecar: Sidecar, first: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
    state = None
    for chunk in chunks:
        state = sidecar.post(STANDARD_PATH, first | {"generate_chunk": chunk, "stream_state": state})["stream_state"]


def live(sidecar: Sidecar, first: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
    answer = sidecar.post(LIVE_PATH, first | {"generate_chunk": chunks[0]})
    for chunk in chunks[1:]:
        answer = sidecar.post(CONTINUE_PATH, {"continuation": answer["continuation"], "generate_chunk": chunk})


def measure(name: str, stream: Callable[..., None], sidecar: Sidecar, num_tokens: int, tokens_per_call: int) -> None:
    """Stream `num_tokens` tokens with a prompt of 500 and print the CPU time that the sidecar took."""
    token_ids = make_token_ids(sidecar, num_tokens)
    choices = [
        {"index": 0, "token_ids": token_ids[i : i + tokens_per_call]} for i in range(0, num_tokens, tokens_per_call)
    ]
    choices[-1] |= {"finish_reason": "stop"}
    chunks = [{"request_id": "r", "choices": [choice]} for choice in choices]
    first = {
        "stream": True,
        "model": "tiny",
        "prompt_token_ids": list(range(20, 520)),
        "chat_request": {"model": "tiny", "messages": [], "tools": TOOLS},
    }
    before = sidecar.cpu_seconds()
    stream(sidecar, first, chunks)
    cpu_seconds = sidecar.cpu_seconds() - before
    print(f"{name:<22} {num_tokens:>6} tokens {tokens_per_call:>3} a call {cpu_seconds:>8.2f} s", flush=True)


def main() -> None:
    """Measure with the plugin, or with `--stock` without."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("num_tokens", nargs="*", type=int, default=[400, 800, 1600, 3200])
    options = parser.parse_args()
    with running_sidecar("hermes", "qwen3", MOTOR_LIVE_PARSERS_ENABLE="0" if options.stock else "1") as sidecar:
        ways = [("standard, stock", standard)] if options.stock else [("live", live), ("standard, plugin", standard)]
        for name, stream in ways:
            measure("(warm up)", stream, sidecar, 64, 1)
            for num_tokens in options.num_tokens:
                for tokens_per_call in (1, 16):
                    measure(name, stream, sidecar, num_tokens, tokens_per_call)


if __name__ == "__main__":
    main()
