"""Waits worked out by hand; a minute's worth of 60 a minute flows in at 1 a second."""

import pytest

from motor.coordinator.flow_control.rate_limit import MAX_FULL_BUCKETS, RateLimiter, TokenBucket
from motor.coordinator.flow_control.settings import FlowControlSettings, TenantSettings


def test_a_bucket_refills_steadily_up_to_a_minutes_worth() -> None:
    bucket = TokenBucket(120, now=0.0)
    bucket.take(120, 0.0)
    assert bucket.seconds_until(3, 0.0) == pytest.approx(1.5)
    assert bucket.seconds_until(3, 1.0) == pytest.approx(0.5)
    assert bucket.seconds_until(3, 1.5) == 0.0
    assert bucket.seconds_until(120, 1000.0) == 0.0
    bucket.take(120, 1000.0)
    assert bucket.seconds_until(1, 1000.0) == pytest.approx(0.5)


def test_more_than_a_minutes_worth_passes_when_full_and_is_paid_off() -> None:
    bucket = TokenBucket(60, now=0.0)
    bucket.take(1, 0.0)
    assert bucket.seconds_until(150, 0.0) == pytest.approx(1.0)
    assert bucket.seconds_until(150, 1.0) == 0.0
    bucket.take(150, 1.0)
    assert bucket.seconds_until(1, 1.0) == pytest.approx(91.0)


def test_what_is_given_back_does_not_overflow() -> None:
    bucket = TokenBucket(60, now=0.0)
    bucket.take(-1000, 0.0)
    bucket.take(60, 0.0)
    assert bucket.seconds_until(1, 0.0) == pytest.approx(1.0)


def test_a_clock_that_goes_back_refills_nothing() -> None:
    bucket = TokenBucket(60, now=100.0)
    bucket.take(60, 100.0)
    assert bucket.seconds_until(1, 40.0) == pytest.approx(1.0)
    assert bucket.seconds_until(1, 41.0) == 0.0


def test_waiting_as_long_as_told_is_enough() -> None:
    for per_minute in range(1, 400, 7):
        bucket = TokenBucket(per_minute, now=0.1)
        bucket.take(per_minute, 0.1)
        wait = bucket.seconds_until(1, 0.1)
        assert bucket.seconds_until(1, 0.1 + wait) == 0.0


def test_both_limits_hold_and_a_refusal_takes_nothing() -> None:
    limiter = RateLimiter(FlowControlSettings(requests_per_minute=2, tokens_per_minute=600))
    assert limiter.take("a", 500, 0.0) == 0.0
    assert limiter.take("a", 200, 0.0) == pytest.approx(10.0)  # 100 tokens short at 10 a second
    assert limiter.take("a", 100, 0.0) == 0.0
    assert limiter.take("a", 0, 0.0) == pytest.approx(30.0)  # the third request, at 2 a minute
    assert limiter.take("a", 400, 0.0) == pytest.approx(40.0)
    assert limiter.take("b", 600, 0.0) == 0.0


def test_what_was_not_served_is_given_back() -> None:
    limiter = RateLimiter(FlowControlSettings(requests_per_minute=1, tokens_per_minute=60))
    assert limiter.take("a", 60, 0.0) == 0.0
    limiter.give_back("a", 60, 0.0)
    assert limiter.take("a", 60, 0.0) == 0.0


def test_an_estimate_is_settled() -> None:
    limiter = RateLimiter(FlowControlSettings(tokens_per_minute=60))
    assert limiter.take("a", 50, 0.0) == 0.0
    limiter.adjust("a", -20, 0.0)
    assert limiter.take("a", 40, 0.0) > 0.0
    assert limiter.take("a", 30, 0.0) == 0.0
    limiter.adjust("a", 5, 0.0)
    assert limiter.take("a", 1, 0.0) == pytest.approx(6.0)


def test_a_tenants_own_rate_replaces_the_general_one() -> None:
    tenants = {"big": TenantSettings(requests_per_minute=3), "t": TenantSettings(tokens_per_minute=10)}
    limiter = RateLimiter(FlowControlSettings(requests_per_minute=1, tenants=tenants))
    assert [limiter.take("big", 1, 0.0) > 0 for _ in range(4)] == [False, False, False, True]
    assert limiter.take("t", 10, 0.0) == 0.0
    assert limiter.take("t", 0, 0.0) == pytest.approx(60.0)


def test_without_limits_no_key_is_remembered() -> None:
    limiter = RateLimiter(FlowControlSettings())
    assert limiter.take("a", 10**9, 0.0) == 0.0
    limiter.give_back("a", 10**9, 0.0)
    assert limiter.num_keys == 0


def test_keys_that_never_come_back_are_forgotten_but_no_debt_is() -> None:
    limiter = RateLimiter(FlowControlSettings(requests_per_minute=60))
    for number in range(10 * MAX_FULL_BUCKETS):
        assert limiter.take(f"key-{number}", 1, float(number)) == 0.0
        assert limiter.num_keys <= 3 * MAX_FULL_BUCKETS
    for _ in range(60):
        limiter.take("greedy", 1, 20_000.0)
    for number in range(3 * MAX_FULL_BUCKETS):
        limiter.take(f"other-{number}", 1, 20_000.0)
    assert limiter.take("greedy", 1, 20_000.0) == pytest.approx(1.0)
