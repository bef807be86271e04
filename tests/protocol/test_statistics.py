"""Counters: responses by their index, and histograms."""

from __future__ import annotations

import json
from types import SimpleNamespace

from tritrio.protocol import grpc_codec, management_codec
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.statistics import RESPONSE_KEYS_MAX, Histogram, ModelStatistics

NAMES = ("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")


def with_responses() -> SimpleNamespace:
    """A model version that has counted one response of every kind."""
    statistics = ModelStatistics()
    statistics.record_response(0, 5, failed=False)
    statistics.record_response(0, 7, failed=True)
    statistics.record_empty_response(1, 11)
    statistics.record_cancelled_response(1, 13)
    return SimpleNamespace(name="m", version="1", statistics=statistics)


EXPECTED = {
    "0": dict(zip(NAMES, [(2, 12), (2, 0), (1, 5), (1, 7), (0, 0), (0, 0)], strict=True)),
    "1": dict(zip(NAMES, [(1, 11), (0, 0), (0, 0), (0, 0), (1, 11), (1, 13)], strict=True)),
}
"""Index -> name -> (count, nanoseconds)."""


def test_responses_are_in_the_json_by_their_index() -> None:
    (entry,) = json.loads(management_codec.statistics([with_responses()]))["model_stats"]
    assert entry["response_stats"] == {
        index: {name: {"count": count, "ns": ns} for name, (count, ns) in durations.items()}
        for index, durations in EXPECTED.items()
    }


def test_responses_are_in_the_message_by_their_index() -> None:
    data = bytes(grpc_codec.statistics_message([with_responses()]))
    (entry,) = pb.ModelStatisticsResponse.parse(data).model_stats
    assert {
        index: {name: (getattr(response, name).count, getattr(response, name).ns) for name in NAMES}
        for index, response in entry.response_stats.items()
    } == EXPECTED


def test_responses_beyond_the_last_key_count_with_it() -> None:
    statistics = ModelStatistics()
    for index in range(RESPONSE_KEYS_MAX + 5):
        statistics.record_response(index, 1, failed=False)
    statistics.record_cancelled_response(10**9, 2)
    assert list(statistics.responses) == list(range(RESPONSE_KEYS_MAX))
    last = statistics.responses[RESPONSE_KEYS_MAX - 1]
    assert (last.success.count, last.success.ns) == (6, 6)
    assert (last.cancel.count, last.cancel.ns) == (1, 2)


def test_a_value_that_equals_a_bound_is_below_it() -> None:
    histogram = Histogram((1.0, 2.5))
    for value in (0.5, 1.0, 1.5, 2.5, 2.6):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.sum == 8.1
