"""What statistics and metrics say of the response cache."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from tests.support.caching import NetworkCache, VirtualThreads, access_to, caching_front
from tests.support.limits import TICK_S
from tritrio.actors.metrics_collector import ModelCollector, render
from tritrio.memory.response_cache import CachedOutput, Entry, LocalCache
from tritrio.protocol import management_codec
from tritrio.protocol.statistics import ModelStatistics

CALL_S = 16 * TICK_S  # 15.625 ms
PER_MODEL = {
    "nv_cache_num_hits_per_model",
    "nv_cache_hit_duration_per_model",
    "nv_cache_num_misses_per_model",
    "nv_cache_miss_duration_per_model",
}
SAMPLE = re.compile(r"^(nv_cache_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


def metrics(statistics: ModelStatistics, cache: LocalCache | None = None) -> dict[str, float]:
    model = SimpleNamespace(
        name="model",
        version="1",
        statistics=statistics,
        metric_tags={},
        namespace="",
        load_duration_s=0.0,
    )
    registry = CollectorRegistry()
    registry.register(ModelCollector(lambda: [model], cache=cache))
    found: dict[str, float] = {}
    for name, labels, value in SAMPLE.findall(render(registry).decode()):
        assert labels == ('model="model",version="1"' if name.endswith("_per_model") else "")
        found[name] = float(value)
    return found


async def test_hits_and_misses_are_in_statistics_and_metrics(autojump_clock: MockClock) -> None:
    access = access_to(NetworkCache(), calls=VirtualThreads(CALL_S))
    async with caching_front(access=access, seconds=TICK_S) as front:
        for number, request_id in ((7, "a"), (8, "b")):
            await front.ask(number, request_id)
        await front.landed()
        for request_id in ("c", "d", "e"):
            await front.ask(7, request_id)
        statistics = front.statistics
        entry = SimpleNamespace(name="model", version="1", statistics=statistics)
        (shown,) = json.loads(management_codec.statistics([entry]))["model_stats"]
        stats = shown["inference_stats"]
        assert stats["cache_hit"] == {"count": 3, "ns": 3 * 15_625_000}
        assert stats["cache_miss"] == {"count": 2, "ns": 4 * 15_625_000}
        assert (stats["success"]["count"], stats["queue"]["count"]) == (5, 5)
        assert stats["compute_infer"]["count"] == 2
        assert (shown["inference_count"], shown["execution_count"]) == (2, 2)
        assert metrics(statistics) == {
            "nv_cache_num_hits_per_model": 3,
            "nv_cache_hit_duration_per_model": 3 * 15_625,
            "nv_cache_num_misses_per_model": 2,
            "nv_cache_miss_duration_per_model": 4 * 15_625,
        }


async def test_the_families_of_a_model_are_there_from_the_start_if_it_is_cached(
    autojump_clock: MockClock,
) -> None:
    assert metrics(ModelStatistics()) == {}
    async with caching_front() as front:
        assert metrics(front.statistics) == dict.fromkeys(PER_MODEL, 0)


def test_the_local_cache_is_reported_without_a_model() -> None:
    cache = LocalCache(4000)
    entry = Entry((CachedOutput("OUT", "UINT8", (229,), bytes(229)),), {})
    assert entry.byte_size == 1000
    for name in (b"a", b"b", b"c", b"d", b"e"):
        cache.insert(name, entry)
    cache.insert(b"large", Entry((CachedOutput("OUT", "UINT8", (5000,), bytes(5000)),), {}))
    assert [cache.lookup(name) is None for name in (b"a", b"b", b"c")] == [True, False, False]
    cache.statistics.lookup_ns = 5999
    cache.statistics.insertion_ns = 7000
    assert metrics(ModelStatistics(), cache) == {
        "nv_cache_util": 1.0,
        "nv_cache_num_entries": 4,
        "nv_cache_num_lookups": 3,
        "nv_cache_num_hits": 2,
        "nv_cache_num_misses": 1,
        "nv_cache_num_evictions": 1,
        "nv_cache_lookup_duration": 5,
        "nv_cache_insertion_duration": 7,
    }


async def test_the_local_cache_counts_the_look_ups_of_all_models(
    autojump_clock: MockClock,
) -> None:
    cache = LocalCache(2**20)
    access = access_to(cache)
    for _ in range(2):
        async with caching_front(access=access) as front:
            for number in (7, 7, 8):
                await front.ask(number, "a")
    assert (cache.statistics.hits, cache.statistics.misses, len(cache)) == (2, 4, 4)
