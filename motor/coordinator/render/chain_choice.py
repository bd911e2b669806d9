"""Which requests the token chain can't serve as native vLLM would, and why; those take the native chain.

Pure rules over the client's request and what its peers can do (RFC: 版本要求).
"""

from collections.abc import Callable
from dataclasses import dataclass

from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.domain.version import Version

FIRST_RENDER = Version(0, 23)
FIRST_DERENDER = Version(0, 24)
FIRST_STREAM = Version(0, 27)
FIRST_FAITHFUL = Version(0, 32)
"""From here on engines tell `stop_reason`, Render and Derender pass it on, and derendered text is seeded by the prompt.

RFC's table says 0.31 for parsers; its generate still has no `stop_reason`, and its derender no prompt and no logprobs.
"""


@dataclass(frozen=True, slots=True)
class PeerFacts:
    """What the peers can do; the oldest of each kind counts.

    Attributes:
        sidecar_version: Of the Render processes; `None` while unknown, which is taken for recent.
        engine_version: Of the engines, likewise.
        has_derender: Whether the sidecar has the route.
        has_generate: Whether every engine that has answered has the route.
        has_drifted: Whether engines render other prompts than the sidecar, and that is to stop the token chain.
        keeps_spaces: Whether a sidecar before 0.32 keeps the space before an answer's first word.
        is_eos_known: Whether it is known which id's ending has no stop reason; engines before 0.32 don't tell.
    """

    sidecar_version: Version | None = None
    engine_version: Version | None = None
    has_derender: bool = True
    has_generate: bool = True
    has_drifted: bool = False
    keeps_spaces: bool = True
    is_eos_known: bool = True

    @property
    def oldest_version(self) -> Version:
        """The oldest known version."""
        known = (version for version in (self.sidecar_version, self.engine_version) if version is not None)
        return min(known, default=FIRST_FAITHFUL)

    @property
    def hides_stop_reason(self) -> bool:
        """Whether the ending of an answer is neither told nor can be inferred."""
        return not self.is_eos_known and self.engine_version is not None and self.engine_version < FIRST_FAITHFUL


def native_reason(client: ClientRequest, peers: PeerFacts) -> str | None:
    """Return why the native chain must serve this request, or `None` if the token chain can."""
    return _peer_reason(peers) or _version_reason(client, peers) or _feature_reason(client)


def shortcomings(peers: PeerFacts) -> list[str]:
    """Return what the peers lack for the token chain, in words for operators."""
    found = []
    if not peers.has_derender:
        found.append("the sidecar has no derender route; every request takes the native chain")
    if not peers.has_generate:
        found.append(
            "an engine has no token-only generate (vllm serve needs --enable-scale-out from 0.30 on); "
            "every request takes the native chain"
        )
    if peers.has_drifted:
        found.append("engines render other prompts than the sidecar; every request takes the native chain")
    if peers.oldest_version < FIRST_FAITHFUL and not peers.keeps_spaces:
        found.append("the sidecar's answers lose their first space; every request takes the native chain")
    if peers.hides_stop_reason:
        found.append(
            "engines don't tell how answers end, model.path doesn't help; every request takes the native chain"
        )
    for name, version in (("sidecar", peers.sidecar_version), ("engine", peers.engine_version)):
        if version is not None and version < FIRST_FAITHFUL:
            effect = next(effect for first, effect in _EFFECTS if version < first)
            found.append(f"the {name}'s vLLM {version} is older than {FIRST_FAITHFUL}; {effect}")
    return found


def _peer_reason(peers: PeerFacts) -> str | None:
    if not peers.has_derender:
        return "no_derender"
    if not peers.has_generate:
        return "no_generate"
    return "prompt_drift" if peers.has_drifted else None


def _version_reason(client: ClientRequest, peers: PeerFacts) -> str | None:
    oldest = peers.oldest_version
    if oldest >= FIRST_FAITHFUL:
        return None
    if oldest < FIRST_DERENDER:
        return "version_derender"
    if client.is_stream and oldest < FIRST_STREAM:
        return "version_streaming"
    if not peers.keeps_spaces:
        return "version_spaces"
    if peers.hides_stop_reason:
        return "version_stop_reason"
    return next((reason for reason, applies in _OLD_VERSION_RULES if applies(client)), None)


def _feature_reason(client: ClientRequest) -> str | None:
    return next((reason for reason, applies in _FEATURE_RULES if applies(client)), None)


def _wants_logprobs(client: ClientRequest) -> bool:
    asked = client.fields.get("logprobs")
    is_asked = client.flag("logprobs") if client.api is Api.CHAT else asked is not None
    return is_asked or client.fields.get("prompt_logprobs") is not None


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
    # Sidecar and engine of different versions leave different parts of the prompt.
    ("version_truncation", lambda client: client.fields.get("truncate_prompt_tokens") is not None),
    # The old derender leaves a parser's markup in the text.
    ("version_chat", lambda client: client.api is Api.CHAT),
)

_EFFECTS = (
    (FIRST_DERENDER, "every request takes the native chain"),
    (FIRST_STREAM, "streams, chats and whatever its answers lack take the native chain"),
    (FIRST_FAITHFUL, "chats and whatever its answers lack take the native chain"),
)
"""What a version below the named one means."""
