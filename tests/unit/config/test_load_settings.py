"""What a configuration file may say, and what the settings then are."""

from collections.abc import Callable
from pathlib import Path

import pytest

from motor.coordinator.config_file import load_settings

WriteFile = Callable[..., Path]

FULL = """
api: {host: "::", port: 2025}
model: {served_model_name: [tiny, alias], path: /models/tiny, max_model_len: 4096}
deploy_mode: handoff
context_budget_mode: on
render_config:
  enable: true
  endpoints: [{port: 8100}, {host: "::1", port: 8101}]
instances:
  - {id: p0, role: prefill, url: "http://[fd00::1]:8000/engine/"}
  - {id: d0, role: decode, url: "https://decode.example", data_parallel_size: 2}
"""


def test_a_minimal_file_takes_every_default(write_file: WriteFile) -> None:
    settings = load_settings(write_file("model: {served_model_name: tiny}"), {})
    assert settings.model.served_model_name == ("tiny",)
    assert (settings.api.host, settings.api.port, settings.api.max_body_bytes) == ("0.0.0.0", 1025, 64 * 2**20)
    assert (settings.deploy_mode, settings.context_budget_mode, settings.instances) == ("union", "off", ())
    assert settings.render_config.enable is False
    assert settings.render_config.timeout_ms == 5000
    assert settings.render_config.renderer_num_workers == 4
    assert settings.render_config.base_urls == ("http://127.0.0.1:8100",)


def test_a_full_file_is_read_with_urls_normalised(write_file: WriteFile) -> None:
    settings = load_settings(write_file(FULL), {})
    assert settings.model.served_model_name == ("tiny", "alias")
    assert settings.context_budget_mode == "on"
    assert settings.render_config.base_urls == ("http://127.0.0.1:8100", "http://[::1]:8101")
    assert [instance.url for instance in settings.instances] == [
        "http://[fd00::1]:8000/engine",
        "https://decode.example",
    ]
    assert settings.instances[1].data_parallel_size == 2


def test_the_render_config_of_the_rfc_is_taken_as_it_stands(write_file: WriteFile) -> None:
    text = """{
\t"model": {"served_model_name": "tiny"},
\t"render_config": {
\t\t"enable": true,
\t\t"image_name": "vllm-render-cpu:v0.28.0-arm64",
\t\t"endpoint": {"host": "127.0.0.1", "port": 8100},
\t\t"timeout_ms": 5000,
\t\t"renderer_num_workers": 4
\t}
}"""
    render = load_settings(write_file(text, name="motor.json"), {}).render_config
    assert (render.enable, render.image_name, render.renderer_num_workers) == (
        True,
        "vllm-render-cpu:v0.28.0-arm64",
        4,
    )


@pytest.mark.parametrize(
    ("render", "environ", "expected"),
    [
        ("{}", {}, 6),
        ("{renderer_num_workers: 2}", {}, 2),
        ("{}", {"MOTOR_INFERENCE_WORKERS_CONFIG__NUM_WORKERS": "8"}, 8),
        ("{}", {"MOTOR_RENDER_CONFIG__RENDERER_NUM_WORKERS": "3"}, 3),
    ],
)
def test_render_workers_follow_inference_workers_unless_given(
    write_file: WriteFile, render: str, environ: dict[str, str], expected: int
) -> None:
    text = f"model: {{served_model_name: t}}\ninference_workers_config: {{num_workers: 6}}\nrender_config: {render}"
    assert load_settings(write_file(text), environ).render_config.renderer_num_workers == expected


def test_render_workers_follow_also_when_the_file_has_no_render_section(write_file: WriteFile) -> None:
    text = "model: {served_model_name: t}\ninference_workers_config: {num_workers: 6}"
    assert load_settings(write_file(text), {}).render_config.renderer_num_workers == 6


def test_the_environment_lies_over_the_file(write_file: WriteFile) -> None:
    environ = {
        "MOTOR_API__PORT": "3025",
        "MOTOR_RENDER_CONFIG__ENABLE": "true",
        "MOTOR_MODEL__SERVED_MODEL_NAME": "123",
        "MOTOR_DEPLOY_MODE": "union",
        "MOTOR_INSTANCES": '[{"id": "u0", "role": "union", "url": "http://u0:8000"}]',
        "MOTOR_LIVE_PARSERS_ENABLE": "another program's variable",
        "HOME": "/root",
    }
    settings = load_settings(write_file("model: {served_model_name: tiny}\napi: {port: 2025}"), environ)
    assert settings.api.port == 3025
    assert settings.render_config.enable is True
    assert settings.model.served_model_name == ("123",)
    assert [instance.id for instance in settings.instances] == ["u0"]


def test_a_name_that_looks_like_a_date_or_a_word_stays_text(write_file: WriteFile) -> None:
    settings = load_settings(write_file("model: {served_model_name: [2026-01-01, yes, no]}"), {})
    assert settings.model.served_model_name == ("2026-01-01", "yes", "no")


def test_settings_are_frozen(write_file: WriteFile) -> None:
    settings = load_settings(write_file("model: {served_model_name: tiny}"), {})
    with pytest.raises(ValueError, match="frozen"):
        settings.deploy_mode = "handoff"
