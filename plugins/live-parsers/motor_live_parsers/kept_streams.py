"""What is kept between two calls of a stream, and where."""

import logging
from dataclasses import dataclass

from pydantic import PrivateAttr
from vllm.entrypoints.scale_out.token_in_token_out.protocol import DerenderChatStreamRequest, DerenderStreamState
from vllm.renderers.online_derenderer import OnlineDerenderer

from motor_live_parsers.live_stream import LiveStream
from motor_live_parsers.settings import Settings
from motor_live_parsers.store import TakeOutStore

_logger = logging.getLogger("vllm.motor_live_parsers")

_STORE_ATTRIBUTE = "_motor_live_parsers"


class CarriedState(DerenderStreamState):
    """A stream state that carries its live stream through vLLM's own checks to the patched method and back."""

    _live: LiveStream | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, state: DerenderStreamState | None, live: LiveStream | None = None) -> "CarriedState":
        """The same state (None: of a stream that has not begun) with this live stream."""
        carried = cls() if state is None else cls.model_construct(**dict(state))
        carried._live = live
        return carried

    def take_live(self) -> LiveStream | None:
        """Remove and return the live stream."""
        live, self._live = self._live, None
        return live

    @property
    def is_live(self) -> bool:
        """Whether a call with this state replays nothing."""
        return self._live is not None


@dataclass(frozen=True, slots=True)
class SuspendedStream:
    """A stream that waits for a call with its continuation.

    Attributes:
        request: Its last request; `stream_state` is the `CarriedState` that the next call starts from.
        num_request_tokens: What keeping the request costs.
    """

    request: DerenderChatStreamRequest
    num_request_tokens: int


# A live stream under the digest of what it has read, for calls that bring their history; a suspended stream under its
# continuation, for calls that don't.
Store = TakeOutStore[LiveStream | SuspendedStream]


def store_of(derenderer: OnlineDerenderer, settings: Settings) -> Store:
    """The store of `derenderer`: parsers of one are of no use to another with other parser options."""
    attributes = vars(derenderer)
    store: Store | None = attributes.get(_STORE_ATTRIBUTE)
    if store is None:
        bounds = settings.max_streams, settings.max_tokens, settings.ttl_seconds
        # One operation under the interpreter lock: threads that race get the same store.
        store = attributes.setdefault(_STORE_ATTRIBUTE, TakeOutStore(*bounds))
        _logger.info("Live parsers: up to %d streams and %d tokens, kept for %g s", *bounds)
    return store
