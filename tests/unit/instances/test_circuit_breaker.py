"""The breaker's states over time; 3 faults in a row open it for 2 s, then one trial at a time."""

from motor.coordinator.instances.circuit_breaker import BreakerRules, BreakerState, CircuitBreaker

RULES = BreakerRules(num_faults=3, open_seconds=2.0, max_open_seconds=5.0)


def opened() -> CircuitBreaker:
    breaker = CircuitBreaker(RULES)
    for _ in range(3):
        breaker.failed(now=0.0)
    return breaker


def test_a_success_in_between_forgives() -> None:
    breaker = CircuitBreaker(RULES)
    for _ in range(5):
        breaker.failed(now=0.0)
        breaker.failed(now=0.0)
        breaker.succeeded()
    assert breaker.state(0.0) is BreakerState.CLOSED


def test_it_opens_and_lets_one_trial_through() -> None:
    breaker = opened()
    assert (breaker.state(1.9), breaker.allows(1.9)) == (BreakerState.OPEN, False)
    assert (breaker.state(2.0), breaker.allows(2.0)) == (BreakerState.HALF_OPEN, True)
    breaker.begin(2.0)
    assert not breaker.allows(2.0)


def test_a_good_trial_closes_it() -> None:
    breaker = opened()
    breaker.begin(2.0)
    breaker.succeeded()
    assert (breaker.state(2.0), breaker.allows(2.0)) == (BreakerState.CLOSED, True)


def test_a_bad_trial_opens_it_for_longer_up_to_a_bound() -> None:
    breaker = opened()
    now = 2.0
    for seconds in (4.0, 5.0, 5.0):
        breaker.begin(now)
        breaker.failed(now)
        assert breaker.state(now + seconds - 0.1) is BreakerState.OPEN
        assert breaker.state(now + seconds) is BreakerState.HALF_OPEN
        now += seconds


def test_an_abandoned_trial_may_be_made_anew() -> None:
    breaker = opened()
    breaker.begin(2.0)
    breaker.abandoned()
    assert breaker.allows(2.0)


def test_faults_of_requests_sent_before_it_opened_do_not_lengthen_it() -> None:
    breaker = opened()
    breaker.failed(now=0.5)
    assert breaker.state(2.5) is BreakerState.HALF_OPEN
