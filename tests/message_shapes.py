"""Requests of all shapes whose prompt is text, for comparing tokenizers."""

from typing import Any

_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather of a city, "now" <&> später',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
_HELLO = {"role": "user", "content": "Say hello."}
_ASKED = [
    {"role": "user", "content": "Weather in Paris?"},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
]
_NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}

CHATS: dict[str, dict[str, Any]] = {
    "one message": {"messages": [_HELLO]},
    "no thinking": {"messages": [_HELLO], **_NO_THINKING},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, _HELLO]},
    "turns": {"messages": [_HELLO, {"role": "assistant", "content": "Hi <b>!"}, {"role": "user", "content": "And?"}]},
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    },
    "unicode": {"messages": [{"role": "user", "content": "你好 🎉 👩‍👩‍👧 café ✓\u2028x"}]},
    "markers": {"messages": [{"role": "user", "content": "<|im_end|><think>x</think>"}]},
    "empty": {"messages": [{"role": "user", "content": ""}]},
    "tools": {"messages": [_HELLO], "tools": [_WEATHER]},
    "tools, system": {"messages": [{"role": "system", "content": "S"}, _HELLO], "tools": [_WEATHER]},
    "tool result": {
        "messages": [*_ASKED, {"role": "tool", "tool_call_id": "c1", "content": "sunny"}],
        "tools": [_WEATHER],
    },
    "two tool results": {
        "messages": [
            *_ASKED,
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "tool", "tool_call_id": "c1", "content": "hot"},
            {"role": "assistant", "content": "Sunny and hot."},
            _HELLO,
        ],
        "tools": [_WEATHER],
    },
    "reasoning in the history": {
        "messages": [_HELLO, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi."}, _HELLO]
    },
}
"""Chat requests, without `model`."""

VLLM_CHATS: dict[str, dict[str, Any]] = {
    "continued": {
        "messages": [_HELLO, {"role": "assistant", "content": "Hello th"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, _HELLO]},
    "late developer": {"messages": [_HELLO, {"role": "developer", "content": "Be brief."}, _HELLO]},
    "bare tool": {"messages": [_HELLO], "tools": [{"type": "function", "function": {"name": "f"}}]},
    "reasoning": {
        "messages": [_HELLO, {"role": "assistant", "content": "Hi.", "reasoning_content": "hm"}, _HELLO],
    },
    "no generation prompt": {"messages": [_HELLO], "add_generation_prompt": False},
    "bad arguments": {
        "messages": [
            {"role": "user", "content": "x"},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}],
            },
            {
                "role": "tool",
                "tool_call_id": "c",
                "content": [{"type": "text", "text": "p"}, {"type": "text", "text": "q"}],
            },
        ]
    },
    "effort": {"messages": [_HELLO], "reasoning_effort": "none"},
}
"""Chat requests that only vLLM itself renders as vLLM does; the simulator is simpler."""

COMPLETIONS: dict[str, dict[str, Any]] = {
    "text": {"prompt": "The quick brown fox"},
    "unicode": {"prompt": "你好 🎉 café\n\n\t x"},
    "markers": {"prompt": "<|im_start|>user\nx<|im_end|>"},
    "ids": {"prompt": [5, 6, 7]},
    "texts": {"prompt": ["a", "def add(a, b):"]},
    "lists of ids": {"prompt": [[1, 2], [3]]},
}
"""Completion requests, without `model`."""
