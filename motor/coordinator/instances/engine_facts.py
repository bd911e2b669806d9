"""What engines tell about themselves: version, token-only generate, fingerprint.

Mutable: the facts, and which instances are away (`_lost`) or have not told everything yet (`_unfinished`).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from motor.coordinator.domain.instance import Instance
from motor.coordinator.domain.version import Version
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.telemetry.log import get_logger
from motor.coordinator.transport.faults import TransportFault
from motor.coordinator.transport.http_pool import HttpPool

PROBE_SECONDS = 5.0
_GENERATE_PATH = "/inference/v1/generate"
_ROUTE_ABSENT = frozenset({403, 404, 405, 501})
_JSON_HEADERS = {"Content-Type": "application/json"}
_log = get_logger(__name__)


class _VersionAnswer(msgspec.Struct):
    version: str = ""


class _FingerprintAnswer(msgspec.Struct):
    system_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What one engine told.

    Attributes:
        version: As text, so that any change is noticed; empty if the engine doesn't tell one.
        system_fingerprint: Of a native answer; `None` if the engine gives none.
        has_generate: Whether token-only generate is there; vLLM 0.30 and later have it by flag only.
        epoch: How often the engine was got to know: at first, after each change, and each time it came back.
    """

    version: str
    system_fingerprint: str | None = None
    has_generate: bool = True
    epoch: int = 1


class EngineFactsFeed:
    """Asks every instance for its version, and for everything else when that has changed or it has been away.

    Args:
        registry: The instances.
        pool: The HTTP client.
        model: A name that engines serve.
    """

    def __init__(self, registry: InstanceRegistry, pool: HttpPool, model: str) -> None:
        self._registry = registry
        self._pool = pool
        self._model = model
        self._facts: dict[str, EngineFacts] = {}
        self._lost: set[str] = set()
        self._unfinished: set[str] = set()

    @property
    def facts(self) -> Mapping[str, EngineFacts]:
        """What is known, by instance id; an instance that never answered is not in it."""
        return self._facts

    @property
    def oldest_version(self) -> Version | None:
        """The oldest version among the engines that have told one."""
        versions = (Version.parse(facts.version) for facts in self._facts.values())
        return min((version for version in versions if version is not None), default=None)

    @property
    def system_fingerprint(self) -> str | None:
        """The fingerprint that the engines share; of the first that has one, if they differ."""
        return next((f.system_fingerprint for f in self._facts.values() if f.system_fingerprint is not None), None)

    def generate_refused(self, instance_id: str) -> None:
        """Note that an instance has answered token-only generate as one that lacks it; the next refresh asks again."""
        known = self._facts.get(instance_id, EngineFacts(version=""))
        self._facts[instance_id] = replace(known, has_generate=False)

    async def refresh(self) -> bool:
        """Ask all instances once; one that doesn't answer keeps what is known of it.

        Returns:
            Whether every instance answered all that was asked.
        """
        instances = self._registry.all()
        complete = await asyncio.gather(*(self._refresh_one(instance) for instance in instances))
        known = {instance.id for instance in instances}
        self._facts = {id_: facts for id_, facts in self._facts.items() if id_ in known}
        return all(complete)

    async def _refresh_one(self, instance: Instance) -> bool:
        known = self._facts.get(instance.id)
        try:
            answer = await self._pool.request("GET", instance.url + "/version", timeout_seconds=PROBE_SECONDS)
        except TransportFault:
            self._lost.add(instance.id)
            return False
        version = _decode_version(answer.body)
        if known is None or known.version != version or instance.id in self._lost:
            # Kept at once: the other answers may take long on a busy engine, and versions must not wait for them.
            known = EngineFacts(version, epoch=known.epoch + 1 if known is not None else 1)
            self._facts[instance.id] = known
            self._unfinished.add(instance.id)
        self._lost.discard(instance.id)
        # A route that is absent may be opened by whatever stands before the engine.
        return (instance.id not in self._unfinished and known.has_generate) or await self._finish(instance, known)

    async def _finish(self, instance: Instance, known: EngineFacts) -> bool:
        """Ask for everything beside the version; false if that must be repeated."""
        try:
            has_generate = await self._has_generate(instance)
            facts = replace(known, has_generate=has_generate, system_fingerprint=await self._fingerprint(instance))
        except TransportFault:
            return False
        is_news = instance.id in self._unfinished or facts != known
        self._facts[instance.id] = facts
        self._unfinished.discard(instance.id)
        if is_news:
            _log.info("engine.known", instance=instance.id, version=facts.version, has_generate=has_generate)
        return True

    async def _has_generate(self, instance: Instance) -> bool:
        """Send a request that no engine accepts: a refusal of its content means that the route is there."""
        answer = await self._pool.request(
            "POST", instance.url + _GENERATE_PATH, body=b"{}", headers=_JSON_HEADERS, timeout_seconds=PROBE_SECONDS
        )
        return answer.status not in _ROUTE_ABSENT

    async def _fingerprint(self, instance: Instance) -> str | None:
        """Read it from the shortest native answer there is; no other route tells it."""
        body = msgspec.json.encode({"model": self._model, "prompt": [1], "max_tokens": 1})
        answer = await self._pool.request(
            "POST", instance.url + "/v1/completions", body=body, headers=_JSON_HEADERS, timeout_seconds=PROBE_SECONDS
        )
        if answer.status != 200:
            return None
        try:
            return msgspec.json.decode(answer.body, type=_FingerprintAnswer).system_fingerprint
        except msgspec.DecodeError:
            return None


def _decode_version(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_VersionAnswer).version
    except msgspec.DecodeError:
        return ""
