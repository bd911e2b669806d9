"""ExampleConnector and other shared stores: both engines find the KV cache by the token ids; no parameters at all."""

from collections.abc import Mapping


class SharedStorageProfile:
    """No parameters."""

    holds_kv = False

    def prefill_params(self) -> None:
        """See `ConnectorProfile.prefill_params`."""

    def decode_params(self, answered: Mapping[str, object] | None, num_prompt_tokens: int) -> None:
        """See `ConnectorProfile.decode_params`."""
