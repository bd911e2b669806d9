"""The plugin stays out, with one log line, wherever it isn't sure of what it patches."""

import subprocess
import sys

import pytest

from motor_live_parsers.compatibility import find_incompatibility, fingerprint
from motor_live_parsers.settings import Settings

REGISTER = """
import logging, sys
{imports}
logging.getLogger("vllm").handlers.clear()
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
from vllm.renderers.online_derenderer import OnlineDerenderer
before = OnlineDerenderer._derender_chat_stream_parsed
{change}
import motor_live_parsers
motor_live_parsers.register()
motor_live_parsers.register()
from vllm.entrypoints.scale_out.derender.api_router import router
num_routes = sum("/derender/live" in route.path for route in router.routes)
assert num_routes in (0, 3), num_routes
print("patched" if OnlineDerenderer._derender_chat_stream_parsed is not before else "unchanged")
"""
SERVER = "import vllm.entrypoints.launchers.app"


def register(imports: str = SERVER, change: str = "", environment: dict[str, str] | None = None) -> list[str]:
    """The lines that a fresh process prints about the plugin."""
    result = subprocess.run(
        [sys.executable, "-c", REGISTER.format(imports=imports, change=change)],
        env={"VLLM_PLUGINS": "", "HOME": "/nonexistent", **(environment or {})},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [line for line in result.stdout.splitlines() if "motor-live-parsers" in line or line in _OUTCOMES]


_OUTCOMES = ("patched", "unchanged")


def test_it_installs_itself_once_in_a_server_process():
    assert register() == ["patched"]


def test_it_stays_out_of_processes_that_serve_no_http():
    assert register(imports="import vllm") == ["unchanged"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("import vllm; vllm.__version__ = '0.33.0'", "vLLM 0.33.0 is not one of 0.32.x"),
        (
            "OnlineDerenderer._detokenize_delta = lambda self: None",
            "OnlineDerenderer._detokenize_delta",
        ),
        ("import vllm.renderers.online_derenderer as m; del m._seed_stream_state", "can't be read"),
    ],
)
def test_it_stays_out_where_vllm_differs(change, reason):
    lines = register(change=change)
    assert len([line for line in lines if reason in line and "stays out" in line]) == 2  # one line for each call
    assert lines[-1] == "unchanged"


def test_it_stays_out_when_it_is_switched_off():
    lines = register(environment={"MOTOR_LIVE_PARSERS_ENABLE": "0"})
    assert "MOTOR_LIVE_PARSERS_ENABLE is off" in lines[0]
    assert lines[-1] == "unchanged"


def test_it_stays_out_when_a_setting_is_wrong():
    lines = register(environment={"MOTOR_LIVE_PARSERS_MAX_STREAMS": "many"})
    assert "MOTOR_LIVE_PARSERS_MAX_STREAMS has the invalid value 'many'" in lines[0]
    assert lines[-1] == "unchanged"


def test_the_installed_vllm_is_the_one_that_was_checked():
    assert find_incompatibility() is None


def test_a_changed_source_is_named():
    name = ("vllm.renderers.online_derenderer", "_seed_stream_state")
    assert find_incompatibility({name: fingerprint(*name)}) is None
    assert "_seed_stream_state differs" in (find_incompatibility({name: "0" * 64}) or "")


@pytest.mark.parametrize(
    ("name", "text"),
    [("ENABLE", "maybe"), ("MAX_STREAMS", "0"), ("MAX_TOKENS", "1.5"), ("TTL_SECONDS", "-1"), ("TTL_SECONDS", "inf")],
)
def test_a_wrong_setting_is_named(name, text):
    with pytest.raises(ValueError, match=f"MOTOR_LIVE_PARSERS_{name}"):
        Settings.from_environment({f"MOTOR_LIVE_PARSERS_{name}": text})


def test_settings_come_from_the_environment():
    environment = {
        "MOTOR_LIVE_PARSERS_ENABLE": "off",
        "MOTOR_LIVE_PARSERS_MAX_STREAMS": "7",
        "MOTOR_LIVE_PARSERS_MAX_TOKENS": "70",
        "MOTOR_LIVE_PARSERS_TTL_SECONDS": "0.5",
    }
    assert Settings.from_environment(environment) == Settings(False, 7, 70, 0.5)
    assert Settings.from_environment({"MOTOR_LIVE_PARSERS_MAX_TOKENS": " "}) == Settings()
