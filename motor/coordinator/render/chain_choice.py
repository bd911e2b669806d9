"""Which requests the token chain can't serve as native vLLM would, and why; those take the native chain.

Pure rules over the client's request and the versions of its peers (RFC: 版本要求).
"""

from collections.abc import Callable
from dataclasses import dataclass

from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.domain.version import Version

FIRST_RENDER = Version(0, 23)
FIRST_DERENDER = Version(0, 24)
FIRST_STREAM = Version(0, 27)
FIRST_FAITHFUL = Version(0, 31)
"""From here on engines tell `stop_reason`, stream several choices, and Derender streams with parsers and logprobs."""


@dataclass(frozen=True, slots=True)
class PeerVersions:
    """The oldest version of each kind of peer; `None` while unknown, which is taken for recent.

    Attributes:
        sidecar: Of the Render processes.
        engine: Of the engines.
    """

    sidecar: Version | None = None
    engine: Version | None = None


def native_reason(client: ClientRequest, versions: PeerVersions) -> str | None:
    """Return why the native chain must serve this request, or `None` if the token chain can."""
    return _version_reason(client, versions) or _feature_reason(client)


def _version_reason(client: ClientRequest, versions: PeerVersions) -> str | None:
    oldest = min((v for v in (versions.sidecar, versions.engine) if v is not None), default=FIRST_FAITHFUL)
    if oldest >= FIRST_FAITHFUL:
        return None
    if oldest < FIRST_DERENDER:
        return "version_derender"
    if client.is_stream and oldest < FIRST_STREAM:
        return "version_streaming"
    return next((reason for reason, applies in _OLD_VERSION_RULES if applies(client)), None)


def _feature_reason(client: ClientRequest) -> str | None:
    return next((reason for reason, applies in _FEATURE_RULES if applies(client)), None)


def _wants_logprobs(client: ClientRequest) -> bool:
    fields = client.fields
    return fields.get("logprobs") not in (None, False) or fields.get("prompt_logprobs") is not None


def _streams_many(client: ClientRequest) -> bool:
    n = client.fields.get("n")
    return client.is_stream and isinstance(n, int) and n > 1


def _echoes_completion(client: ClientRequest) -> bool:
    return client.api is Api.COMPLETIONS and client.flag("echo")


def _has_text_prompts(client: ClientRequest) -> bool:
    prompt = client.fields.get("prompt")
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(one, str) for one in prompt))


_Rule = tuple[str, Callable[[ClientRequest], bool]]

_FEATURE_RULES: tuple[_Rule, ...] = (
    ("beam_search", lambda client: client.flag("use_beam_search")),
    ("prompt_embeds", lambda client: client.fields.get("prompt_embeds") is not None),
    ("prompt_text", lambda client: client.flag("return_prompt_text")),
    ("logprob_token_ids", lambda client: bool(client.fields.get("logprob_token_ids"))),
    # A token stream carries no prompt logprobs.
    ("echo_logprobs", lambda client: _echoes_completion(client) and client.fields.get("logprobs") is not None),
    # Only the engine's side can decode the prompt.
    ("echo_token_ids", lambda client: _echoes_completion(client) and not _has_text_prompts(client)),
    # Generate makes at least one token.
    ("echo_only", lambda client: _echoes_completion(client) and client.fields.get("max_tokens") == 0),
)

_OLD_VERSION_RULES: tuple[_Rule, ...] = (
    # Refused where the sidecar has a parser, and an old one doesn't say whether it has.
    ("version_streaming_chat", lambda client: client.is_stream and client.api is Api.CHAT),
    # Without a stop reason nobody knows where to cut.
    ("version_stop_strings", lambda client: bool(client.fields.get("stop"))),
    ("version_logprobs", _wants_logprobs),
    ("version_many_choices", _streams_many),
    # The old derender leaves a parser's markup in the text.
    ("version_chat", lambda client: client.api is Api.CHAT),
)
