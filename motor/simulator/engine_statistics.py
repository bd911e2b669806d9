"""What a simulated engine counts, and how it is shown to Prometheus."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class EngineStatistics:
    """Counts since the start; every field changes as requests come and go.

    Attributes:
        num_running: Requests that generate now.
        num_waiting: Requests that wait for a place.
        num_open: Requests between arrival and end, hanging ones included.
        num_disconnected: Requests whose client left before the end.
        num_prompt_tokens: Prompt tokens of started requests.
        num_generation_tokens: Ids generated.
        num_cached_tokens: Prompt tokens found in the prefix cache.
        requests: Requests by endpoint.
        legs: Generate requests by leg.
        ranks: Generate requests by the data-parallel rank that they name; those that name none aren't here.
        finished: Choices by finish reason.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_open: int = 0
    num_disconnected: int = 0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_cached_tokens: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    legs: Counter[str] = field(default_factory=Counter)
    ranks: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """Return all counts."""
        return {
            "num_running": self.num_running,
            "num_waiting": self.num_waiting,
            "num_open": self.num_open,
            "num_disconnected": self.num_disconnected,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_generation_tokens": self.num_generation_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "requests": dict(self.requests),
            "legs": dict(self.legs),
            "ranks": dict(self.ranks),
            "finished": dict(self.finished),
        }


_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def prometheus_text(
    statistics: EngineStatistics, model_name: str, kv_usage: float, block_size: int, num_blocks: int
) -> str:
    """Return the metrics that schedulers read, in vLLM's names."""
    label = f'engine="0",model_name="{model_name}"'
    lines: list[str] = []

    def add(name: str, kind: str, *samples: tuple[str, float]) -> None:
        lines.append(f"# TYPE vllm:{name} {kind}")
        lines.extend(f"vllm:{name}{{{label}{extra}}} {float(value)}" for extra, value in samples)

    add("num_requests_running", "gauge", ("", statistics.num_running))
    add("num_requests_waiting", "gauge", ("", statistics.num_waiting))
    add("kv_cache_usage_perc", "gauge", ("", kv_usage))
    add("prompt_tokens_total", "counter", ("", statistics.num_prompt_tokens))
    add("generation_tokens_total", "counter", ("", statistics.num_generation_tokens))
    add("prefix_cache_hits_total", "counter", ("", statistics.num_cached_tokens))
    add("prefix_cache_queries_total", "counter", ("", statistics.num_prompt_tokens))
    finished = [(f',finished_reason="{reason}"', statistics.finished[reason]) for reason in _FINISH_REASONS]
    add("request_success_total", "counter", *finished)
    sizes = f',block_size="{block_size}",num_gpu_blocks="{num_blocks}",kv_cache_size_tokens="{block_size * num_blocks}"'
    add("cache_config_info", "gauge", (sizes, 1))
    return "\n".join(lines) + "\n"
