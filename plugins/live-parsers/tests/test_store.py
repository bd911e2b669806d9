from motor_live_parsers.store import TakeOutStore


class Clock:
    def __init__(self) -> None:
        self.now_seconds = 0.0

    def __call__(self) -> float:
        return self.now_seconds


def make_store(max_entries: int = 3, max_tokens: int = 100, clock: Clock | None = None) -> TakeOutStore[str]:
    return TakeOutStore(max_entries, max_tokens, ttl_seconds=10, clock=clock or Clock())


def test_what_is_taken_is_gone():
    store = make_store()
    store.put(b"a", "first", 1)
    assert store.take(b"a") == "first"
    assert store.take(b"a") is None
    statistics = store.statistics()
    assert (statistics.num_hits, statistics.num_misses, statistics.num_entries, statistics.num_tokens) == (1, 1, 0, 0)


def test_identical_streams_each_get_a_value():
    store = make_store()
    store.put(b"a", "first", 1)
    store.put(b"a", "second", 1)
    assert {store.take(b"a"), store.take(b"a")} == {"first", "second"}
    assert store.take(b"a") is None


def test_the_oldest_is_evicted_when_there_are_too_many():
    store = make_store(max_entries=2)
    for key in (b"a", b"b", b"c"):
        store.put(key, key.decode(), 1)
    assert [store.take(key) for key in (b"a", b"b", b"c")] == [None, "b", "c"]
    assert store.statistics().num_evictions == 1


def test_the_oldest_are_evicted_until_a_large_one_fits():
    store = make_store(max_tokens=100)
    store.put(b"a", "a", 40)
    store.put(b"b", "b", 40)
    store.put(b"c", "c", 90)
    assert [store.take(key) for key in (b"a", b"b", b"c")] == [None, None, "c"]


def test_what_is_too_large_alone_is_not_kept():
    store = make_store(max_tokens=100)
    store.put(b"a", "a", 101)
    assert store.take(b"a") is None
    assert store.statistics().num_tokens == 0


def test_a_stream_without_calls_expires():
    clock = Clock()
    store = make_store(clock=clock)
    store.put(b"a", "a", 1)
    clock.now_seconds = 9.9
    store.put(b"b", "b", 1)
    clock.now_seconds = 10.0
    assert store.statistics().num_entries == 1
    assert store.take(b"a") is None
    assert store.take(b"b") == "b"
