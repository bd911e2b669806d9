"""What a request asks of an endpoint, in the scheduler's own words: it never sees Render."""

from dataclasses import dataclass, replace

from motor.coordinator.domain.tokens import PhysicalTokenIds


@dataclass(frozen=True, slots=True)
class Demand:
    """One prompt's needs.

    Attributes:
        num_prompt_tokens: Length of the prompt, exact or estimated; 0 where nobody counted.
        num_output_tokens: How many tokens are expected to be generated.
        token_ids: The prompt as engines see it; `None` if it isn't known, then no cache is asked.
        model: The name that the request goes by; one that isn't the model's own is an adapter's.
        cache_salt: Keeps its blocks apart from those of other salts.
        request_id: The client's request, for the record of decisions.
        computes_prompt: Whether the endpoint computes the prompt, or takes it over.
    """

    num_prompt_tokens: int
    num_output_tokens: int = 0
    token_ids: PhysicalTokenIds | None = None
    model: str | None = None
    cache_salt: str | None = None
    request_id: str = ""
    computes_prompt: bool = True

    def for_prefill(self) -> "Demand":
        """Return the same without what decode will generate."""
        return replace(self, num_output_tokens=0)

    def for_decode(self) -> "Demand":
        """Return the same for an endpoint that takes the prompt's KV cache over."""
        return replace(self, computes_prompt=False)
