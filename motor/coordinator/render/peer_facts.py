"""What is known of sidecar and engines together. Mutable: the shortcomings that were logged."""

import asyncio
from collections.abc import Callable

from motor.coordinator.instances.engine_facts import EngineFactsFeed
from motor.coordinator.render.answer_facts import AnswerFacts
from motor.coordinator.render.chain_choice import FIRST_FAITHFUL, PeerFacts, shortcomings
from motor.coordinator.render.sidecar_facts import SidecarFactsFeed
from motor.coordinator.telemetry.log import get_logger

_log = get_logger(__name__)


class PeerFactsFeed:
    """Keeps the facts that the choice of the chain rests on, and tells operators when they change.

    Args:
        sidecar: What the sidecar tells.
        engines: What engines tell.
        has_drifted: Whether a detected drift stops the token chain now.
        is_eos_known: Whether the tokenizer's end-of-sequence id is known.
    """

    def __init__(
        self,
        sidecar: SidecarFactsFeed,
        engines: EngineFactsFeed,
        has_drifted: Callable[[], bool] = lambda: False,
        *,
        is_eos_known: bool = True,
    ) -> None:
        self._sidecar = sidecar
        self._engines = engines
        self._has_drifted = has_drifted
        self._is_eos_known = is_eos_known
        self._logged: list[str] = []

    @property
    def peers(self) -> PeerFacts:
        """What the peers can do."""
        return PeerFacts(
            sidecar_version=self._sidecar.version,
            engine_version=self._engines.oldest_version,
            has_derender=self._sidecar.has_derender,
            has_generate=all(facts.has_generate for facts in self._engines.facts.values()),
            has_drifted=self._has_drifted(),
            keeps_spaces=self._sidecar.keeps_spaces,
            is_eos_known=self._is_eos_known,
        )

    @property
    def answer(self) -> AnswerFacts:
        """What answers tell of the peers."""
        version = self._sidecar.version
        return AnswerFacts(
            self._engines.system_fingerprint,
            self._sidecar.has_parser,
            shows_cut_characters=version is not None and version < FIRST_FAITHFUL,
        )

    def generate_refused(self, instance_id: str) -> None:
        """Note that an engine lacks token-only generate, so that no further request finds it out for itself."""
        self._engines.generate_refused(instance_id)

    async def refresh(self) -> bool:
        """Ask everyone once, and log each shortcoming when it comes and when it goes.

        Returns:
            Whether everyone answered.
        """
        answered = await asyncio.gather(self._sidecar.refresh(), self._engines.refresh())
        found = shortcomings(self.peers)
        for shortcoming in found:
            if shortcoming not in self._logged:
                _log.warning("capability.missing", shortcoming=shortcoming)
        for shortcoming in self._logged:
            if shortcoming not in found:
                _log.info("capability.restored", shortcoming=shortcoming)
        self._logged = found
        return all(answered)
