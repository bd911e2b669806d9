"""The local tokenizer gives Render's ids, for whatever is text; and says so when it can't."""

import json
from pathlib import Path
from typing import Any

import pytest

from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.render.local_tokenizer import LARGEST_BODY_BYTES, LocalTokenizer
from motor.coordinator.render.models import TokenizerSource
from motor.simulator import ModelFolder
from motor.simulator.render_settings import RenderSettings
from motor.simulator.rendering import render_chat, render_completions
from tests.deployment import MODEL
from tests.message_shapes import CHATS, COMPLETIONS

FOLDER = ModelFolder(MODEL)
SETTINGS = RenderSettings(served_model_name="tiny", max_model_len=100_000)


def asked(api: Api, body: dict[str, Any]) -> ClientRequest:
    """Return a client's request."""
    return ClientRequest("r", "r", api, json.dumps(body).encode(), body)


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in CHATS.items()])
async def test_chats(body: dict[str, Any]) -> None:
    told = await LocalTokenizer(MODEL).prompts_of(asked(Api.CHAT, body))
    assert told.prompts == (tuple(render_chat(FOLDER, SETTINGS, body, None)["token_ids"]),)
    assert (told.tokenizer_source, told.num_prompt_tokens) == (TokenizerSource.LOCAL, len(told.prompts[0]))


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in COMPLETIONS.items()])
async def test_completions(body: dict[str, Any]) -> None:
    told = await LocalTokenizer(MODEL).prompts_of(asked(Api.COMPLETIONS, body))
    assert told.prompts == tuple(tuple(one["token_ids"]) for one in render_completions(FOLDER, SETTINGS, body, None))
    assert told.num_prompt_tokens == sum(map(len, told.prompts))


async def test_it_is_loaded_by_the_first_request_and_once(tmp_path: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((MODEL / file).read_bytes())
    tokenizer = LocalTokenizer(tmp_path)
    assert not tokenizer.is_loaded
    assert (await tokenizer.prompts_of(asked(Api.COMPLETIONS, {"prompt": "a"}))).prompts
    assert tokenizer.is_loaded
    (tmp_path / "tokenizer.json").unlink()
    assert (await tokenizer.prompts_of(asked(Api.COMPLETIONS, {"prompt": "a"}))).prompts


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"messages": [{"role": "user", "content": "a"}], "chat_template": "{{ messages }}"},
        {"messages": 5},
        {"messages": [5]},
        {"messages": [{"content": "a"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {},
    ],
    ids=lambda body: json.dumps(body)[:40],
)
async def test_what_it_can_not_tokenize_is_estimated(body: dict[str, Any]) -> None:
    told = await LocalTokenizer(MODEL).prompts_of(asked(Api.CHAT, body))
    assert (told.prompts, told.tokenizer_source) == ((), TokenizerSource.LENGTH)
    assert told.num_prompt_tokens == max(1, len(json.dumps(body)) // 4)


async def test_a_huge_request_is_estimated_and_loads_nothing() -> None:
    tokenizer = LocalTokenizer(MODEL)
    told = await tokenizer.prompts_of(asked(Api.COMPLETIONS, {"prompt": "a" * LARGEST_BODY_BYTES}))
    assert told.tokenizer_source is TokenizerSource.LENGTH
    assert not tokenizer.is_loaded


@pytest.mark.parametrize("content", [None, "{", "{}"], ids=["absent", "broken", "other"])
async def test_without_a_usable_tokenizer_everything_is_estimated(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    for path in (tmp_path, None):
        told = await LocalTokenizer(path).prompts_of(asked(Api.COMPLETIONS, {"prompt": "four"}))
        assert (told.tokenizer_source, told.num_prompt_tokens) == (TokenizerSource.LENGTH, 4)


@pytest.mark.parametrize(
    ("template", "fields", "expected"),
    [
        ("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", {}, "user:a\nb;"),
        ("{% for m in messages %}{% for p in m['content'] %}<{{ p.text }}>{% endfor %}{% endfor %}", {}, "<a><b>"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", {}, "a\nb!"),
        ("{{ bos_token }}{{ add_generation_prompt }}{{ x }}", {"chat_template_kwargs": {"x": 1}}, "<s>True1"),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", {}, '{"b": "<é>", "a": 1}'),
        ("{{ strftime_now('%Y') | length }}", {}, "4"),
        ("{{ enable_thinking }}{{ reasoning_effort }}", {"reasoning_effort": "none"}, "Falsenone"),
        (
            "{{ tools[0].function | tojson }}",
            {"tools": [{"type": "function", "function": {"parameters": {}, "name": "f"}}]},
            '{"name": "f", "description": null, "parameters": {}}',
        ),
    ],
)
def test_templates_find_what_transformers_gives_them(template: str, fields: dict[str, Any], expected: str) -> None:
    from motor.coordinator.render.chat_template import ChatTemplate

    parts = [{"type": "text", "text": "a"}, "b"]
    rendered = ChatTemplate(template, {"bos_token": "<s>"}).render(
        {"messages": [{"role": "user", "content": parts}], **fields}
    )
    assert rendered == expected
