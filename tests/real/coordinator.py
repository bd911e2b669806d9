"""A Coordinator in the test's process, in front of real engines; what its clients see."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp

from motor.coordinator.config import Settings
from tests.deployment import CHAT, COMPLETIONS, Answer, Deployment, running_coordinator, user
from tests.real.stack import MODEL, RealStack

TOOLS = json.loads((MODEL / "expected.json").read_text(encoding="utf-8"))["tools"]
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}
LIMITS = {"max_tokens": 600}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (CHAT, user("Say hello.", **QUIET, **LIMITS)),
    "emoji": (CHAT, user("Show me emoji.", **QUIET, **LIMITS)),
    "chinese": (CHAT, user("Say hello in Chinese.", **QUIET, **LIMITS)),
    "reasoning": (CHAT, user("Why is the sky blue?", **LIMITS)),
    "one tool": (CHAT, user("What is the weather in Paris?", tools=TOOLS, **QUIET, **LIMITS)),
    "parallel tools": (CHAT, user("Compare the weather in Paris and Tokyo.", tools=TOOLS, **QUIET, **LIMITS)),
    "text, then a tool": (CHAT, user("Tell me you check, then check Oslo.", tools=TOOLS, **QUIET, **LIMITS)),
    "reasoning, then a tool": (CHAT, user("Think, then get the time in Lima.", tools=TOOLS, **LIMITS)),
    "long": (CHAT, user("Tell me a long story.", **QUIET, **LIMITS)),
    "completion": (COMPLETIONS, {"model": "tiny", "prompt": "Emoji test:", "temperature": 0, "max_tokens": 60}),
}
"""One request of each kind that the tiny model was trained on."""


@asynccontextmanager
async def coordinator(stack: RealStack, *instances: tuple[str, str], **sections: Any) -> AsyncIterator[Deployment]:
    """Run a Coordinator; leaving it checks that it holds nothing any more.

    Args:
        stack: Whose sidecar it uses.
        instances: Role and URL of each engine.
        sections: Further settings.
    """
    values = {
        "model": {"served_model_name": stack.model_name, "path": str(stack.model_path)},
        "render_config": {
            "enable": True,
            "endpoint": {"host": "127.0.0.1", "port": int(stack.render.rpartition(":")[2])},
        },
        "instances": [{"id": f"e{number}", "role": role, "url": url} for number, (role, url) in enumerate(instances)],
        "api": {"shutdown_grace_seconds": 1},
        **sections,
    }
    async with (
        running_coordinator(Settings.model_validate(values)) as (url, management_url, built),
        aiohttp.ClientSession() as http,
    ):
        d = Deployment(url, management_url, (), None, built, http)
        yield d
        await d.check_nothing_left()


def native(d: Deployment, stack: RealStack) -> Deployment:
    """Return the same client before native vLLM: what it posts, `stack.engine` answers."""
    return replace(d, url=stack.engine)


async def ask(d: Deployment, path: str, body: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """Return what the client sees of an answer: text, reasoning, tool calls, ending and usage."""
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = await d.post(path, {**body, **options})
    assert answer.status == 200, answer.body
    return seen(answer)


def seen(answer: Answer) -> dict[str, Any]:
    """Return what is left of an answer when all deltas are joined and ids forgotten."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.events[-1] == "[DONE]"
        return seen_in_events(answer.events[:-1])
    choice = answer.json["choices"][0]
    message = choice.get("message") or {"content": choice.get("text")}
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return _seen(message.get("content"), message.get("reasoning"), calls, choice, answer.json["usage"])


def seen_in_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the same of a streamed answer's events; its id and time must be one, its role be told once."""
    assert len({(event["id"], event["created"]) for event in events}) == 1
    texts = {"content": "", "reasoning": ""}
    calls: dict[int, list[str]] = {}
    endings = []
    for choice in (choice for event in events for choice in event["choices"]):
        delta = choice.get("delta") or {"content": choice.get("text")}
        for field in texts:
            texts[field] += delta.get(field) or ""
        for call in delta.get("tool_calls") or ():
            known = calls.setdefault(call["index"], ["", ""])
            known[0] += call["function"].get("name") or ""
            known[1] += call["function"].get("arguments") or ""
        endings += [choice] if choice["finish_reason"] else []
    assert len(endings) == 1
    usage = next((event["usage"] for event in reversed(events) if event.get("usage")), {})
    told = [(name, arguments) for _, (name, arguments) in sorted(calls.items())]
    return _seen(texts["content"], texts["reasoning"], told, endings[0], usage)


def _seen(
    content: str | None,
    reasoning: str | None,
    calls: list[tuple[str, str]],
    ending: dict[str, Any],
    usage: dict[str, Any],
) -> dict[str, Any]:
    return {
        "content": content or "",
        "reasoning": reasoning or "",
        "calls": [(name, json.loads(arguments)) for name, arguments in calls],
        "finish_reason": ending["finish_reason"],
        "stop_reason": ending.get("stop_reason"),
        "usage": {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
    }
