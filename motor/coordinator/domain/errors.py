"""The fault domains as classes: status, blame and fallback are class attributes (RFC: 故障处理).

Foreign exceptions are mapped once, at the client that meets them. The attempt loop catches `EngineFault` and
nothing else, so that a Render or Derender failure can never consume a retry or trip a circuit breaker.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The `error` object of an OpenAI error; `code` is the HTTP status as native vLLM gives it."""

    message: str
    type: str
    param: str | None = None
    code: int | str | None = None


class MotorError(Exception):
    """Anything that ends a request with an error the client is shown.

    Class attributes are the row of the fault table; an instance may carry a peer's own status and body.
    """

    domain: ClassVar[str] = "coordinator"
    kind: ClassVar[str] = "internal"
    default_status: ClassVar[int] = 500
    default_type: ClassVar[str] = "InternalServerError"
    blames_instance: ClassVar[bool] = False
    allows_fallback: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        error_type: str | None = None,
        param: str | None = None,
        raw_body: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status if status is not None else self.default_status
        self.body = ErrorBody(message, error_type or self.default_type, param, self.status)
        self.raw_body = raw_body
        """The peer's error body, to be shown as it is; `None` lets the edge build one from `body`."""


# --- the client ---------------------------------------------------------------------------------------------------
class RequestInvalid(MotorError):
    """The request is wrong; no peer was asked, or the first one said so.

    Attributes:
        is_event: To be told inside a 200 stream: what native vLLM's engine finds wrong, its clients get there.
    """

    domain, kind = "client", "invalid"
    default_status, default_type = 400, "BadRequestError"
    is_event: bool = False


class BodyTooLarge(RequestInvalid):
    """The body is over `api.max_body_bytes`."""

    kind = "too_large"
    default_status, default_type = 413, "RequestEntityTooLargeError"


class ClientGone(MotorError):
    """The client closed its connection, or read nothing for too long; nobody is left to be told."""

    domain, kind = "client", "gone"
    default_status, default_type = 499, "ClientClosedRequest"


# --- Render -------------------------------------------------------------------------------------------------------
class RenderRejected(RequestInvalid):
    """Render judged the request (400, 404 model, 422): its error is the client's, no fallback may change it."""

    domain, kind = "render", "rejected"


class RenderFault(MotorError):
    """Render gave no usable token ids, through no fault of the request."""

    domain, kind = "render", "fault"
    default_status, default_type = 502, "BadGatewayError"
    allows_fallback = True


class RenderUnreachable(RenderFault):
    """No connection, or it broke."""

    kind = "unreachable"


class RenderSuspended(RenderFault):
    """Not asked: it has kept failing, and no probe has succeeded since."""

    kind = "suspended"


class RenderTimeout(RenderFault):
    """No answer within `render_config.timeout_ms`."""

    kind = "timeout"
    default_status, default_type = 504, "GatewayTimeoutError"


class RenderUnsupported(RenderFault):
    """The route is absent (404, 405, 501): this sidecar can't render this API."""

    kind = "unsupported"
    default_status, default_type = 501, "NotImplementedError"


class RenderFailed(RenderFault):
    """A 5xx."""

    kind = "failed"


class RenderMalformed(RenderFault):
    """200 with a body that isn't a list of tokenized requests."""

    kind = "malformed"


