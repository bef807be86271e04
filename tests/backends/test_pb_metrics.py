"""Metrics that models make, as a model author sees them; without a server they are local."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import triton_python_backend_utils
from tritrio.backends import metric_store
from tritrio.backends.metric_store import MetricKind, MetricStore, labels_of

pb_utils: Any = triton_python_backend_utils
Family = pb_utils.MetricFamily


def test_a_counter_only_grows() -> None:
    counter = Family("requests_seen", "Requests", Family.COUNTER).Metric({"model": "m"})
    counter.increment(2)
    counter.increment(0.5)
    with pytest.raises(pb_utils.TritonModelException) as caught:
        counter.increment(-1)
    assert str(caught.value) == (
        "counter 'requests_seen' cannot be incremented by a negative value, got -1"
    )
    assert counter.value() == 2.5


def test_a_gauge_goes_up_and_down() -> None:
    gauge = Family("level", "", Family.GAUGE).Metric()
    gauge.set(5)
    gauge.increment(-7)
    assert gauge.value() == -2.0


@pytest.mark.parametrize(
    ("kind", "method", "arguments"),
    [
        ("counter", "set", [1]),
        ("counter", "observe", [1]),
        ("gauge", "observe", [1]),
        ("histogram", "value", []),
        ("histogram", "set", [1]),
        ("histogram", "increment", [1]),
    ],
)
def test_a_metric_does_what_its_kind_can(kind: str, method: str, arguments: list[int]) -> None:
    buckets = [1.0] if kind == "histogram" else None
    metric = Family(f"f_{kind}", "", MetricKind(kind)).Metric(buckets=buckets)
    with pytest.raises(pb_utils.TritonModelException) as caught:
        getattr(metric, method)(*arguments)
    assert str(caught.value) == f"{method}() is not supported for 'f_{kind}', which is a {kind}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Family("a b", "", Family.COUNTER),
            "must be of letters, digits, '_' and ':', and not start with a digit, got 'a b'",
        ),
        (lambda: Family("nv_inference_count", "", Family.COUNTER), "got 'nv_inference_count'"),
        (lambda: Family("x", "", 0), "must be MetricFamily.COUNTER, GAUGE or HISTOGRAM, got 0"),
        (
            lambda: Family("x1", "", Family.GAUGE).Metric({"__a": "b"}),
            "and not start with a digit or '__', got '__a'",
        ),
        (
            lambda: Family("x1", "", Family.GAUGE).Metric({"a": 1}),
            "the labels of a Metric must be Unicode text, got 'a': 1",
        ),
        (
            lambda: Family("x2", "", Family.HISTOGRAM).Metric(),
            "histogram 'x2' needs buckets, got none",
        ),
        (
            lambda: Family("x2", "", Family.HISTOGRAM).Metric(buckets=[2, 1]),
            "the buckets of histogram 'x2' must ascend, got [2.0, 1.0]",
        ),
        (
            lambda: Family("x1", "", Family.GAUGE).Metric(buckets=[1]),
            "buckets are for histograms, 'x1' is a gauge",
        ),
        (
            lambda: [Family("x3", "", kind) for kind in (Family.GAUGE, Family.COUNTER)],
            "MetricFamily 'x3' is a gauge already, it cannot be a counter as well",
        ),
        (
            lambda: [
                Family("x4", "", Family.HISTOGRAM).Metric(buckets=buckets)
                for buckets in ([1, 2], [1, 3])
            ],
            "has the buckets [1.0, 2.0] already, it cannot have [1.0, 3.0] as well",
        ),
    ],
)
def test_a_faulty_metric_is_refused_by_name(make: Callable[[], object], message: str) -> None:
    with pytest.raises(pb_utils.TritonModelException) as caught:
        make()
    assert message in str(caught.value)


def test_equal_labels_share_a_metric_whatever_their_order() -> None:
    first = Family("shared", "one", Family.COUNTER).Metric({"a": "1", "b": "2"})
    second = Family("shared", "two", Family.COUNTER).Metric({"b": "2", "a": "1"})
    other = Family("shared", "two", Family.COUNTER).Metric({"a": "1"})
    first.increment(1)
    second.increment(1)
    assert (first.value(), second.value(), other.value()) == (2.0, 2.0, 0.0)


def test_a_value_counts_in_the_first_bucket_that_is_not_below_it() -> None:
    store = MetricStore()
    store.declare("h", "", MetricKind.HISTOGRAM)
    store.add(1, "h", (), (1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 3.0):
        store.observe("h", (), value)
    ((_, _, _, ((_, metric),)),) = store.families()
    assert (metric.counts, metric.value) == ([2, 2, 1], 8.0)


def test_a_metric_goes_with_the_last_instance_that_made_it() -> None:
    store = MetricStore()
    labels = labels_of({"a": "1"})
    store.declare("c", "d", MetricKind.COUNTER)
    store.add(1, "c", labels, ())
    store.add(2, "c", labels, ())
    store.add(1, "c", (), ())
    store.increment("c", labels, 3)
    store.release(1)
    assert [(name, [each for each, _ in metrics]) for name, _, _, metrics in store.families()] == [
        ("c", [labels])
    ]
    assert store.value("c", labels) == 3.0
    store.release(2)
    assert store.families() == []
    store.increment("c", labels, 1)  # a thread that was left over
    assert store.value("c", labels) == 0.0
    store.declare("c", "", MetricKind.GAUGE)  # the name is free again


def test_there_is_an_end_to_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_store, "METRICS_MAX", 2)
    store = MetricStore()
    store.declare("c", "", MetricKind.COUNTER)
    for number in range(2):
        store.add(1, "c", labels_of({"n": str(number)}), ())
    store.add(2, "c", labels_of({"n": "1"}), ())
    with pytest.raises(ValueError, match="made 2 metrics already"):
        store.add(1, "c", labels_of({"n": "2"}), ())
