"""What a topology asks of a KV connector."""

from collections.abc import Mapping
from typing import Any, Protocol


class ConnectorProfile(Protocol):
    """How prefill's KV cache gets to decode."""

    @property
    def holds_kv(self) -> bool:
        """Whether prefill keeps blocks until a decode takes them, so that they must be freed if none does."""

    def prefill_params(self) -> dict[str, Any] | None:
        """Return `kv_transfer_params` of the prefill leg."""

    def decode_params(self, answered: Mapping[str, Any] | None, num_prompt_tokens: int) -> dict[str, Any] | None:
        """Return `kv_transfer_params` of the decode leg: what prefill answered, verbatim, if it is sound.

        Unsound parameters kill a decode engine, or give it wrong KV without a word.

        Args:
            answered: Prefill's; `None` if it gave none.
            num_prompt_tokens: Of the prompt that both legs get.

        Raises:
            EngineBroken: They can't be used.
        """
