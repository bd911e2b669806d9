"""What a simulated engine is: its identity, speed, sizes and strictness."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """A simulated engine's constants.

    Attributes:
        served_model_name: The name in `/v1/models`; requests may name it or nothing.
        version: What `/version` tells.
        max_model_len: The context in tokens.
        vocab_size: Ids from here on are out of vocabulary; a model folder's own size replaces it.
        block_size: Tokens a KV block.
        max_num_seqs: Requests that run at a time; others wait.
        tokens_per_second: Speed of one stream; 0 for as fast as possible.
        tokens_per_chunk: Ids an event carries, taken in turn.
        first_token_delay_seconds: Time to the first token, beside prefill.
        prefill_tokens_per_second: Uncached prompt tokens that are computed in a second; 0 for at once.
        cache_blocks: Blocks of the prefix cache; 0 turns it off.
        publishes_kv_events: Whether changes of the prefix cache are told over ZMQ.
        kv_blocks: Blocks that `vllm:kv_cache_usage_perc` divides by.
        kv_lease_seconds: How long a prefill's blocks wait for their decode.
        bad_kv_transfer: What unusable `kv_transfer_params` do to a decode engine: `crash` it, as vLLM's, or `error`.
        is_tokens_only: Behave as `--tokens-only`: no stop strings, EOS as an int, an unknown id kills the engine.
        is_scale_out: False answers 403 on the token endpoints, as an engine without `--enable-scale-out`.
        has_prompt_tokens_details: Behave as `--enable-prompt-tokens-details`.
        keep_alive_seconds: How long an idle connection is kept.
    """

    served_model_name: str = "sim"
    version: str = "0.32.0"
    max_model_len: int = 4096
    vocab_size: int = 32000
    block_size: int = 16
    max_num_seqs: int = 256
    tokens_per_second: float = 0.0
    tokens_per_chunk: tuple[int, ...] = (1,)
    first_token_delay_seconds: float = 0.0
    prefill_tokens_per_second: float = 0.0
    cache_blocks: int = 0
    publishes_kv_events: bool = False
    kv_blocks: int = 4096
    kv_lease_seconds: float = 30.0
    bad_kv_transfer: Literal["crash", "error"] = "crash"
    is_tokens_only: bool = False
    is_scale_out: bool = True
    has_prompt_tokens_details: bool = True
    keep_alive_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Refuse what can't run.

        Raises:
            ValueError: A chunk size below 1, or a negative rate.
        """
        if not self.tokens_per_chunk or min(self.tokens_per_chunk) < 1:
            raise ValueError("tokens_per_chunk needs sizes of at least 1")
        rates = (self.tokens_per_second, self.prefill_tokens_per_second, self.first_token_delay_seconds)
        if min(rates) < 0:
            raise ValueError("rates and delays can't be negative")
