"""Which endpoint is best; pure functions of what the scheduler knows.

Work is counted in tokens, so that a cached prefix and a busy endpoint weigh against each other without a tuned weight:
tokens that are computed before this prompt's turn, its own tokens that the endpoint doesn't hold, and a part of the
tokens whose KV cache every decode step there reads. An endpoint with a hot prefix is chosen until the queue before it
costs more than the prefix saves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from motor.coordinator.domain.instance import Instance
from motor.coordinator.kv_query.port import EndpointKey
from motor.coordinator.scheduling.demand import Demand
from motor.coordinator.scheduling.load_ledger import Load


class Policy(StrEnum):
    """How an endpoint is chosen."""

    ROUND_ROBIN = "round_robin"
    LOAD_BALANCE = "load_balance"
    KV_CACHE_AFFINITY = "kv_cache_affinity"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An endpoint that may be chosen.

    Attributes:
        instance: Its instance.
        key: Its instance's id and its rank.
        load: What is reserved on it.
        num_cached_tokens: How much of the prompt it holds, as far as is known.
    """

    instance: Instance
    key: EndpointKey
    load: Load
    num_cached_tokens: int = 0


def num_uncached_tokens(demand: Demand, num_cached_tokens: int) -> int:
    """Return how many tokens an endpoint has to compute for a prompt before its first output token."""
    return max(0, demand.num_prompt_tokens - num_cached_tokens) if demand.computes_prompt else 0


def cost_in_tokens(candidate: Candidate, demand: Demand, held_token_cost: float) -> float:
    """Return the work before this prompt's first token, and the weight of what decodes beside it.

    Args:
        candidate: The endpoint.
        demand: The prompt.
        held_token_cost: What a token in the KV cache of running requests costs, in computed tokens.
    """
    load = candidate.load
    own = num_uncached_tokens(demand, candidate.num_cached_tokens)
    return load.num_compute_tokens + own + held_token_cost * load.num_kv_tokens


def scores(
    candidates: Sequence[Candidate], demand: Demand, policy: Policy, held_token_cost: float
) -> tuple[float, ...]:
    """Return one score in (0, 1] for each candidate; the cheapest has 1, one that is twice as dear a half."""
    if policy is Policy.ROUND_ROBIN:
        return (1.0,) * len(candidates)
    costs = [1 + cost_in_tokens(candidate, demand, held_token_cost) for candidate in candidates]
    least = min(costs, default=1.0)
    return tuple(least / cost for cost in costs)


def best(candidates: Sequence[Candidate], scored: Sequence[float], turn: int) -> Candidate:
    """Return the candidate with the highest score; of several, the one whose turn it is.

    Args:
        candidates: At least one.
        scored: A score for each.
        turn: Counts choices, from 0.
    """
    highest = max(scored)
    equals = [candidate for candidate, score in zip(candidates, scored, strict=True) if score == highest]
    return equals[turn % len(equals)]
