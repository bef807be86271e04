"""The families of the server's own metrics: their names, and where their values are read.

Source: Triton's `nv_*` metric families, their labels and units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeAlias, TypeVar

from prometheus_client import Metric

from ..memory.response_cache import LocalCache
from ..protocol.metrics_config import FIRST_RESPONSE_FAMILY
from ..protocol.statistics import Duration, Histogram, ModelStatistics
from .system_monitor import SystemMonitor

Labels: TypeAlias = dict[str, str]
T = TypeVar("T")

Families: TypeAlias = tuple[tuple[str, str, Callable[[T], float]], ...]
"""(name, documentation, what reads the value)."""


COUNTERS: Final[Families[ModelStatistics]] = (
    (
        "nv_inference_request_success",
        "Requests answered with success",
        lambda statistics: statistics.success.count,
    ),
    (
        "nv_inference_count",
        "Inferences done: the sum of the batch sizes of successful requests",
        lambda statistics: statistics.inference_count,
    ),
    (
        "nv_inference_exec_count",
        "Batches executed",
        lambda statistics: statistics.execution_count,
    ),
)

LATENCY_COUNTERS: Final[Families[ModelStatistics]] = (
    (
        "nv_inference_request_duration_us",
        "Microseconds from arrival to response of successful requests",
        lambda statistics: statistics.success.ns // 1000,
    ),
    (
        "nv_inference_queue_duration_us",
        "Microseconds successful requests waited in a scheduler's queue",
        lambda statistics: statistics.queue.ns // 1000,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Microseconds spent on the inputs of successful requests",
        lambda statistics: statistics.compute_input.ns // 1000,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Microseconds models executed for successful requests",
        lambda statistics: statistics.compute_infer.ns // 1000,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Microseconds spent on the outputs of successful requests",
        lambda statistics: statistics.compute_output.ns // 1000,
    ),
)
"""Of `counter_latencies`."""

CACHE_COUNTERS: Final[Families[ModelStatistics]] = (
    (
        "nv_cache_num_hits_per_model",
        "Requests answered from the response cache",
        lambda statistics: statistics.cache_hit.count,
    ),
    (
        "nv_cache_hit_duration_per_model",
        "Microseconds of the look-ups of requests answered from the response cache",
        lambda statistics: statistics.cache_hit.ns // 1000,
    ),
    (
        "nv_cache_num_misses_per_model",
        "Requests the response cache had no answer for",
        lambda statistics: statistics.cache_miss.count,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Microseconds of look-ups without an answer and of insertions",
        lambda statistics: statistics.cache_miss.ns // 1000,
    ),
)
"""Of models that use the response cache only."""

LOCAL_CACHE_GAUGES: Final[Families[LocalCache]] = (
    (
        "nv_cache_util",
        "Used part of the response cache, from 0 to 1",
        lambda cache: cache.used_bytes / cache.size_bytes,
    ),
    ("nv_cache_num_entries", "Entries in the response cache", len),
    (
        "nv_cache_num_lookups",
        "Look-ups in the response cache",
        lambda cache: cache.statistics.hits + cache.statistics.misses,
    ),
    (
        "nv_cache_num_hits",
        "Look-ups that found an entry",
        lambda cache: cache.statistics.hits,
    ),
    (
        "nv_cache_num_misses",
        "Look-ups that found none",
        lambda cache: cache.statistics.misses,
    ),
    (
        "nv_cache_num_evictions",
        "Entries that made room for others",
        lambda cache: cache.statistics.evictions,
    ),
    (
        "nv_cache_lookup_duration",
        "Microseconds of all look-ups",
        lambda cache: cache.statistics.lookup_ns // 1000,
    ),
    (
        "nv_cache_insertion_duration",
        "Microseconds of all insertions",
        lambda cache: cache.statistics.insertion_ns // 1000,
    ),
)

SYSTEM_GAUGES: Final[Families[SystemMonitor]] = (
    (
        "nv_cpu_utilization",
        "Busy part of all processors over the last interval, from 0 to 1",
        lambda system: system.cpu_utilization,
    ),
    (
        "nv_cpu_memory_total_bytes",
        "Memory of the machine",
        lambda system: system.usage.memory_total_bytes if system.usage else 0,
    ),
    (
        "nv_cpu_memory_used_bytes",
        "Memory of the machine that a new program could not have",
        lambda system: system.usage.memory_used_bytes if system.usage else 0,
    ),
)

PINNED_POOL_GAUGES: Final[Families[None]] = (
    (
        "nv_pinned_memory_pool_total_bytes",
        "Pinned memory kept for copies to a GPU",
        lambda _: 0,
    ),
    (
        "nv_pinned_memory_pool_used_bytes",
        "Pinned memory in use for copies to a GPU",
        lambda _: 0,
    ),
)
"""There is no such pool, since nothing executes on a GPU."""


@dataclass(frozen=True, slots=True)
class SummaryFamily:
    """Quantiles of a duration in microseconds.

    Attributes:
      name: Its name.
      documentation: What it says.
      field: Where the quantiles come from, one of `latency_window.FIELDS`.
      duration: Reads the count and the sum since the load.
      cached: True if only models that use the response cache have it, False if only others have
        it, None if all do.
    """

    name: str
    documentation: str
    field: str
    duration: Callable[[ModelStatistics], Duration]
    cached: bool | None = None

    def is_of(self, statistics: ModelStatistics) -> bool:
        """Return whether a model has it."""
        return self.cached is None or self.cached is statistics.cached


SUMMARIES: Final = (
    SummaryFamily(
        "nv_inference_request_summary_us",
        "Microseconds from arrival to response of successful requests",
        "request",
        lambda statistics: statistics.success,
        cached=False,
    ),
    SummaryFamily(
        "nv_inference_queue_summary_us",
        "Microseconds successful requests waited in a scheduler's queue",
        "queue",
        lambda statistics: statistics.queue,
    ),
    SummaryFamily(
        "nv_inference_compute_input_summary_us",
        "Microseconds spent on the inputs of successful requests",
        "compute_input",
        lambda statistics: statistics.compute_input,
    ),
    SummaryFamily(
        "nv_inference_compute_infer_summary_us",
        "Microseconds models executed for successful requests",
        "compute_infer",
        lambda statistics: statistics.compute_infer,
    ),
    SummaryFamily(
        "nv_inference_compute_output_summary_us",
        "Microseconds spent on the outputs of successful requests",
        "compute_output",
        lambda statistics: statistics.compute_output,
    ),
    SummaryFamily(
        "nv_cache_hit_summary_per_model",
        "Microseconds of the look-ups of requests answered from the response cache",
        "cache_hit",
        lambda statistics: statistics.cache_hit,
        cached=True,
    ),
    SummaryFamily(
        "nv_cache_miss_summary_per_model",
        "Microseconds of look-ups without an answer; the sum has the insertions as well",
        "cache_miss",
        lambda statistics: statistics.cache_miss,
        cached=True,
    ),
)


def plain_family(
    name: str, documentation: str, kind: str, samples: Iterable[tuple[Labels, float]]
) -> Metric:
    """Return a family of counters or gauges."""
    metric = Metric(name, documentation, kind)
    for labels, value in samples:
        metric.add_sample(name, labels, value)
    return metric


def summary_of(
    family: SummaryFamily,
    labels: Labels,
    statistics: ModelStatistics,
    quantiles: Sequence[float],
    now_s: float,
) -> Metric:
    """Return the quantiles of one model, as a part of their family."""
    metric = Metric(family.name, family.documentation, "summary")
    assert statistics.latencies is not None
    values_ns = statistics.latencies.quantiles_ns(family.field, now_s, quantiles)
    for quantile, value_ns in zip(quantiles, values_ns, strict=True):
        labelled = {**labels, "quantile": number_text(quantile)}
        metric.add_sample(family.name, labelled, value_ns // 1000)
    duration = family.duration(statistics)
    metric.add_sample(f"{family.name}_count", labels, duration.count)
    metric.add_sample(f"{family.name}_sum", labels, duration.ns // 1000)
    return metric


def first_response_family(models: Iterable[tuple[Labels, ModelStatistics]]) -> Metric:
    """Return how long the first responses of decoupled models took."""
    documentation = "Milliseconds from arrival to the first response, of decoupled models"
    metric = Metric(FIRST_RESPONSE_FAMILY, documentation, "histogram")
    for labels, statistics in models:
        histogram = statistics.first_response
        if histogram is not None:
            add_histogram(metric, labels, histogram)
    return metric


def add_histogram(metric: Metric, labels: Labels, histogram: Histogram) -> None:
    """Add the buckets, the sum and the count of one histogram to its family."""
    bounds = [*map(number_text, histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, accumulate(histogram.counts), strict=True):
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    metric.add_sample(f"{metric.name}_sum", labels, histogram.sum)
    metric.add_sample(f"{metric.name}_count", labels, sum(histogram.counts))


def number_text(number: float) -> str:
    """Return a bound or a quantile as Triton labels it: 100, 2.5, 0.999."""
    return repr(number).removesuffix(".0")
