"""What engines tell about themselves: version and `system_fingerprint`. Mutable: `_facts`."""

import asyncio
from dataclasses import dataclass

import msgspec

from motor.coordinator.domain.instance import Instance
from motor.coordinator.domain.version import Version
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.telemetry.log import get_logger
from motor.coordinator.transport.faults import TransportFault
from motor.coordinator.transport.http_pool import HttpPool

PROBE_SECONDS = 5.0
_log = get_logger(__name__)


class _VersionAnswer(msgspec.Struct):
    version: str = ""


class _FingerprintAnswer(msgspec.Struct):
    system_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What one engine told.

    Attributes:
        version: As text, so that any change is noticed.
        system_fingerprint: Of a native answer; `None` if the engine gives none.
    """

    version: str
    system_fingerprint: str | None


class EngineFactsFeed:
    """Asks every instance, and again when its version has changed."""

    def __init__(self, registry: InstanceRegistry, pool: HttpPool, model: str) -> None:
        self._registry = registry
        self._pool = pool
        self._model = model
        self._facts: dict[str, EngineFacts] = {}

    @property
    def oldest_version(self) -> Version | None:
        """The oldest version among the engines that have answered."""
        versions = (Version.parse(facts.version) for facts in self._facts.values())
        return min((version for version in versions if version is not None), default=None)

    @property
    def system_fingerprint(self) -> str | None:
        """The fingerprint that the engines share; of the first that has one, if they differ."""
        return next((f.system_fingerprint for f in self._facts.values() if f.system_fingerprint is not None), None)

    async def refresh(self) -> None:
        """Ask all instances once; one that doesn't answer keeps what is known of it."""
        instances = self._registry.all()
        await asyncio.gather(*(self._refresh_one(instance) for instance in instances))
        known = {instance.id for instance in instances}
        self._facts = {id_: facts for id_, facts in self._facts.items() if id_ in known}

    async def _refresh_one(self, instance: Instance) -> None:
        try:
            answer = await self._pool.request("GET", instance.url + "/version", timeout_seconds=PROBE_SECONDS)
            version = msgspec.json.decode(answer.body, type=_VersionAnswer).version
            known = self._facts.get(instance.id)
            if known is not None and known.version == version:
                return
            fingerprint = await self._fingerprint(instance)
        except (TransportFault, msgspec.DecodeError):
            return
        self._facts[instance.id] = EngineFacts(version, fingerprint)
        _log.info("engine.known", instance=instance.id, version=version)

    async def _fingerprint(self, instance: Instance) -> str | None:
        """Read it from the shortest native answer there is; no other route tells it."""
        body = msgspec.json.encode({"model": self._model, "prompt": [1], "max_tokens": 1})
        answer = await self._pool.request(
            "POST",
            instance.url + "/v1/completions",
            body=body,
            headers={"Content-Type": "application/json"},
            timeout_seconds=PROBE_SECONDS,
        )
        if answer.status != 200:
            return None
        return msgspec.json.decode(answer.body, type=_FingerprintAnswer).system_fingerprint
