"""NixlConnector (pull): prefill holds the blocks, decode reads them by the parameters that prefill answered.

Source: vLLM 0.27.1 to 0.32. Blocks that nobody reads are freed after the connector's lease (30 s by default).
"""

from collections.abc import Mapping
from typing import Any

from motor.coordinator.domain.errors import EngineBroken


class NixlProfile:
    """Parameters of NixlConnector."""

    holds_kv = True

    def prefill_params(self) -> dict[str, Any]:
        """See `ConnectorProfile.prefill_params`."""
        return {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        }

    def decode_params(self, answered: Mapping[str, Any] | None, num_prompt_tokens: int) -> dict[str, Any]:
        """See `ConnectorProfile.decode_params`."""
        if answered is None:
            raise EngineBroken("prefill answered no kv_transfer_params")
        if not _is_sound(answered, num_prompt_tokens):
            raise EngineBroken("prefill answered kv_transfer_params that decode can't use")
        return dict(answered)


def _is_sound(params: Mapping[str, Any], num_prompt_tokens: int) -> bool:
    num_remote = params.get("remote_num_tokens")
    return (
        params.get("do_remote_prefill") is True
        and bool(params.get("remote_engine_id"))
        and bool(params.get("remote_host"))
        and isinstance(params.get("remote_port"), int)
        and bool(params.get("remote_block_ids"))
        # An absent count is an older vLLM's; another count is another prompt's.
        and (num_remote is None or num_remote == num_prompt_tokens)
    )
