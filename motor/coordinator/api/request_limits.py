"""Limits on how much one request may ask for, checked before anything is sent to a peer."""

from dataclasses import dataclass

from motor.coordinator.domain.errors import RequestInvalid
from motor.coordinator.domain.request import Api, ClientRequest

_NATIVE_MAX_PROMPTS = 1024
_NATIVE_MAX_N = 16384
"""What vLLM refuses by itself, by default; it finds its own words for that."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How much one request may ask for.

    Attributes:
        max_prompts: Prompts of a Completions request.
        max_n: Choices for each prompt.
    """

    max_prompts: int
    max_n: int

    def check(self, client: ClientRequest) -> None:
        """Let a request pass that stays within the limits.

        Raises:
            RequestInvalid: It doesn't, and native vLLM would not refuse it either.
        """
        num_choices = _number(client.fields.get("n"))
        if self.max_n < num_choices <= _NATIVE_MAX_N:
            raise RequestInvalid(f"n must be at most {self.max_n}, got {num_choices}.", param="n")
        prompt = client.fields.get("prompt")
        num_prompts = _num_prompts(prompt) if client.api is Api.COMPLETIONS else 1
        if self.max_prompts < num_prompts <= _NATIVE_MAX_PROMPTS:
            raise RequestInvalid(
                f"prompt list length {num_prompts} exceeds the maximum allowed count of {self.max_prompts}.",
                param="prompt",
            )


def _num_prompts(prompt: object) -> int:
    """Return the length of a list of prompts; a list of token ids is one prompt."""
    if not isinstance(prompt, list) or all(isinstance(one, int) for one in prompt):
        return 1
    return len(prompt)


def _number(value: object) -> int:
    """Read a number as vLLM's request models do, whole floats and digits included; 0 for what is none."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip().isdecimal() and len(value) <= 20:
        return int(value)
    return value if isinstance(value, int) else 0
