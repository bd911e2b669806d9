"""The body of `POST /inference/v1/generate`, as far as an engine without weights reads it."""

from typing import Any

import msgspec

from motor.simulator.answers import RequestRejected, schema_error
from motor.simulator.faults import Leg


class SamplingParameters(msgspec.Struct, kw_only=True):
    """vLLM's sampling parameters that change a simulated answer."""

    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    logprobs: int | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    structured_outputs: dict[str, Any] | None = None
    extra_args: dict[str, Any] | None = None

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class StreamOptions(msgspec.Struct, kw_only=True):
    """When usage is sent in a stream."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerateRequest(msgspec.Struct, kw_only=True):
    """A generate request; unknown fields are ignored, as vLLM does."""

    token_ids: list[int]
    sampling_params: SamplingParameters
    request_id: str | None = None
    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None

    @property
    def kv_parameters(self) -> dict[str, Any] | None:
        """The KV transfer parameters, from either place; the top level wins."""
        if self.kv_transfer_params is not None:
            return self.kv_transfer_params
        found = (self.sampling_params.extra_args or {}).get("kv_transfer_params")
        return found if isinstance(found, dict) else None

    @property
    def leg(self) -> Leg:
        """Which leg this is; a request of no P/D pair counts as decode."""
        return Leg.PREFILL if (self.kv_parameters or {}).get("do_remote_decode") else Leg.DECODE

    @property
    def includes_usage(self) -> bool:
        """Whether a usage event ends the stream."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        """Whether every event carries usage."""
        return self.includes_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)


_decoder = msgspec.json.Decoder(GenerateRequest)


def decode_request(body: bytes) -> GenerateRequest:
    """Decode a generate request.

    Raises:
        RequestRejected: It isn't JSON, or not of the schema.
    """
    try:
        request = _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise schema_error(_place(str(error)), str(error).split(" - at ", maxsplit=1)[0]) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise schema_error("body.0", f"JSON decode error: {error}", "json_invalid") from error
    if not request.token_ids:
        raise schema_error("body.token_ids", "token_ids must not be empty", "too_short")
    sampling = request.sampling_params
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise RequestRejected(f"max_tokens must be at least 1, got {sampling.max_tokens}.")
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise RequestRejected(
            f"min_tokens must be less than or equal to max_tokens={sampling.max_tokens}, got {sampling.min_tokens}."
        )
    if sampling.n < 1:
        raise RequestRejected(f"n must be at least 1, got {sampling.n}.")
    return request


def _place(message: str) -> str:
    """Translate msgspec's `- at `$.a.b`` into vLLM's `body.a.b`."""
    if "missing required field" in message:
        return "body." + message.split("`")[1]
    _, _, path = message.partition(" - at `$")
    return "body" + path.rstrip("`")
