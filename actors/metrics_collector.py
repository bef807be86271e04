"""The counters of every model as Prometheus families, read at scrape time.

Source: Triton's `nv_inference_*` families, their labels and units.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Protocol, final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.utils import floatToGoString

from ..backends.metric_store import MetricKind, MetricStore
from ..memory.response_cache import LocalCache
from ..protocol.errors import FailureReason
from ..protocol.statistics import ModelStatistics

CONTENT_TYPE = "text/plain; charset=utf-8"

_COUNTER_HEADER = re.compile(rb"^# HELP (\S+)_total (.*)\n# TYPE \1_total counter$", re.MULTILINE)


class MeasuredModel(Protocol):
    """What the collector wants to know of a model version."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def version(self) -> str:
        """Its version, as decimal text."""

    @property
    def statistics(self) -> ModelStatistics:
        """Its counters."""

    @property
    def metric_tags(self) -> dict[str, str]:
        """The `metric_tags` of its configuration."""

    @property
    def load_duration_s(self) -> float:
        """How long its load took."""


_COUNTERS: tuple[tuple[str, str, Callable[[ModelStatistics], int]], ...] = (
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

_CACHE_COUNTERS: tuple[tuple[str, str, Callable[[ModelStatistics], int]], ...] = (
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

_LOCAL_CACHE_GAUGES: tuple[tuple[str, str, Callable[[LocalCache], float]], ...] = (
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


@final
class ModelCollector:
    """A prometheus-client collector over the models' own counters.

    Args:
      models: Returns the model versions to report, each time it is scraped.
      cache: The response cache in the server's memory, if there is one.
      custom: The metrics that models make themselves, if they may.
    """

    def __init__(
        self,
        models: Callable[[], Iterable[MeasuredModel]],
        *,
        cache: LocalCache | None = None,
        custom: MetricStore | None = None,
    ) -> None:
        self._models = models
        self._cache = cache
        self._custom = custom

    def collect(self) -> Iterator[Metric]:
        """Yield every family with one sample a model version."""
        models = [(_labels(model), model) for model in self._models()]
        for name, documentation, read in _COUNTERS:
            yield _family(
                name,
                documentation,
                "counter",
                ((labels, read(model.statistics)) for labels, model in models),
            )
        cached = [(labels, model) for labels, model in models if model.statistics.cached]
        for name, documentation, read in _CACHE_COUNTERS if cached else ():
            yield _family(
                name,
                documentation,
                "counter",
                ((labels, read(model.statistics)) for labels, model in cached),
            )
        if self._cache is not None:
            for name, documentation, measure in _LOCAL_CACHE_GAUGES:
                yield _family(name, documentation, "gauge", [({}, measure(self._cache))])
        yield _family(
            "nv_inference_request_failure",
            "Requests that failed, by reason",
            "counter",
            (
                ({**labels, "reason": reason.value}, model.statistics.failures[reason])
                for labels, model in models
                for reason in FailureReason
            ),
        )
        yield _family(
            "nv_inference_pending_request_count",
            "Requests accepted and not yet executing",
            "gauge",
            ((labels, model.statistics.pending_count) for labels, model in models),
        )
        yield _family(
            "nv_model_load_duration_secs",
            "Seconds the model's load took",
            "gauge",
            ((labels, model.load_duration_s) for labels, model in models),
        )
        if self._custom is not None:
            yield from _custom_families(self._custom)


def _labels(model: MeasuredModel) -> dict[str, str]:
    tags = {f"_{tag}": value for tag, value in model.metric_tags.items()}
    return {"model": model.name, "version": model.version, **tags}


def _custom_families(store: MetricStore) -> Iterator[Metric]:
    for name, description, kind, metrics in store.families():
        family = Metric(name, description, kind.value)
        for labels, metric in metrics:
            if kind is MetricKind.HISTOGRAM:
                for bound, count in zip(
                    [*map(floatToGoString, metric.buckets), "+Inf"],
                    accumulate(metric.counts),
                    strict=True,
                ):
                    family.add_sample(f"{name}_bucket", {**dict(labels), "le": bound}, count)
                family.add_sample(f"{name}_sum", dict(labels), metric.value)
                family.add_sample(f"{name}_count", dict(labels), sum(metric.counts))
            else:
                family.add_sample(name, dict(labels), metric.value)
        yield family


def _family(
    name: str,
    documentation: str,
    kind: str,
    samples: Iterable[tuple[dict[str, str], float]],
) -> Metric:
    metric = Metric(name, documentation, kind)
    for labels, value in samples:
        metric.add_sample(name, labels, value)
    return metric


def render(registry: CollectorRegistry) -> bytes:
    """Return the Prometheus text of a registry.

    The library names counters after OpenMetrics, ending in `_total`; Triton's dashboards ask for
    them as they are, so the header lines are brought in line with the samples.
    """
    return _COUNTER_HEADER.sub(rb"# HELP \1 \2\n# TYPE \1 counter", generate_latest(registry))
