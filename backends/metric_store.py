"""The metrics that models make: families of counters, gauges and histograms.

A metric is there as long as one of the instances that made it. Whoever makes it again, with the
same family and labels, shares it.
Source: the documented interface of Triton's Python backend, and the text format of Prometheus.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol, TypeAlias, final

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""(name, value) pairs in the order of their names."""

METRICS_MAX: Final = 10_000
"""Metrics of all models together: each is a line or more of every scrape, and a model that labels
by something of its requests would make one a request."""

RESERVED_PREFIXES: Final = ("nv_inference_", "nv_model_", "nv_cache_")
"""How the names of the server's own families start."""

_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class MetricKind(Enum):
    """What a metric family counts; the values are its names in the text format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metrics(Protocol):
    """Where models make metrics; every method may be called from any thread."""

    def declare(self, name: str, description: str, kind: MetricKind) -> None:
        """Make a family, or find it again; the description of the first one stays.

        Raises:
          ValueError: the name is no name, the server's own, or one of another kind.
        """

    def add(self, owner: int | None, name: str, labels: Labels, buckets: tuple[float, ...]) -> None:
        """Make a metric of a declared family, or find it again.

        Args:
          owner: The number of the instance whose metric it is (see `InstancePlace.number`).
          name: The family.
          labels: What tells the metric from others of the family.
          buckets: Upper bounds, ascending; of a histogram only.

        Raises:
          ValueError: a label's name is no name, the metric has other buckets already, or there are
            too many metrics.
        """

    def increment(self, name: str, labels: Labels, value: float) -> None:
        """Add to a counter or gauge; nothing if it is gone."""

    def set(self, name: str, labels: Labels, value: float) -> None:
        """Set a gauge; nothing if it is gone."""

    def observe(self, name: str, labels: Labels, value: float) -> None:
        """Count a value in a histogram; nothing if it is gone."""

    def value(self, name: str, labels: Labels) -> float:
        """Return the value of a counter or gauge; 0 if it is gone."""


@dataclass(slots=True)
class StoredMetric:
    """One metric.

    Attributes:
      buckets: Upper bounds of a histogram, ascending, without the last one, which is infinite.
      counts: Values in each bucket alone, one more than `buckets`.
      value: Of a counter or gauge; of a histogram the sum of its values.
      owners: Numbers of the instances that made it.
    """

    buckets: tuple[float, ...] = ()
    counts: list[int] = field(default_factory=list)
    value: float = 0.0
    owners: set[int | None] = field(default_factory=set)


@dataclass(slots=True)
class StoredFamily:
    """The metrics of one name.

    Attributes:
      description: What they say.
      kind: What they count.
      metrics: By their labels.
    """

    description: str
    kind: MetricKind
    metrics: dict[Labels, StoredMetric] = field(default_factory=dict)


@final
class MetricStore:
    """The metrics of the models of one server; see `Metrics`."""

    def __init__(self) -> None:
        self._families: dict[str, StoredFamily] = {}
        self._lock = threading.Lock()

    def declare(self, name: str, description: str, kind: MetricKind) -> None:
        """Make a family, or find it again; see `Metrics`."""
        if not _NAME.fullmatch(name):
            raise ValueError(
                "the name of a MetricFamily must be of letters, digits, '_' and ':', and not start "
                f"with a digit, got {name!r}"
            )
        if name.startswith(RESERVED_PREFIXES):
            raise ValueError(
                f"the names of the server's own metrics start with {', '.join(RESERVED_PREFIXES)}, "
                f"got {name!r} for a MetricFamily"
            )
        with self._lock:
            family = self._families.setdefault(name, StoredFamily(description, kind))
        if family.kind is not kind:
            raise ValueError(
                f"MetricFamily {name!r} is a {family.kind.value} already, it cannot be a "
                f"{kind.value} as well"
            )

    def add(self, owner: int | None, name: str, labels: Labels, buckets: tuple[float, ...]) -> None:
        """Make a metric of a declared family, or find it again; see `Metrics`."""
        for label, _ in labels:
            if not _LABEL_NAME.fullmatch(label):
                raise ValueError(
                    "the name of a label must be of letters, digits and '_', and not start with a "
                    f"digit or '__', got {label!r}"
                )
        with self._lock:
            metrics = self._families[name].metrics
            metric = metrics.get(labels)
            if metric is None:
                if sum(len(family.metrics) for family in self._families.values()) >= METRICS_MAX:
                    raise ValueError(
                        f"the models have made {METRICS_MAX} metrics already, no more are kept"
                    )
                metric = metrics[labels] = StoredMetric(buckets, [0] * (len(buckets) + 1))
            elif metric.buckets != buckets:
                raise ValueError(
                    f"this Metric of {name!r} has the buckets {list(metric.buckets)} already, it "
                    f"cannot have {list(buckets)} as well"
                )
            metric.owners.add(owner)

    def increment(self, name: str, labels: Labels, value: float) -> None:
        """Add to a counter or gauge; see `Metrics`."""
        with self._lock:
            metric = self._get(name, labels)
            if metric is not None:
                metric.value += value

    def set(self, name: str, labels: Labels, value: float) -> None:
        """Set a gauge; see `Metrics`."""
        with self._lock:
            metric = self._get(name, labels)
            if metric is not None:
                metric.value = value

    def observe(self, name: str, labels: Labels, value: float) -> None:
        """Count a value in a histogram; see `Metrics`."""
        with self._lock:
            metric = self._get(name, labels)
            if metric is not None:
                metric.counts[bisect_left(metric.buckets, value)] += 1
                metric.value += value

    def value(self, name: str, labels: Labels) -> float:
        """Return the value of a counter or gauge; see `Metrics`."""
        metric = self._get(name, labels)
        return 0.0 if metric is None else metric.value

    def release(self, owner: int | None) -> None:
        """Drop the metrics that only this instance made, and families without any left."""
        with self._lock:
            for name, family in list(self._families.items()):
                for labels, metric in list(family.metrics.items()):
                    if metric.owners == {owner}:
                        del family.metrics[labels]
                    metric.owners.discard(owner)
                if not family.metrics:
                    del self._families[name]

    def families(self) -> list[tuple[str, str, MetricKind, Sequence[tuple[Labels, StoredMetric]]]]:
        """Return name, description, kind and metrics of each family that has any; a snapshot."""
        with self._lock:
            return [
                (
                    name,
                    family.description,
                    family.kind,
                    [
                        (labels, StoredMetric(metric.buckets, metric.counts.copy(), metric.value))
                        for labels, metric in family.metrics.items()
                    ],
                )
                for name, family in sorted(self._families.items())
                if family.metrics
            ]

    def _get(self, name: str, labels: Labels) -> StoredMetric | None:
        family = self._families.get(name)
        return None if family is None else family.metrics.get(labels)


def labels_of(labels: Mapping[str, str] | None) -> Labels:
    """Return labels in the order of their names."""
    return tuple(sorted((labels or {}).items()))
