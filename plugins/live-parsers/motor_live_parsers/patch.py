"""Where the live parsers enter vLLM: one method of `OnlineDerenderer`, and routes beside vLLM's own."""

import functools
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionStreamResponse
from vllm.entrypoints.scale_out.derender.api_router import router
from vllm.entrypoints.scale_out.token_in_token_out.protocol import DerenderStreamState
from vllm.renderers.online_derenderer import OnlineDerenderer

from motor_live_parsers.identity import identify_request
from motor_live_parsers.kept_streams import CarriedState, Store, store_of
from motor_live_parsers.live_stream import Call, LiveStream, UpstreamFunction, derender
from motor_live_parsers.routes import add_routes
from motor_live_parsers.settings import Settings

_PATCHED_METHOD = "_derender_chat_stream_parsed"


def derender_with_store(
    upstream: UpstreamFunction, derenderer: OnlineDerenderer, call: Call, store: Store
) -> tuple[ChatCompletionStreamResponse, DerenderStreamState]:
    """Answer a call of `POST /v1/chat/completions/derender` as `upstream` does, from a kept parser if there is one."""
    request = identify_request(call.chat_request, call.prompt_token_ids)
    if request is None:
        return upstream(derenderer, **call.replaced())
    live = store.take(request.key(call.state))
    outcome = derender(upstream, derenderer, call, live if isinstance(live, LiveStream) else None)
    if outcome.live is not None:
        num_tokens = request.num_tokens + len(outcome.state.output_token_ids)
        store.put(request.key(outcome.state), outcome.live, num_tokens)
    return outcome.chunk, outcome.state


def install(settings: Settings) -> None:
    """Patch `OnlineDerenderer` for all objects made from now on, and add the routes to vLLM's derender router.

    Called once in a process, before vLLM builds its HTTP application.
    """
    upstream: UpstreamFunction = getattr(OnlineDerenderer, _PATCHED_METHOD)

    @functools.wraps(upstream)
    def derender_chat_stream_parsed(
        self: OnlineDerenderer, *args: Any, **kwargs: Any
    ) -> tuple[ChatCompletionStreamResponse, DerenderStreamState]:
        call = Call(*args, **kwargs)
        if isinstance(call.state, CarriedState):
            outcome = derender(upstream, self, call, call.state.take_live())
            return outcome.chunk, CarriedState.of(outcome.state, outcome.live)
        return derender_with_store(upstream, self, call, store_of(self, settings))

    setattr(OnlineDerenderer, _PATCHED_METHOD, derender_chat_stream_parsed)
    add_routes(router, settings)
