"""What is said of a configuration that can't be used: where, which key, which value, what was expected."""

from collections.abc import Callable
from pathlib import Path

import pytest

from motor.coordinator.config_file import ConfigError, load_settings

WriteFile = Callable[..., Path]
MODEL = "model: {served_model_name: tiny}\n"


def instance(url: str, name: str = "a") -> str:
    """Return a configuration with one instance."""
    return f"{MODEL}instances: [{{id: {name}, role: union, url: '{url}'}}]"


def problems_of(path: Path, environ: dict[str, str] | None = None) -> list[str]:
    """Return the lines of the error, the file's path shortened to FILE."""
    with pytest.raises(ConfigError) as caught:
        load_settings(path, environ or {})
    return str(caught.value).replace(str(path), "FILE").splitlines()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("api: {port: 80}", "FILE: model: missing; it must be given"),
        ("model: {}", "FILE: model.served_model_name: missing; it must be given"),
        ("model: {served_model_name: []}", "FILE: model.served_model_name: value []: expected at least 1 item"),
        (MODEL + "api: {prt: 1}", "FILE: api.prt: unknown key; did you mean port?"),
        (MODEL + "render_confg: {}", "FILE: render_confg: unknown key; did you mean render_config?"),
        (MODEL + "management: {zzz: 1}", "FILE: management.zzz: unknown key; expected one of: host, port"),
        (MODEL + "api: {port: 65536}", "FILE: api.port: value 65536: expected at most 65535"),
        (MODEL + "api: {port: 0}", "FILE: api.port: value 0: expected at least 1"),
        (MODEL + "api: {port: http}", 'FILE: api.port: value "http": expected a whole number'),
        (MODEL + "api: {port: true}", 'FILE: api.port: value "true": expected a whole number'),
        (MODEL + "api: {port: 1.5}", "FILE: api.port: value 1.5: expected a whole number"),
        (MODEL + "api: {host: ''}", 'FILE: api.host: value "": expected at least 1 character'),
        (MODEL + "api: []", "FILE: api: value []: expected a section (a mapping)"),
        (MODEL + "api:", "FILE: api: value null: expected a section (a mapping)"),
        (MODEL + "instances: {}", "FILE: instances: value {…}: expected a list"),
        (MODEL + "timeouts: {connect_seconds: .inf}", "expected a finite number"),
        (MODEL + "timeouts: {first_token_seconds: -1}", "value -1: expected more than 0"),
        (MODEL + "render_config: {enable: maybe}", 'value "maybe": expected true or false'),
        (MODEL + "deploy_mode: mixed", "value \"mixed\": expected 'union', 'handoff' or 'trigger'"),
        (MODEL + "context_budget_mode: on", "FILE: model.max_model_len: missing; context_budget_mode on needs it"),
        (instance("http://h", name="a b"), 'FILE: instances.0.id: value "a b": expected text that matches'),
        (instance("ftp://h"), 'FILE: instances.0.url: value "ftp://h": expected an http:// or'),
        (instance("http://"), "expected an http:// or https:// URL"),
        (instance("http://h h"), "expected an http:// or https:// URL"),
        (instance("http://h:0"), "expected an http:// or https:// URL"),
        (instance("http://h:99999"), "a port from 1 to 65535"),
        (instance("http://[::1"), "a URL with a host"),
        (instance("http://h/?q=1"), "without credentials, query or fragment"),
    ],
)
def test_one_problem_is_named_precisely(write_file: WriteFile, text: str, expected: str) -> None:
    (line,) = problems_of(write_file(text))
    assert line.startswith("FILE: ")
    assert expected in line


def test_every_problem_is_listed(write_file: WriteFile) -> None:
    text = "api: {port: 0, hst: x}\nmodel: {}\ninstances: [{id: a, role: none, url: x}]"
    lines = problems_of(write_file(text))
    keys = {line.split(": ")[1] for line in lines}
    assert keys == {"api.port", "api.hst", "model.served_model_name", "instances.0.role", "instances.0.url"}


