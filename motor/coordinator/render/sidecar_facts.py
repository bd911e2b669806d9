"""What the sidecar tells about itself. Mutable: `version`, `has_parser`, `has_derender`, `epoch`, `_is_lost`."""

import msgspec

from motor.coordinator.domain.version import Version
from motor.coordinator.render.sidecar_answers import ROUTE_ABSENT
from motor.coordinator.render.vllm_render_client import VllmRenderClient
from motor.coordinator.telemetry.log import get_logger

_log = get_logger(__name__)


class SidecarFactsFeed:
    """Asks the sidecar for its version, and for everything else when that has changed or it has been away.

    Args:
        render_client: The sidecar.
        model: The name that it knows the model by.
    """

    def __init__(self, render_client: VllmRenderClient, model: str) -> None:
        self._render_client = render_client
        self._model = model
        self._is_lost = True
        self.version: Version | None = None
        self.has_parser = False
        self.has_derender = True
        self.epoch = 0

    async def refresh(self) -> bool:
        """Ask once; a sidecar that doesn't answer keeps what is known of it.

        Returns:
            Whether it answered.
        """
        await self._render_client.find_live_processes()
        version = await self._render_client.version()
        if version is None:
            self._is_lost = True
            return False
        if version == self.version and not self._is_lost and self.has_derender:
            return True
        status = await self._render_client.chat_derender_status(self._trial_call())
        if status is None:
            return False
        is_new = (version, self._is_lost) != (self.version, False)
        # Derender wants the request of a chat answer exactly when it has a parser.
        self.has_parser = status == 400
        self.has_derender = status not in ROUTE_ABSENT
        self.version = version
        self._is_lost = False
        if is_new:
            self.epoch += 1
            _log.info("sidecar.known", version=str(version), has_parser=self.has_parser, has_derender=self.has_derender)
        return True

    def _trial_call(self) -> bytes:
        return msgspec.json.encode(
            {
                "stream": False,
                "model": self._model,
                "generate_response": {
                    "request_id": "probe",
                    "model": self._model,
                    "created": 0,
                    "choices": [{"index": 0, "token_ids": [1], "finish_reason": "length"}],
                },
            }
        )