# --- flow control -------------------------------------------------------------------------------------------------
class TooManyRequests(MotorError):
    """Refused for now; the same request may pass later.

    Attributes:
        retry_after_seconds: What `Retry-After` says: whole seconds, at least 1.
    """

    domain, kind = "flow_control", "too_many_requests"
    default_status, default_type = 429, "TooManyRequestsError"

    def __init__(self, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class QueueFull(TooManyRequests):
    """As many requests or tokens wait for admission as may."""

    kind = "queue_full"


class RateLimited(TooManyRequests):
    """The key's requests or tokens of this minute are used up."""

    kind = "rate_limited"


class AdmissionTimeout(MotorError):
    """The request was not admitted before its deadline."""

    domain, kind = "flow_control", "timeout"
    default_status, default_type = 503, "ServiceUnavailableError"


# --- engines ------------------------------------------------------------------------------------------------------
class NoInstanceAvailable(MotorError):
    """No instance can take the request now."""

    domain, kind = "scheduling", "no_instance"
    default_status, default_type = 503, "ServiceUnavailableError"


class EngineRejected(RequestInvalid):
    """The engine judged the request (4xx): as wrong on every other engine, so neither retried nor blamed."""

    domain, kind = "engine", "rejected"


class TransferUnknown(RequestInvalid):
    """A decode engine called the metaserver for a request that isn't live, or a second time."""

    domain, kind = "engine", "transfer_unknown"
    default_status, default_type = 404, "NotFoundError"


class TokenOnlyUnsupported(MotorError):
    """The engine `instance_id` has no token-only generate (403, 404, 405, 501); the native chain may serve instead."""

    domain, kind = "engine", "token_only_unsupported"
    default_status, default_type = 501, "NotImplementedError"
    allows_fallback = True
    instance_id: str | None = None


class ChoicesUnsupported(TokenOnlyUnsupported):
    """Token-only generate is there, but makes fewer choices at once than native answers may have."""

    kind = "choices_unsupported"


class EngineFault(MotorError):
    """The engine failed: blamed, and another attempt may be made.

    Attributes:
        instance_id: Which instance; filled in by the topology.
    """

    domain, kind = "engine", "fault"
    default_status, default_type = 502, "BadGatewayError"
    blames_instance = True
    instance_id: str | None = None


class EngineUnreachable(EngineFault):
    """No connection."""

    kind = "unreachable"


class EngineTimeout(EngineFault):
    """No answer, or no next chunk, in time."""

    kind = "timeout"
    default_status, default_type = 504, "GatewayTimeoutError"


class EngineFailed(EngineFault):
    """A 5xx answer, or an error event inside a stream."""

    kind = "failed"


class EngineOverloaded(EngineFault):
    """Not now (429, 503): another instance may, and nothing is said of this one's health."""

    kind = "overloaded"
    default_status, default_type = 503, "ServiceUnavailableError"
    blames_instance = False


class EngineAborted(EngineFault):
    """The engine gave up a request without having been asked to."""

    kind = "aborted"


class EngineRecomputed(EngineFault):
    """The engine ran out of KV blocks and wants the rest computed anew; nobody is to blame."""

    kind = "recomputed"
    default_status, default_type = 503, "ServiceUnavailableError"
    blames_instance = False


class EngineBroken(EngineFault):
    """The stream ended before every choice had its finish reason, or held something that is not the protocol."""

    kind = "broken"


# --- Derender -----------------------------------------------------------------------------------------------------
class DerenderFault(MotorError):
    """The answer could not be turned into OpenAI form; inference isn't repeated, no instance is blamed."""

    domain, kind = "derender", "fault"
    default_status, default_type = 502, "BadGatewayError"


class DerenderRejected(DerenderFault):
    """400 or 422: the request or the `stream_state` is illegal."""

    kind = "rejected"
    default_status, default_type = 400, "BadRequestError"


class DerenderUnsupported(DerenderFault):
    """404 or 501: this sidecar can't derender this."""

    kind = "unsupported"
    default_status, default_type = 501, "NotImplementedError"


class DerenderUnavailable(DerenderFault):
    """No connection, a 5xx, or a malformed answer."""

    kind = "unavailable"


class DerenderTimeout(DerenderFault):
    """No answer within `render_config.timeout_ms`."""

    kind = "timeout"
    default_status, default_type = 504, "GatewayTimeoutError"


def root_cause(error: BaseException) -> BaseException:
    """Return what failed first in a task group; its siblings' ends are consequences."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
