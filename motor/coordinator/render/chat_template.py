"""A model's chat template, rendered as Render does it: vLLM prepares the messages, transformers runs the template.

Source: vLLM 0.32 `renderers/{hf,chat_utils}.py`, transformers `utils/chat_template_utils.py`. Text only: whoever asks
for images or sound needs the model's processor, which is not here.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
_TEXT_KEYS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_TOOL_KEYS = ("name", "description", "parameters")
_OPTIONAL_TOOL_KEYS = ("strict", "defer_loading")

RENDERING_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a template raises on messages that it was not made for."""


class _GenerationBlocks(Extension):
    """`{% generation %}` marks what the model said, for training; the text inside is ordinary text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the block's content."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template.

    Args:
        source: The template.
        special_texts: `bos_token` and the like, by name.

    Raises:
        jinja2.TemplateError: It is none.
    """

    def __init__(self, source: str, special_texts: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(source)
        self._special_texts = dict(special_texts)
        self._wants_parts = _iterates_over_content(environment.parse(source))
        self._knows_developers = "'developer'" in source or '"developer"' in source

    def render(self, fields: Mapping[str, Any]) -> str:
        """Return the prompt's text.

        Args:
            fields: Of a chat request.

        Raises:
            Exception: One of `RENDERING_ERRORS`: the messages hold more than text, or the template refuses them.
        """
        messages = [_prepared(message, wants_parts=self._wants_parts) for message in fields["messages"]]
        if not self._knows_developers:
            messages = _without_developers(messages)
        tools = fields.get("tools")
        variables = {
            **self._special_texts,
            **_variables(fields),
            "tools": None if tools is None else [_prepared_tool(tool) for tool in tools],
        }
        if not fields.get("continue_final_message"):
            return self._template.render(messages=messages, **variables)
        continued = deepcopy(messages)
        final_text = _mark_end(continued[-1])
        return _cut_at_mark(self._template.render(messages=continued, **variables), final_text)


def _variables(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the template may read beside the messages; the request's own members win over the variables."""
    effort = fields.get("reasoning_effort")
    given = dict(fields.get("chat_template_kwargs") or {})
    if effort is not None and "enable_thinking" not in given:
        given["enable_thinking"] = effort != "none"
    own = {
        "add_generation_prompt": fields.get("add_generation_prompt", True),
        "continue_final_message": fields.get("continue_final_message", False),
        "documents": fields.get("documents"),
        "reasoning_effort": effort,
    }
    given.update({name: value for name, value in own.items() if value not in (None, "auto")})
    return given


def _prepared(message: Mapping[str, Any], *, wants_parts: bool) -> dict[str, Any]:
    """Return a message as templates expect it, without members that vLLM doesn't hand on."""
    role = message["role"]
    parts = _text_parts(message.get("content"))
    joined = "\n".join(part["text"] for part in parts)
    prepared: dict[str, Any] = {"role": role, "content": joined}
    if wants_parts and role != "tool":
        prepared["content"] = parts
    if role == "assistant":
        calls = message.get("tool_calls")
        if calls:
            prepared["tool_calls"] = [_opened_call(call) for call in calls]
        reasoning = message.get("reasoning")
        reasoning = message.get("reasoning_content") if reasoning is None else reasoning
        if reasoning is not None:
            prepared["reasoning"] = prepared["reasoning_content"] = reasoning
    elif role == "tool" and "tool_call_id" in message:
        prepared["tool_call_id"] = message["tool_call_id"]
    elif role == "developer":
        prepared["tools"] = message.get("tools")
    prepared.update({name: message[name] for name in ("name", "task") if isinstance(message.get(name), str)})
    return prepared


def _text_parts(content: object) -> list[dict[str, str]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, Sequence):
        raise TypeError("content is neither text nor a list of parts")
    texts = [part if isinstance(part, str) else _part_text(part) for part in content]
    return [{"type": "text", "text": text} for text in texts if text is not None]


def _part_text(part: Mapping[str, Any]) -> str | None:
    text: str | None = part[_TEXT_KEYS[part.get("type", "text")]]
    return text


def _opened_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call whose arguments are an object; templates can't read JSON."""
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments else {}
        except ValueError:
            arguments = {}
    function["arguments"] = arguments if isinstance(arguments, dict) else {}
    return {**call, "function": function}


def _prepared_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    known = {name: function.get(name) for name in _TOOL_KEYS}
    known.update({name: function[name] for name in _OPTIONAL_TOOL_KEYS if function.get(name) is not None})
    return {"type": tool.get("type", "function"), "function": known}


def _without_developers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with developers as the system, which speaks once and first."""
    if not any(message["role"] == "developer" for message in messages):
        return messages
    roles = ["system" if message["role"] == "developer" else message["role"] for message in messages]
    if "system" not in roles[1:]:
        return [{**message, "role": role} for message, role in zip(messages, roles, strict=True)]
    said = [_text_of(message) for message, role in zip(messages, roles, strict=True) if role == "system"]
    merged = {"role": "system", "content": "\n\n".join(text for text in said if text)}
    return [merged, *(message for message, role in zip(messages, roles, strict=True) if role != "system")]


def _text_of(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _mark_end(message: dict[str, Any]) -> str:
    """Mark where the final message ends, and return its text."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _CONTINUED
        return content
    last: dict[str, str] = content[-1]
    text = last["text"]
    last["text"] = text + _CONTINUED
    return text


def _cut_at_mark(rendered: str, final_text: str) -> str:
    """Return the prompt up to the end of the final message; a template may have stripped the space after it."""
    if final_text.strip() not in rendered:
        raise ValueError("the template drops a part of the final message")
    end = rendered.rindex(_CONTINUED.strip())
    is_spaced = rendered[end : end + len(_CONTINUED)] == _CONTINUED
    return rendered[:end] if is_spaced else rendered[:end].rstrip()


def _iterates_over_content(template: nodes.Template) -> bool:
    """Whether the template takes content as a list of parts: it loops over some message's `content`."""
    return any(_is_content(loop.iter) for loop in template.find_all(nodes.For))


def _is_content(node: nodes.Node | None) -> bool:
    if isinstance(node, nodes.Filter | nodes.Test):
        return _is_content(node.node)
    if isinstance(node, nodes.Getitem):
        if isinstance(node.arg, nodes.Slice):
            return _is_content(node.node)
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Name) and node.name == "content"


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter this one escapes nothing for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)  # the local time, as engines print it
