"""Each rule of the choice between the chains, by itself, and what operators are told."""

from typing import Any

import pytest

from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.domain.version import Version
from motor.coordinator.render.chain_choice import PeerFacts, native_reason, shortcomings

RECENT = PeerFacts(Version(0, 32), Version(0, 32))
OLD = PeerFacts(Version(0, 28), Version(0, 28))
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"prompt": "Hi"}


def reason(api: Api, fields: dict[str, Any], peers: PeerFacts) -> str | None:
    client = ClientRequest(request_id="r", peer_id="r", api=api, body=b"", fields=fields)
    return native_reason(client, peers)


@pytest.mark.parametrize(
    ("api", "fields", "expected"),
    [
        (Api.CHAT, {"use_beam_search": True}, "beam_search"),
        (Api.CHAT, {"use_beam_search": "yes"}, "beam_search"),
        (Api.CHAT, {"use_beam_search": False}, None),
        (Api.COMPLETIONS, {"prompt_embeds": "AAAA"}, "prompt_embeds"),
        (Api.COMPLETIONS, {"prompt_embeds": None}, None),
        (Api.CHAT, {"return_prompt_text": 1}, "prompt_text"),
        (Api.CHAT, {"logprob_token_ids": [5]}, "logprob_token_ids"),
        (Api.CHAT, {"logprob_token_ids": []}, None),
        (Api.COMPLETIONS, {"echo": True, "logprobs": 0}, "echo_logprobs"),
        (Api.COMPLETIONS, {"echo": True, "logprobs": None}, None),
        (Api.COMPLETIONS, {"echo": False, "logprobs": 1}, None),
        (Api.COMPLETIONS, {"echo": True, "prompt": [1, 2]}, "echo_token_ids"),
        (Api.COMPLETIONS, {"echo": True, "prompt": [[1, 2], [3]]}, "echo_token_ids"),
        (Api.COMPLETIONS, {"echo": True, "prompt": ["a", "b"]}, None),
        (Api.COMPLETIONS, {"prompt": [1, 2]}, None),
        (Api.COMPLETIONS, {"echo": True, "max_tokens": 0}, "echo_only"),
        (Api.COMPLETIONS, {"echo": True, "max_tokens": 1}, None),
        (Api.CHAT, {"echo": True, "logprobs": True}, None),
    ],
)
def test_what_generate_and_derender_can_never_show(api: Api, fields: dict[str, Any], expected: str | None) -> None:
    base = CHAT if api is Api.CHAT else TEXT
    assert reason(api, {**base, **fields}, RECENT) == expected


RICH_CHAT = {**CHAT, "stream": True, "stop": ["x"], "logprobs": True, "top_logprobs": 5, "n": 3, "stop_token_ids": [1]}


def test_recent_peers_serve_everything_else_by_tokens() -> None:
    assert reason(Api.CHAT, RICH_CHAT, RECENT) is None
    assert reason(Api.CHAT, RICH_CHAT, PeerFacts()) is None, "unknown versions are taken for recent"
    assert reason(Api.CHAT, RICH_CHAT, PeerFacts(None, Version(0, 33, 1))) is None


@pytest.mark.parametrize("peers", [OLD, PeerFacts(Version(0, 28), Version(0, 32)), PeerFacts(None, Version(0, 31, 9))])
@pytest.mark.parametrize(
    ("api", "fields", "expected"),
    [
        (Api.CHAT, {}, "version_chat"),
        (Api.CHAT, {"stream": True}, "version_streaming_chat"),
        (Api.COMPLETIONS, {}, None),
        (Api.COMPLETIONS, {"stream": True}, None),
        (Api.COMPLETIONS, {"stop": ["x"]}, "version_stop_strings"),
        (Api.COMPLETIONS, {"stop": []}, None),
        (Api.COMPLETIONS, {"logprobs": 0}, "version_logprobs"),
        (Api.COMPLETIONS, {"prompt_logprobs": 0}, "version_logprobs"),
        (Api.COMPLETIONS, {"stream": True, "n": 2}, "version_many_choices"),
        (Api.COMPLETIONS, {"n": 2}, None),
        (Api.COMPLETIONS, {"truncate_prompt_tokens": -1}, "version_truncation"),
        (Api.COMPLETIONS, {"use_beam_search": True}, "beam_search"),
    ],
)
def test_one_peer_before_0_32_limits_the_token_chain(
    peers: PeerFacts, api: Api, fields: dict[str, Any], expected: str | None
) -> None:
    base = CHAT if api is Api.CHAT else TEXT
    assert reason(api, {**base, **fields}, peers) == expected


@pytest.mark.parametrize(
    ("version", "streamed", "complete"),
    [
        (Version(0, 23), "version_derender", "version_derender"),
        (Version(0, 24), "version_streaming", None),
        (Version(0, 26, 9), "version_streaming", None),
        (Version(0, 27), None, None),
    ],
)
def test_the_table_of_first_versions(version: Version, streamed: str | None, complete: str | None) -> None:
    peers = PeerFacts(version, Version(0, 32))
    assert reason(Api.COMPLETIONS, {**TEXT, "stream": True}, peers) == streamed
    assert reason(Api.COMPLETIONS, TEXT, peers) == complete


@pytest.mark.parametrize(
    ("peers", "expected"),
    [
        (PeerFacts(has_derender=False), "no_derender"),
        (PeerFacts(has_generate=False), "no_generate"),
        (PeerFacts(has_drifted=True), "prompt_drift"),
    ],
)
def test_what_no_request_can_do_without(peers: PeerFacts, expected: str) -> None:
    assert reason(Api.CHAT, CHAT, peers) == expected
    assert reason(Api.COMPLETIONS, {**TEXT, "stream": True}, peers) == expected


@pytest.mark.parametrize(
    ("peers", "expected"),
    [
        (PeerFacts(Version(0, 28), keeps_spaces=False), "version_spaces"),
        (PeerFacts(None, Version(0, 28), is_eos_known=False), "version_stop_reason"),
        (PeerFacts(Version(0, 28), Version(0, 32), is_eos_known=False), None),
        (PeerFacts(None, Version(0, 32), is_eos_known=False), None),
    ],
)
def test_what_old_peers_hide_from_completions(peers: PeerFacts, expected: str | None) -> None:
    assert reason(Api.COMPLETIONS, TEXT, peers) == expected
    assert reason(Api.COMPLETIONS, {**TEXT, "stream": True}, peers) == expected
    assert len(shortcomings(peers)) == (peers.oldest_version < Version(0, 32)) + (expected is not None)


def test_operators_are_told_nothing_of_recent_peers() -> None:
    assert shortcomings(RECENT) == []
    assert shortcomings(PeerFacts()) == []


def test_operators_are_told_who_is_old_and_what_follows() -> None:
    (sidecar,) = shortcomings(PeerFacts(Version(0, 28), Version(0, 32)))
    assert sidecar.startswith("the sidecar's vLLM 0.28.0 is older than 0.32.0")
    assert "streams" not in sidecar
    (engine,) = shortcomings(PeerFacts(Version(0, 32), Version(0, 26)))
    assert engine.startswith("the engine's vLLM 0.26.0")
    assert "streams" in engine
    (ancient,) = shortcomings(PeerFacts(Version(0, 22)))
    assert "every request" in ancient
    assert len(shortcomings(PeerFacts(Version(0, 28), Version(0, 28), False, False, True))) == 5
