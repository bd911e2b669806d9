"""What the sidecar tells about itself: version, and whether it has a parser. Mutable: `version`, `has_parser`."""

import msgspec

from motor.coordinator.domain.version import Version
from motor.coordinator.render.vllm_render_client import VllmRenderClient
from motor.coordinator.telemetry.log import get_logger

_log = get_logger(__name__)


class SidecarFactsFeed:
    """Asks the sidecar, and again when its version has changed."""

    def __init__(self, render_client: VllmRenderClient, model: str) -> None:
        self._render_client = render_client
        self._model = model
        self.version: Version | None = None
        self.has_parser = False

    async def refresh(self) -> None:
        """Ask once; a sidecar that doesn't answer keeps what is known of it."""
        await self._render_client.find_live_processes()
        version = await self._render_client.version()
        if version is None or version == self.version:
            return
        # Derender wants the request of a chat answer exactly when it has a parser.
        body = {
            "stream": False,
            "model": self._model,
            "generate_response": {
                "request_id": "probe",
                "model": self._model,
                "created": 0,
                "choices": [{"index": 0, "token_ids": [1], "finish_reason": "length"}],
            },
        }
        self.has_parser = await self._render_client.refuses_chat_derender(msgspec.json.encode(body))
        self.version = version
        _log.info("sidecar.known", version=str(version), has_parser=self.has_parser)
