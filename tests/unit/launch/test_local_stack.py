"""The plan of a local stack."""

from pathlib import Path

from motor.coordinator.config_file import load_settings
from motor.launch.engine_environment import EngineEnvironment
from motor.launch.local_stack import StackOptions, plan_simulated_stack, plan_vllm_stack
from motor.launch.vllm_commands import ModelOptions

CPU = EngineEnvironment(Path("/venv/bin/python"), (0, 32, 0), is_cpu_build=True)


def options(folder: Path, model: str) -> StackOptions:
    """Return options for two engines."""
    return StackOptions(
        model=ModelOptions(model, "tiny", max_model_len=2048),
        num_engines=2,
        host="0.0.0.0",
        port=18000,
        management_port=18001,
        run_directory=folder,
        num_render_workers=3,
    )


def test_the_coordinators_file_is_valid_and_names_the_planned_peers(tmp_path: Path) -> None:
    plan = plan_vllm_stack(options(tmp_path, str(tmp_path)), CPU)
    assert [peer.name for peer in plan.peers] == ["render", "engine-1", "engine-2"]
    settings = load_settings(tmp_path / "coordinator.yaml", {})
    assert settings.render_config.base_urls == (plan.peers[0].url,)
    assert settings.render_config.renderer_num_workers == 3
    assert [(one.id, one.role, one.url) for one in settings.instances] == [
        (peer.name, "union", peer.url) for peer in plan.peers[1:]
    ]
    assert settings.model.served_model_name == ("tiny",)
    assert settings.model.path == tmp_path
    assert settings.model.max_model_len == 2048
    assert (settings.api.port, settings.management.port, settings.management.host) == (18000, 18001, "127.0.0.1")


def test_the_coordinator_is_asked_on_loopback_and_its_end_is_the_end(tmp_path: Path) -> None:
    plan = plan_vllm_stack(options(tmp_path, str(tmp_path)), CPU)
    assert plan.coordinator.url == "http://127.0.0.1:18000"
    assert plan.coordinator.is_vital
    assert not any(peer.is_vital for peer in plan.peers)


def test_every_peer_has_its_own_port_and_log(tmp_path: Path) -> None:
    plan = plan_simulated_stack(options(tmp_path, str(tmp_path)))
    assert len({peer.url for peer in plan.peers}) == len({peer.log_path for peer in plan.peers}) == 3
    for peer in plan.peers:
        port = peer.arguments[peer.arguments.index("--port") + 1]
        assert peer.url.endswith(f":{port}")
        assert peer.arguments[0] == "simulate"


def test_a_model_of_the_hub_has_no_path_in_the_coordinators_file(tmp_path: Path) -> None:
    plan_vllm_stack(options(tmp_path, "org/name"), CPU)
    assert load_settings(tmp_path / "coordinator.yaml", {}).model.path is None
