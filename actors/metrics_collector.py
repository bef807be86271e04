"""The counters of every model as Prometheus families, read at scrape time.

Source: Triton's `nv_*` metric families, their labels and units.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar, final

import trio
from prometheus_client import CollectorRegistry, Metric, generate_latest

from ..backends.metric_store import MetricKind, MetricStore
from ..memory.response_cache import LocalCache
from ..protocol.errors import FailureReason
from ..protocol.metrics_config import MetricsConfig
from ..protocol.statistics import Histogram, ModelStatistics
from ._llm_metric_families import llm_families
from ._metric_families import (
    CACHE_COUNTERS,
    COUNTERS,
    LATENCY_COUNTERS,
    LOCAL_CACHE_GAUGES,
    PINNED_POOL_GAUGES,
    SUMMARIES,
    SYSTEM_GAUGES,
    Families,
    Labels,
    add_histogram,
    first_response_family,
    plain_family,
    summary_of,
)
from .system_monitor import SystemMonitor

CONTENT_TYPE = "text/plain; charset=utf-8"

SAMPLES_A_TURN = 32
"""Lines of a scrape written in one turn of the event loop; a line takes some ten microseconds."""

_HEADER_LINES = 2  # what a family starts with: its help and its type
_COUNTER_HEADER = re.compile(rb"^# HELP (\S+)_total (.*)\n# TYPE \1_total counter$", re.MULTILINE)
_NO_LABEL_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")

T = TypeVar("T")


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
    def namespace(self) -> str:
        """The repository that tells it from models of the same name; "" without namespaces."""

    @property
    def load_duration_s(self) -> float:
        """How long its load took."""


@final
class ModelCollector:
    """A prometheus-client collector over the models' own counters.

    It is read on the event loop, so that the numbers of a family belong together.

    Args:
      models: Returns the model versions to report, each time it is scraped.
      config: Which families there are.
      cache: The response cache in the server's memory, if there is one.
      custom: The metrics that models make themselves, if they may.
      system: What looks at the machine, if something does.
    """

    def __init__(
        self,
        models: Callable[[], Iterable[MeasuredModel]],
        *,
        config: MetricsConfig | None = None,
        cache: LocalCache | None = None,
        custom: MetricStore | None = None,
        system: SystemMonitor | None = None,
    ) -> None:
        self._models = models
        self._config = MetricsConfig() if config is None else config
        self._cache = cache
        self._custom = custom
        self._system = system

    def collect(self) -> Iterator[Metric]:
        """Yield every family with the samples of all model versions."""
        models = [(_labels(model), model) for model in self._models()]
        counted = [(labels, model.statistics) for labels, model in models]
        yield from _plain(COUNTERS, "counter", counted)
        yield plain_family(
            "nv_inference_request_failure",
            "Requests that failed, by reason",
            "counter",
            (
                ({**labels, "reason": reason.value}, statistics.failures[reason])
                for labels, statistics in counted
                for reason in FailureReason
            ),
        )
        yield plain_family(
            "nv_inference_pending_request_count",
            "Requests accepted and not yet executing",
            "gauge",
            ((labels, statistics.pending_count) for labels, statistics in counted),
        )
        yield plain_family(
            "nv_model_load_duration_secs",
            "Seconds the model's load took",
            "gauge",
            ((labels, model.load_duration_s) for labels, model in models),
        )
        yield from self._latencies(counted)
        yield from llm_families(
            [
                (labels, statistics.llm)
                for labels, statistics in counted
                if statistics.llm is not None
            ]
        )
        yield from _plain(PINNED_POOL_GAUGES, "gauge", [({}, None)])
        if self._system is not None and self._system.usage is not None:
            yield from _plain(SYSTEM_GAUGES, "gauge", [({}, self._system)])
        if self._cache is not None:
            yield from _plain(LOCAL_CACHE_GAUGES, "gauge", [({}, self._cache)])
        if self._custom is not None:
            yield from _custom_families(self._custom)

    def _latencies(self, counted: list[tuple[Labels, ModelStatistics]]) -> Iterator[Metric]:
        """Yield what may be switched on or off, as far as there are samples of it."""
        config = self._config
        cached = [(labels, statistics) for labels, statistics in counted if statistics.cached]
        if config.counter_latencies:
            yield from _plain(LATENCY_COUNTERS, "counter", counted)
            yield from _plain(CACHE_COUNTERS if cached else (), "counter", cached)
        if config.summary_latencies:
            now_s = trio.current_time()
            for family in SUMMARIES:
                for labels, statistics in counted:  # apart, since each takes a while
                    if statistics.latencies is not None and family.is_of(statistics):
                        yield summary_of(
                            family, labels, statistics, config.summary_quantiles, now_s
                        )
        if any(statistics.first_response is not None for _, statistics in counted):
            yield first_response_family(counted)


def _labels(model: MeasuredModel) -> Labels:
    tags = {
        _NO_LABEL_CHARACTER.sub("_", f"_{tag}"): value for tag, value in model.metric_tags.items()
    }
    labels = {"model": model.name, "version": model.version, **tags}
    return {**labels, "namespace": model.namespace} if model.namespace else labels


def _plain(families: Families[T], kind: str, sources: list[tuple[Labels, T]]) -> Iterator[Metric]:
    for name, documentation, read in families:
        yield plain_family(
            name, documentation, kind, ((labels, read(source)) for labels, source in sources)
        )


def _custom_families(store: MetricStore) -> Iterator[Metric]:
    for name, description, kind, metrics in store.families():
        family = Metric(name, description, kind.value)
        for pairs, metric in metrics:
            labels = dict(pairs)
            if kind is MetricKind.HISTOGRAM:
                histogram = Histogram(metric.buckets)
                histogram.counts, histogram.sum = metric.counts, metric.value
                add_histogram(family, labels, histogram)
            else:
                family.add_sample(name, labels, metric.value)
        yield family


@dataclass(frozen=True, slots=True)
class _Collected:
    """What `generate_latest` takes for a registry: a family that is collected already."""

    family: Metric

    def collect(self) -> Iterable[Metric]:
        return [self.family]


def _text(family: Metric) -> bytes:
    """Return the Prometheus text of a family.

    The library names counters after OpenMetrics, ending in `_total`; Triton's dashboards ask for
    them as they are, so the header lines are brought in line with the samples.
    """
    text = generate_latest(_Collected(family))
    return _COUNTER_HEADER.sub(rb"# HELP \1 \2\n# TYPE \1 counter", text)


def render(registry: CollectorRegistry) -> bytes:
    """Return the Prometheus text of a registry."""
    return b"".join(_pieces(registry))


async def render_in_turns(registry: CollectorRegistry) -> bytes:
    """Return the Prometheus text of a registry, and let other tasks run now and then.

    So a scrape of many models delays a request by about a millisecond.
    """
    pieces: list[bytes] = []
    for piece in _pieces(registry):
        pieces.append(piece)
        await trio.lowlevel.checkpoint()
    return b"".join(pieces)


def _pieces(registry: CollectorRegistry) -> Iterator[bytes]:
    """Yield the Prometheus text of a registry, `SAMPLES_A_TURN` lines or less at a time.

    A family may be collected in several parts, one after the other.
    """
    name = ""
    for family in registry.collect():
        for start in range(0, len(family.samples) or 1, SAMPLES_A_TURN):
            part = Metric(family.name, family.documentation, family.type)
            part.samples = family.samples[start : start + SAMPLES_A_TURN]
            text = _text(part)
            yield text if part.name != name else text.split(b"\n", _HEADER_LINES)[_HEADER_LINES]
            name = part.name
