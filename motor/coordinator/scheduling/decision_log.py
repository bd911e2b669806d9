"""Why the last requests went where they went, for operators who ask about one of them; it holds no token ids."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from motor.coordinator.domain.instance import Role
from motor.coordinator.kv_query.port import EndpointKey
from motor.coordinator.scheduling.demand import Demand
from motor.coordinator.scheduling.ranking import Candidate, Policy


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice.

    Attributes:
        policy: What ranked the candidates.
        role: What was looked for.
        demand: What was asked.
        candidates: Who could be chosen.
        scores: One for each candidate.
        passed_over: Instances of the role that could not, each with the reason.
        chosen: The endpoint.
    """

    policy: Policy
    role: Role
    demand: Demand
    candidates: Sequence[Candidate]
    scores: Sequence[float]
    passed_over: Mapping[str, str]
    chosen: EndpointKey

    def as_json(self) -> dict[str, Any]:
        """Return what operators see."""
        return {
            "policy": self.policy,
            "role": self.role,
            "prompt_tokens": self.demand.num_prompt_tokens,
            "expected_output_tokens": self.demand.num_output_tokens,
            "chosen": _name(self.chosen),
            "candidates": [
                {
                    **_name(candidate.key),
                    "score": round(score, 4),
                    "cached_tokens": candidate.num_cached_tokens,
                    "requests": candidate.load.num_requests,
                    "computing_tokens": candidate.load.num_compute_tokens,
                    "held_tokens": candidate.load.num_kv_tokens,
                }
                for candidate, score in zip(self.candidates, self.scores, strict=True)
            ],
            "passed_over": dict(self.passed_over),
        }


def _name(key: EndpointKey) -> dict[str, Any]:
    return {"instance": key.instance_id, "data_parallel_rank": key.data_parallel_rank}


class DecisionLog:
    """The decisions of the last `capacity` requests, by request id; mutable: `_decisions`."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._decisions: OrderedDict[str, list[Decision]] = OrderedDict()

    def remember(self, decision: Decision) -> None:
        """Keep a decision, forgetting the oldest request."""
        if not self._capacity:
            return
        self._decisions.setdefault(decision.demand.request_id, []).append(decision)
        if len(self._decisions) > self._capacity:
            self._decisions.popitem(last=False)

    def of(self, request_id: str) -> list[dict[str, Any]] | None:
        """Return a request's decisions in order, or `None` if it is unknown or forgotten."""
        decisions = self._decisions.get(request_id)
        return None if decisions is None else [decision.as_json() for decision in decisions]
