"""Do engines make the same token ids of a request as the sidecar? A share of requests is rendered twice to know.

Generate can't tell: it echoes the ids that it was sent. An engine's own Render route can, for it is the very code by
which the engine's native API makes its prompts (docs/decisions: token parity probe). Off the requests' path.
"""

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from motor.coordinator.domain.errors import RenderFault, RenderRejected
from motor.coordinator.domain.instance import Instance
from motor.coordinator.instances.engine_facts import EngineFactsFeed
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.render.models import TokenizedBatch
from motor.coordinator.render.sidecar_facts import SidecarFactsFeed
from motor.coordinator.render.vllm_render_client import VllmRenderClient
from motor.coordinator.telemetry.log import get_logger

_ids_decoder = msgspec.json.Decoder(tuple[int, ...])
_log = get_logger(__name__)

_Epochs = tuple[int, int]
"""Of the sidecar and of an engine: a finding holds as long as neither has changed or come back."""


class ProbeOutcome(StrEnum):
    """What a probe showed."""

    MATCH = "match"
    MISMATCH = "mismatch"
    UNANSWERED = "unanswered"


class ParityProbe:
    """Checks one request at a time; mutable: the request being checked, the turn, drifted and silent instances.

    Args:
        registry: The instances; each is asked in its turn.
        sidecar: Whose ids are checked.
        engines: What is known of the instances.
        render_client: Makes a client of an instance's Render routes.
        model: The served name, for the log.
        ratio: The share of requests to check, 0 to 1.
        can_stop_token_chain: Whether a mismatch sends requests to the native chain.
        draw: Uniform random numbers in [0, 1).
        on_outcome: Called with the instance's id and the outcome of each probe.
    """

    def __init__(
        self,
        registry: InstanceRegistry,
        sidecar: SidecarFactsFeed,
        engines: EngineFactsFeed,
        render_client: Callable[[Instance], VllmRenderClient],
        *,
        model: str,
        ratio: float,
        can_stop_token_chain: bool,
        draw: Callable[[], float],
        on_outcome: Callable[[str, ProbeOutcome], None],
    ) -> None:
        self._registry = registry
        self._sidecar = sidecar
        self._engines = engines
        self._render_client = render_client
        self._model = model
        self._ratio = ratio
        self._can_stop_token_chain = can_stop_token_chain
        self._draw = draw
        self._on_outcome = on_outcome
        self._offered: TokenizedBatch | None = None
        self._wake = asyncio.Event()
        self._turn = 0
        self._drifted: dict[str, _Epochs] = {}
        self._silent: dict[str, _Epochs] = {}

    @property
    def stops_token_chain(self) -> bool:
        """Whether the token chain must not be used now."""
        if not self._can_stop_token_chain:
            return False
        return any(epochs == self._epochs(instance_id) for instance_id, epochs in self._drifted.items())

    def offer(self, batch: TokenizedBatch) -> None:
        """Take a request for a check if it is drawn and none is being checked; never waits."""
        if self._offered is None and self._draw() < self._ratio:
            self._offered = batch
            self._wake.set()

    async def run(self) -> None:
        """Check what is offered, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._offered is not None:
                await self._check(self._offered)
            self._offered = None

    async def _check(self, batch: TokenizedBatch) -> None:
        instance = self._next_instance()
        if instance is None:
            return
        epochs = self._epochs(instance.id)
        ours = [prompt.semantic_ids for prompt in batch.prompts]
        try:
            rendered = await self._render_client(instance).render(batch.client)
            theirs = [_ids_decoder.decode(prompt["token_ids"]) for prompt in rendered]
        except (RenderFault, RenderRejected, KeyError, msgspec.DecodeError) as error:
            self._on_outcome(instance.id, ProbeOutcome.UNANSWERED)
            self._note_silence(instance, epochs, type(error).__name__)
            return
        outcome = ProbeOutcome.MATCH if theirs == ours else ProbeOutcome.MISMATCH
        self._on_outcome(instance.id, outcome)
        # Restarted in between: nothing is known of whom the ids are.
        if outcome is ProbeOutcome.MISMATCH and epochs == self._epochs(instance.id):
            self._note_drift(instance, epochs, ours, theirs)

    def _next_instance(self) -> Instance | None:
        known = [instance for instance in self._registry.all() if instance.id in self._engines.facts]
        if not known:
            return None
        self._turn += 1
        return known[self._turn % len(known)]

    def _epochs(self, instance_id: str) -> _Epochs:
        facts = self._engines.facts.get(instance_id)
        return self._sidecar.epoch, facts.epoch if facts is not None else 0

    def _note_silence(self, instance: Instance, epochs: _Epochs, error_type: str) -> None:
        if self._silent.get(instance.id) != epochs:
            self._silent[instance.id] = epochs
            _log.warning("token_parity.unanswered", instance=instance.id, model=self._model, error_type=error_type)

    def _note_drift(
        self, instance: Instance, epochs: _Epochs, ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]
    ) -> None:
        if self._drifted.get(instance.id) == epochs:
            return
        self._drifted[instance.id] = epochs
        _log.error(
            "token_parity.mismatch",
            instance=instance.id,
            model=self._model,
            num_sidecar_tokens=sum(map(len, ours)),
            num_engine_tokens=sum(map(len, theirs)),
            first_difference=_first_difference(ours, theirs),
            is_token_chain_stopped=self._can_stop_token_chain,
        )


def _first_difference(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> int:
    """Return the position of the first token that differs, in the first prompt that does."""
    for one, other in zip(ours, theirs, strict=False):
        if tuple(one) != tuple(other):
            same = (a == b for a, b in zip(one, other, strict=False))
            return next((position for position, is_same in enumerate(same) if not is_same), min(len(one), len(other)))
    return 0
