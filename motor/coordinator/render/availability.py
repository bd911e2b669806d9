"""Which sidecar processes are asked to render: one that keeps failing is left alone until a probe succeeds.

Only new requests are concerned (RFC: 新的 Render 可用性判断只影响新请求): a stream that is being derendered goes on
calling the sidecar whatever is thought of it here.
"""

from collections.abc import Iterable, Sequence

FAULTS_TO_SUSPEND = 3
"""In a row: no connection, no answer in time, 5xx. Each has cost a request up to a whole timeout."""


class Availability:
    """The processes of one sidecar. Mutable: each one's faults since its last answer.

    Args:
        base_urls: The processes.
    """

    def __init__(self, base_urls: Iterable[str]) -> None:
        self._num_faults = dict.fromkeys(base_urls, 0)

    def __repr__(self) -> str:
        return f"Availability({self._num_faults})"

    @property
    def available(self) -> Sequence[str]:
        """The processes that may be asked."""
        return [one for one, num_faults in self._num_faults.items() if num_faults < FAULTS_TO_SUSPEND]

    @property
    def suspended(self) -> Sequence[str]:
        """The processes that are only probed."""
        return [one for one, num_faults in self._num_faults.items() if num_faults >= FAULTS_TO_SUSPEND]

    def failed(self, base_url: str) -> bool:
        """Note a fault; return whether it suspended the process."""
        self._num_faults[base_url] += 1
        return self._num_faults[base_url] == FAULTS_TO_SUSPEND

    def answered(self, base_url: str) -> bool:
        """Note an answer that is no fault; return whether it ended a suspension."""
        was_suspended = self._num_faults[base_url] >= FAULTS_TO_SUSPEND
        self._num_faults[base_url] = 0
        return was_suspended
