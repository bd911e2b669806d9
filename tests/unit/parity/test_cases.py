"""From an entry of a corpus file to the bytes on the wire."""

import json
from pathlib import Path
from typing import Any

import pytest

from motor.parity.cases import CorpusError, Mode, build_case
from motor.parity.corpus import load_corpus, select_cases


def body_of(entry: dict[str, Any], mode: Mode = Mode.WHOLE, defaults: dict[str, Any] | None = None) -> Any:
    return json.loads(build_case("t", {"name": "a", **entry}, defaults or {}).request(mode, "tiny", "salt").body)


def test_model_stream_and_salt_are_filled_in() -> None:
    assert body_of({"body": {"n": 1}}) == {"model": "tiny", "n": 1, "stream": False, "cache_salt": "salt"}
    assert body_of({"body": {}}, Mode.STREAM)["stream"] is True


def test_what_the_case_says_itself_is_kept() -> None:
    body = {"model": None, "cache_salt": "own", "stream": "yes"}

    assert body_of({"body": body}, Mode.VERBATIM) == body


def test_nothing_is_added_to_a_bad_request() -> None:
    assert "cache_salt" not in body_of({"body": {}, "tags": ["bad"]})
    assert "cache_salt" not in body_of({"body": {}, "salt": False})


def test_defaults_are_merged() -> None:
    case = build_case("t", {"name": "a", "tags": ["x"], "body": {"n": 2}}, {"tags": ["y"], "body": {"n": 1, "seed": 3}})

    assert case.tags == {"x", "y"}
    assert case.body == {"n": 2, "seed": 3}


def test_repeat_expands_texts_and_lists() -> None:
    body = body_of({"body": {"a": {"$repeat": ["ab", 3]}, "b": [{"c": {"$repeat": [[1], 2]}}], "d": {"$repeat": 1}}})

    assert (body["a"], body["b"], body["d"]) == ("ababab", [{"c": [1, 1]}], {"$repeat": 1})


def test_raw_bodies_are_sent_as_they_are() -> None:
    case = build_case("t", {"name": "a", "raw": '{"model":"${model}","stream":${stream},'}, {})

    assert case.modes == (Mode.WHOLE, Mode.STREAM)
    assert case.request(Mode.STREAM, "tiny", "salt").body == b'{"model":"tiny","stream":true,'


def test_a_raw_body_without_a_stream_place_is_sent_once() -> None:
    assert build_case("t", {"name": "a", "raw": "{"}, {}).modes == (Mode.VERBATIM,)
    assert build_case("t", {"name": "a", "raw_hex": "fffe"}, {}).raw == b"\xff\xfe"
    assert build_case("t", {"name": "a", "raw": "é", "encoding": "latin-1"}, {}).raw == b"\xe9"


def test_headers_can_be_changed_and_left_out() -> None:
    case = build_case("t", {"name": "a", "body": {}, "headers": {"Content-Type": None, "X-Request-Id": "1"}}, {})

    assert case.headers == {"X-Request-Id": "1"}


@pytest.mark.parametrize(
    "entry",
    [
        {"body": {}, "bodie": {}},
        {},
        {"body": []},
        {"body": {}, "modes": ["sideways"]},
        {"body": {}, "endpoint": "embeddings"},
        {"raw": "é", "encoding": "ascii"},
        {"raw": "é", "encoding": "klingon"},
        {"raw_hex": "zz"},
    ],
)
def test_an_unusable_case_is_named(entry: dict[str, Any]) -> None:
    with pytest.raises(CorpusError, match="t/a"):
        build_case("t", {"name": "a", **entry}, {})


@pytest.mark.parametrize(
    "text", ["", "cases: 1", "cases: [{name: a, body: {}}, {name: a, body: {}}]", "{", "cases: [1]"]
)
def test_an_unusable_corpus_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "theme.yaml").write_text(text, encoding="utf-8")

    with pytest.raises(CorpusError, match="theme"):
        load_corpus(tmp_path)


def test_an_empty_directory_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no cases"):
        load_corpus(tmp_path)


def test_json_files_are_corpus_files(tmp_path: Path) -> None:
    (tmp_path / "theme.json").write_text('{"cases": [{"name": "a", "body": {}}]}', encoding="utf-8")

    assert [case.name for case in load_corpus(tmp_path)] == ["theme/a"]


def test_cases_are_selected_by_name_or_tag() -> None:
    cases = [build_case("t", {"name": name, "tags": [tag], "body": {}}, {}) for name, tag in (("a", "x"), ("b", "y"))]

    assert [case.name for case in select_cases(cases, "t/a*")] == ["t/a"]
    assert [case.name for case in select_cases(cases, "y")] == ["t/b"]
    assert select_cases(cases, None) == cases
