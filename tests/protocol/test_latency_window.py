"""Quantiles of recent durations, against numpy's over the same numbers."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest

from tritrio.protocol.latency_window import FIELDS, SAMPLES_MAX, WINDOW_S, LatencyWindow

QUANTILES = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)


def exact(values: list[int]) -> list[float]:
    found: list[float] = np.quantile(values, QUANTILES, method="inverted_cdf").tolist()
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000, SAMPLES_MAX])
def test_quantiles_are_those_of_everything_that_is_remembered(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 10**9, count).tolist()
    window = LatencyWindow()
    for value in values:
        window.add(1.0, request_ns=value, compute_output_ns=2 * value)
    assert window.quantiles_ns("request", 1.0, QUANTILES) == exact(values)
    assert window.quantiles_ns("compute_output", 1.0, QUANTILES) == [2 * q for q in exact(values)]


def test_a_full_window_forgets_the_oldest() -> None:
    window = LatencyWindow()
    values = list(range(SAMPLES_MAX + 1000))
    for value in values:
        window.add(1.0, queue_ns=value)
    assert window.quantiles_ns("queue", 1.0, QUANTILES) == exact(values[1000:])


def test_what_is_older_than_the_window_no_longer_counts() -> None:
    window = LatencyWindow()
    for second in range(10):
        window.add(float(second), request_ns=second)
    now_s = WINDOW_S + 4.0
    assert window.quantiles_ns("request", now_s, QUANTILES) == exact([5, 6, 7, 8, 9])
    assert all(map(isnan, window.quantiles_ns("request", WINDOW_S + 9.0, QUANTILES)))


def test_a_duration_that_was_not_told_is_no_zero() -> None:
    window = LatencyWindow()
    window.add(1.0, queue_ns=3, cache_hit_ns=4)
    window.add(1.0, cache_miss_ns=5)
    medians = {field: window.quantiles_ns(field, 1.0, [0.5])[0] for field in FIELDS}
    assert {field: value for field, value in medians.items() if not isnan(value)} == {
        "queue": 3,
        "cache_hit": 4,
        "cache_miss": 5,
    }


def test_nothing_has_no_quantiles() -> None:
    assert all(map(isnan, LatencyWindow().quantiles_ns("request", 1.0, QUANTILES)))
