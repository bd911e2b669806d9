"""Client of an external KV Conductor, by Mooncake's HTTP API. Mutable: `_registered`, `_is_answering`."""

from collections.abc import Callable, Mapping

import msgspec

from motor.coordinator.domain.instance import Role
from motor.coordinator.domain.tokens import PhysicalTokenIds
from motor.coordinator.kv_query.port import CacheScope, EndpointKey, EventSource
from motor.coordinator.telemetry.log import get_logger
from motor.coordinator.transport.faults import TransportFault
from motor.coordinator.transport.http_pool import HttpPool

QUERY_SECONDS = 0.2
_REGISTER_SECONDS = 5.0
_JSON_HEADERS = {"Content-Type": "application/json"}
_ENGINE_TYPE = "vLLM"
_log = get_logger(__name__)
_encode = msgspec.json.Encoder().encode


class _Matches(msgspec.Struct):
    """What one instance holds, in tokens; by rank where the conductor knows them apart."""

    longest_matched: int = 0
    by_rank: dict[str, int] = msgspec.field(default_factory=dict, name="DP")


_decode = msgspec.json.Decoder(dict[str, dict[str, _Matches]]).decode


class ExternalConductor:
    """Asks a conductor that follows the engines itself.

    Its API has no word for a salt: a salted prompt is not asked for and matches nothing.

    Args:
        pool: The HTTP client.
        url: The conductor, without trailing slash.
        block_size: Tokens a block, as the engines have it.
        tenant_id: Whose index to use; `None` for the conductor's default.
        timeout_seconds: For an answer, sending included.
        on_no_answer: Called with why there was none, to be counted: `connect`, `timeout`, `reset`, `protocol`,
            `status` or `malformed`.
    """

    def __init__(
        self,
        pool: HttpPool,
        url: str,
        *,
        block_size: int,
        tenant_id: str | None = None,
        timeout_seconds: float = QUERY_SECONDS,
        on_no_answer: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._pool = pool
        self._url = url
        self._block_size = block_size
        self._tenant = {} if tenant_id is None else {"tenant_id": tenant_id}
        self._timeout_seconds = timeout_seconds
        self._on_no_answer = on_no_answer
        self._registered: dict[EndpointKey, tuple[str, dict[str, object]]] = {}
        self._is_answering = True

    async def register(self, source: EventSource, role: Role = Role.PREFILL) -> bool:
        """Tell the conductor where an endpoint publishes; return whether it took it. A fault is counted."""
        instance_name = conductor_instance_id(source.endpoint.instance_id, role)
        registration: dict[str, object] = {
            "endpoint": source.address,
            "type": _ENGINE_TYPE,
            "modelname": source.model,
            "block_size": self._block_size,
            "instance_id": instance_name,
            "dp_rank": source.endpoint.data_parallel_rank,
            **self._tenant,
        }
        if source.replay_address is not None:
            registration["replay_endpoint"] = source.replay_address
        self._registered[source.endpoint] = (instance_name, registration)
        return await self._post("/register", registration, _REGISTER_SECONDS) is not None

    async def register_again(self) -> int:
        """Repeat all registrations, because the conductor may have lost them; return how many it took."""
        registrations = [registration for _, registration in self._registered.values()]
        answers = [await self._post("/register", registration, _REGISTER_SECONDS) for registration in registrations]
        return sum(answer is not None for answer in answers)

    async def unregister(self, endpoint: EndpointKey) -> bool:
        """Tell the conductor that an endpoint is gone; return whether it took it."""
        known = self._registered.pop(endpoint, None)
        return known is not None and await self._post("/unregister", known[1], _REGISTER_SECONDS) is not None

    async def matched_tokens(self, token_ids: PhysicalTokenIds, scope: CacheScope) -> Mapping[EndpointKey, int]:
        """Ask the conductor, see `KvQuery`."""
        if scope.cache_salt is not None or not self._registered:
            return {}
        question: dict[str, object] = {
            "model": scope.model,
            "block_size": self._block_size,
            "token_ids": token_ids,
            **self._tenant,
        }
        if scope.lora is not None:
            question["lora_name"] = scope.lora
        body = await self._post("/query", question, self._timeout_seconds)
        if body is None:
            return {}
        try:
            tenants = _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._no_answer("malformed")
            return {}
        return self._by_endpoint(tenants, len(token_ids))

    def note_routed(self, token_ids: PhysicalTokenIds, scope: CacheScope, endpoint: EndpointKey) -> None:
        """The conductor has its own ways to learn that."""

    def _by_endpoint(self, tenants: dict[str, dict[str, _Matches]], num_tokens: int) -> dict[EndpointKey, int]:
        """Return matches of registered endpoints; nobody can hold more than the prompt."""
        instances = {name: matches for tenant in tenants.values() for name, matches in tenant.items()}
        found: dict[EndpointKey, int] = {}
        for endpoint, (name, _) in self._registered.items():
            matches = instances.get(name)
            if matches is not None:
                # Without ranks the conductor doesn't tell which one holds it: all of them may.
                rank = str(endpoint.data_parallel_rank)
                num_matched = matches.by_rank.get(rank, 0) if matches.by_rank else matches.longest_matched
                if num_matched > 0:
                    found[endpoint] = min(num_matched, num_tokens)
        return found

    async def _post(self, path: str, content: dict[str, object], timeout_seconds: float) -> bytes | None:
        try:
            answer = await self._pool.request(
                "POST",
                self._url + path,
                body=_encode(content),
                headers=_JSON_HEADERS,
                timeout_seconds=timeout_seconds,
            )
        except TransportFault as fault:
            self._no_answer(fault.kind.value)
            return None
        if answer.status != 200:
            self._no_answer("status")
            return None
        self._is_answering = True
        return answer.body

    def _no_answer(self, reason: str) -> None:
        if self._is_answering:  # one line when it begins; every case is counted
            _log.warning("kv_query.no_answer", conductor=self._url, reason=reason)
            self._is_answering = False
        self._on_no_answer(reason)


def conductor_instance_id(instance_id: str, role: Role) -> str:
    """Return what a conductor calls an instance."""
    return f"vllm-{role.value}-{instance_id}"