@pytest.mark.parametrize(
    ("mode", "roles", "expected"),
    [
        ("union", ["prefill"], "deploy_mode union needs an instance of role union"),
        ("handoff", ["union"], "deploy_mode handoff needs an instance of role prefill and decode"),
        ("trigger", ["prefill"], "deploy_mode trigger needs an instance of role decode"),
    ],
)
def test_a_topology_without_its_roles_names_what_is_missing(
    write_file: WriteFile, mode: str, roles: list[str], expected: str
) -> None:
    instances = [f"{{id: i{number}, role: {role}, url: http://h}}" for number, role in enumerate(roles)]
    lines = problems_of(write_file(f"{MODEL}deploy_mode: {mode}\ninstances: [{', '.join(instances)}]"))
    assert lines == [f"FILE: instances: {expected}"]


def test_doubled_instance_ids_are_named(write_file: WriteFile) -> None:
    one = "{id: a, role: union, url: http://h}"
    (line,) = problems_of(write_file(f"{MODEL}instances: [{one}, {one}]"))
    assert line == "FILE: instances: expected unique ids, but a is there more than once"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("m.yaml", "model: {a: 1}\nmodel: {b: 2}", "FILE: line 2: not YAML: the key model is there twice"),
        ("m.yaml", "model:\n  a: 1\n  a: 2", "FILE: line 3: not YAML: the key a is there twice"),
        ("m.yaml", "model:\n  - [", "FILE: line 2: not YAML: "),
        ("m.yaml", "model: !!int ten", "FILE: "),
        ("m.yaml", "", "FILE: expected sections, such as `model:`, at the top"),
        ("m.yaml", "- a", "FILE: expected sections, such as `model:`, at the top"),
        ("m.yaml", b"\xff\xfe\xff", "FILE: expected UTF-8 text"),
        ("m.yaml", "a: \x00", "FILE: "),
        ("m.json", '{"model": 1, "model": 2}', "FILE: the key model is there twice"),
        ("m.json", '{\n"model": tiny}', "FILE: line 2: not JSON: Expecting value"),
    ],
)
def test_an_unreadable_file_is_named(write_file: WriteFile, name: str, text: str | bytes, expected: str) -> None:
    assert problems_of(write_file(text, name=name))[0].startswith(expected)


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "none.yaml") == ["FILE: can't be read: No such file or directory"]
    assert problems_of(tmp_path) == ["FILE: can't be read: Is a directory"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"MOTOR_API__PORT": "0"}, 'MOTOR_API__PORT: api.port: value "0": expected at least 1'),
        ({"MOTOR_API__PRT": "1"}, "MOTOR_API__PRT: api.prt: unknown key; did you mean port?"),
        ({"MOTOR_MODEL__X__Y": "1"}, "MOTOR_MODEL__X__Y: model.x: unknown key; expected one of: "),
        ({"MOTOR_DEPLOY_MODE__X": "1"}, "MOTOR_DEPLOY_MODE__X: deploy_mode: not a section"),
        ({"MOTOR_INSTANCES": "[{]"}, "MOTOR_INSTANCES: instances: not JSON: "),
        ({"MOTOR_INSTANCES": "[{}]"}, "MOTOR_INSTANCES: instances.0.id: missing"),
    ],
)
def test_a_problem_from_the_environment_names_the_variable(
    write_file: WriteFile, environ: dict[str, str], expected: str
) -> None:
    lines = problems_of(write_file(MODEL + "deploy_mode: union"), environ)
    assert lines[0].startswith(expected)


def test_a_bad_variable_and_a_bad_file_are_reported_together(write_file: WriteFile) -> None:
    lines = problems_of(write_file(MODEL + "api: {port: 0}"), {"MOTOR_INSTANCES": "[{]"})
    assert [line.split(":")[0] for line in lines] == ["MOTOR_INSTANCES", "FILE"]


def test_credentials_in_a_url_are_not_repeated(write_file: WriteFile) -> None:
    (line,) = problems_of(write_file(instance("http://user:hunter2@h")))
    assert "hunter2" not in line
    assert "//<withheld>@h" in line


def test_values_of_unknown_keys_are_not_repeated(write_file: WriteFile) -> None:
    (line,) = problems_of(write_file(MODEL + "api: {api_key: hunter2}"))
    assert "hunter2" not in line
