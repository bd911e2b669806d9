"""What clients see of streams that engines were killed in: everything but how it was cut."""

import json
from typing import Any

from tests.deployment import CHAT, MODEL, QUIET, Answer, Deployment, user

TOOLS = json.loads((MODEL / "expected.json").read_text(encoding="utf-8"))["tools"]
REQUESTS: dict[str, dict[str, Any]] = {
    "text": user("Say hello.", **QUIET),
    "multi-byte": user("Show me emoji.", **QUIET),
    "reasoning": user("What is 2+2?"),
    "tool": user("Compare the weather in Paris and Tokyo.", tools=TOOLS),
}
"""One request for each kind of output; the greedy answers are known."""

LAYOUTS: dict[str, dict[str, Any]] = {
    "union": {"num_engines": 2},
    "handoff": {"num_engines": 4, "roles": ["prefill", "prefill", "decode", "decode"], "deploy_mode": "handoff"},
    "trigger": {"num_engines": 4, "roles": ["prefill", "prefill", "decode", "decode"], "deploy_mode": "trigger"},
}
"""Every topology, with one instance more of each role than a request needs."""


async def streamed(d: Deployment, body: dict[str, Any]) -> Answer:
    """Ask for a stream with everything that can be counted."""
    options = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    return await d.post(CHAT, {**body, **options})


def seen_by_client(answer: Answer) -> dict[str, Any]:
    """Return a streamed chat's texts, ids, calls, ending and usage; id, creation time, role and `[DONE]` must be one.

    Raises:
        AssertionError: They aren't, or a tool call has not exactly one id.
    """
    assert answer.status == 200, answer.body
    assert answer.events[-1] == "[DONE]"
    assert answer.events.count("[DONE]") == 1
    events = answer.events[:-1]
    assert not any("error" in event for event in events), events[-1]
    assert len({(event["id"], event["created"]) for event in events}) == 1
    seen: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "endings": [], "roles": 0, "token_ids": []}
    for event in events:
        if event.get("usage"):
            seen["usage"] = _counts(event["usage"])
        for choice in event["choices"]:
            _add(seen, choice)
    assert seen.pop("roles") == 1
    return seen


def _counts(usage: dict[str, Any]) -> dict[str, int]:
    """Leave out the cached tokens, which die with an engine that is killed after its last chunk."""
    details = usage.pop("prompt_tokens_details", None) or {}
    assert details.get("cached_tokens", 0) <= usage["prompt_tokens"]
    return usage


def _add(seen: dict[str, Any], choice: dict[str, Any]) -> None:
    delta = choice["delta"]
    seen["roles"] += "role" in delta
    seen["content"] += delta.get("content") or ""
    seen["reasoning"] += delta.get("reasoning") or ""
    seen["token_ids"] += choice.get("token_ids") or []
    for call in delta.get("tool_calls") or ():
        if call["index"] not in seen["calls"]:
            assert call["id"]
            seen["calls"][call["index"]] = {"name": "", "arguments": ""}
        else:
            assert not call.get("id")
        seen["calls"][call["index"]]["name"] += call["function"].get("name") or ""
        seen["calls"][call["index"]]["arguments"] += call["function"].get("arguments") or ""
    if choice["finish_reason"]:
        seen["endings"].append((choice["finish_reason"], choice["stop_reason"]))
