"""The streamed derender calls of one choice: with the whole state, or to the process that keeps its parser alive."""

from motor.coordinator.domain.errors import DerenderTimeout
from motor.coordinator.domain.generation import GenerateChoice
from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.render.derender_requests import ChunkCallTemplate
from motor.coordinator.render.derender_state import DerenderState, answered_state
from motor.coordinator.render.models import DerenderChunkAnswer, DerenderedChunk
from motor.coordinator.render.prompt_stream import PromptStream
from motor.coordinator.render.vllm_render_client import VllmRenderClient
from motor.coordinator.telemetry.log import get_logger

_log = get_logger(__name__)


class ChunkDerenderer:
    """Makes the calls of one prompt's choices; holds no state, which is the choice's own."""

    def __init__(self, client: ClientRequest, render_client: VllmRenderClient, template: ChunkCallTemplate) -> None:
        self._client = client
        self._render_client = render_client
        self._template = template

    async def derender(self, stream: PromptStream, asked: GenerateChoice) -> tuple[DerenderedChunk, DerenderState]:
        """Return what a staged chunk looks like to the client, and the state after it.

        A timeout repeats the call once: from the same state the answer is the same.

        Raises:
            DerenderFault: The call failed; the committed state stands.
        """
        try:
            return await self._call(stream, asked, may_continue=True)
        except DerenderTimeout:
            _log.warning("derender.repeated", reason="timeout")
            # Whether the timed-out call was done isn't known, so what it may have used up is not named again.
            return await self._call(stream, asked, may_continue=False)

    async def _call(
        self, stream: PromptStream, asked: GenerateChoice, *, may_continue: bool
    ) -> tuple[DerenderedChunk, DerenderState]:
        state = stream.committed.state
        process = self._render_client.live_process(state.base_url) if self._client.api is Api.CHAT else None
        if process is not None:
            answer = await self._call_live(process, stream, asked, state, may_continue=may_continue)
            if answer is not None:
                small = bytes(answer.stream_state)
                return answer.chunk, DerenderState(small, True, answer.continuation, process)
        body = self._template.body(asked, stream.whole_state())
        answer = await self._render_client.derender_chunk(self._client.api, body, self._client.forward_headers)
        num_ids = stream.num_committed + len(asked.token_ids or ())
        return answer.chunk, answered_state(bytes(answer.stream_state), num_ids)

    async def _call_live(
        self, process: str, stream: PromptStream, asked: GenerateChoice, state: DerenderState, *, may_continue: bool
    ) -> DerenderChunkAnswer | None:
        headers = self._client.forward_headers
        if may_continue and state.continuation is not None and process == state.base_url:
            body = self._template.continuing_body(asked, state.continuation)
            answer = await self._render_client.derender_live(process, body, headers, is_continuing=True)
            if answer is not None:
                return answer
        body = self._template.body(asked, stream.whole_state())
        return await self._render_client.derender_live(process, body, headers, is_continuing=False)
