"""Costs and scores are arithmetic, so the expected numbers are written out."""

import pytest

from motor.coordinator.domain.instance import Instance, Role
from motor.coordinator.kv_query.port import EndpointKey
from motor.coordinator.scheduling.demand import Demand
from motor.coordinator.scheduling.load_ledger import Load
from motor.coordinator.scheduling.ranking import Candidate, Policy, best, cost_in_tokens, scores


def candidate(name: str, *, computing: int = 0, held: int = 0, cached: int = 0) -> Candidate:
    return Candidate(Instance(name, Role.UNION, "http://x"), EndpointKey(name), Load(1, computing, held), cached)


DEMAND = Demand(1000)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (candidate("idle"), 1000),
        (candidate("busy", computing=500), 1500),
        (candidate("decoding", held=2000), 1200),
        (candidate("warm", cached=992), 8),
        (candidate("overfull cache", cached=4096), 0),
        (candidate("all", computing=500, held=2000, cached=992), 708),
    ],
)
def test_cost_is_the_work_before_the_first_token(one: Candidate, expected: float) -> None:
    assert cost_in_tokens(one, DEMAND, 0.1) == expected


def test_a_prompt_that_is_taken_over_costs_no_computing() -> None:
    assert cost_in_tokens(candidate("decode", held=100), DEMAND.for_decode(), 0.1) == 10


def test_the_cheapest_scores_1_and_the_others_their_share() -> None:
    warm, idle, busy = candidate("warm", cached=901), candidate("idle"), candidate("busy", computing=999)
    found = scores([warm, idle, busy], DEMAND, Policy.KV_CACHE_AFFINITY, 0.1)
    assert found == (1.0, 100 / 1001, 100 / 2000)


def test_a_hot_prefix_is_left_when_the_queue_costs_more_than_it_saves() -> None:
    idle = candidate("idle")
    for computing, name in ((0, "hot"), (799, "hot"), (801, "idle")):
        both = [candidate("hot", computing=computing, cached=800), idle]
        assert best(both, scores(both, DEMAND, Policy.KV_CACHE_AFFINITY, 0.1), 0).instance.id == name


def test_equals_take_turns() -> None:
    three = [candidate(name) for name in "abc"]
    for policy in Policy:
        scored = scores(three, DEMAND, policy, 0.1)
        assert [best(three, scored, turn).instance.id for turn in range(4)] == ["a", "b", "c", "a"]


def test_round_robin_sees_no_load() -> None:
    both = [candidate("busy", computing=10_000), candidate("idle")]
    assert best(both, scores(both, DEMAND, Policy.ROUND_ROBIN, 0.1), 0).instance.id == "busy"
