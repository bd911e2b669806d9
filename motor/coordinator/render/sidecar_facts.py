"""What the sidecar tells about itself. Mutable: everything that it tells, and whether it is away (`_is_lost`)."""

import msgspec

from motor.coordinator.domain.errors import DerenderFault, RenderFault, RenderRejected
from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.domain.version import Version
from motor.coordinator.render.chain_choice import FIRST_FAITHFUL
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
        self.keeps_spaces = True
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
        is_new = self._is_lost or version != self.version
        if not is_new and self.has_derender and self.keeps_spaces:
            return True
        # Known at once, while the other questions stay open until they are answered.
        self.version, self._is_lost = version, is_new
        status = await self._render_client.chat_derender_status(self._trial_call())
        if status is None:
            return False
        # Derender wants the request of a chat answer exactly when it has a parser.
        self.has_parser = status == 400
        self.has_derender = status not in ROUTE_ABSENT
        self.keeps_spaces = version >= FIRST_FAITHFUL or await self._shows_leading_space()
        self._is_lost = False
        if is_new:
            self.epoch += 1
            _log.info("sidecar.known", version=str(version), has_parser=self.has_parser, has_derender=self.has_derender)
        return True

    async def _shows_leading_space(self) -> bool:
        """Let the second of two equal words be rendered, and derendered alone: SentencePiece's loses its space."""
        prompt = msgspec.json.encode({"model": self._model, "prompt": "a a", "max_tokens": 1})
        client = ClientRequest("probe", "probe", Api.COMPLETIONS, prompt, {}, "application/json")
        try:
            rendered = await self._render_client.render(client)
            last_id = msgspec.json.decode(rendered[0]["token_ids"], type=list[int])[-1]
            answer = await self._render_client.derender_complete(Api.COMPLETIONS, self._trial_answer(last_id))
            return str(answer["choices"][0]["text"]).startswith(" ")
        except (RenderFault, RenderRejected, DerenderFault, msgspec.DecodeError, LookupError, TypeError):
            return False

    def _trial_answer(self, token_id: int) -> bytes:
        choice = {"index": 0, "token_ids": [token_id], "finish_reason": "length"}
        response = {"request_id": "probe", "model": self._model, "created": 0, "choices": [choice]}
        return msgspec.json.encode({"stream": False, "model": self._model, "generate_responses": [response]})

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
