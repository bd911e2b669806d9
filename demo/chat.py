#!/usr/bin/env python3
"""One streamed chat with the OpenAI client, printed as it arrives, and then where its time went."""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request

from openai import OpenAI
from rich.console import Console
from rich.table import Table

STAGES = {
    "render_ms": "render: text to tokens, by the sidecar",
    "schedule_ms": "schedule: choice of the engine",
    "first_chunk_ms": "first chunk: until the engine's first token",
    "derender_ms": "derender: tokens to text, all chunks",
    "total_ms": "total, as the Coordinator sees it",
}


def stream_chat(base_url: str, model: str, prompt: str, max_tokens: int) -> tuple[str, str, dict[str, float]]:
    """Print the answer piece by piece.

    Returns:
        The answer's id, its text, and what the client measured, in milliseconds.

    Raises:
        openai.OpenAIError: The request failed.
    """
    client = OpenAI(base_url=f"{base_url}/v1", api_key="not needed", timeout=120.0, max_retries=0)
    started = time.perf_counter()
    answer_id, pieces, first_text = "", [], None
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        stream=True,
        temperature=0,
        max_tokens=max_tokens,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    for chunk in stream:
        answer_id = chunk.id
        text = chunk.choices[0].delta.content if chunk.choices else None
        if text:
            first_text = first_text or time.perf_counter()
            pieces.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()
    sys.stdout.write("\n")
    ended = time.perf_counter()
    seen = {"first text at the client": (first_text or ended) - started, "whole answer at the client": ended - started}
    return answer_id, "".join(pieces), {name: seconds * 1000 for name, seconds in seen.items()}


def stage_times(management_url: str, answer_id: str) -> dict[str, float]:
    """Return the Coordinator's milliseconds per stage; nothing if it doesn't know the request."""
    request_id = answer_id.partition("-")[2]
    url = f"{management_url}/debug/request-timing?request_id={request_id}"
    try:
        with urllib.request.urlopen(url, timeout=5) as told:  # noqa: S310 - the address is the user's own choice
            times: dict[str, float] = json.load(told)
    except urllib.error.URLError:
        return {}
    return times


def main() -> int:
    """Chat once; return the exit code."""
    parser = argparse.ArgumentParser(description="One streamed chat, and where its time went.")
    parser.add_argument("--url", default="http://127.0.0.1:1025", help="The Coordinator, for clients.")
    parser.add_argument("--management-url", default="http://127.0.0.1:1026", help="The Coordinator, for operators.")
    parser.add_argument("--model", required=True, help="The served model name.")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("prompt", nargs="?", default="What is the capital of France?")
    options = parser.parse_args()
    console = Console()
    console.print(f"[bold]you[/]   {options.prompt}")
    console.print(f"[bold]{options.model}[/]   ", end="")
    answer_id, text, seen = stream_chat(options.url, options.model, options.prompt, options.max_tokens)
    table = Table("stage", "milliseconds", box=None)
    table.columns[1].justify = "right"
    times = stage_times(options.management_url, answer_id)
    for key, title in STAGES.items():
        if key in times:
            table.add_row(title, f"{times[key]:.1f}")
    for title, milliseconds in seen.items():
        table.add_row(title, f"{milliseconds:.1f}")
    console.print(table)
    if not text:
        console.print("the answer is empty", style="red")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
