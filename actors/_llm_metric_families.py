"""The families of models that generate text: their names, and where their values are read.

Triton has none of its own for them, so these follow Prometheus' conventions: base units, and
`_total` for counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from prometheus_client import Metric

from ..protocol.llm_statistics import EngineGauges, LlmStatistics
from ..protocol.statistics import Histogram
from ._metric_families import Families, Labels, add_histogram, plain_family

LlmModels: TypeAlias = list[tuple[Labels, LlmStatistics]]
"""(labels of a model, what is counted for it)."""

HISTOGRAMS: Final[tuple[tuple[str, str, Callable[[LlmStatistics], Histogram]], ...]] = (
    (
        "tritrio_llm_time_to_first_token_seconds",
        "Seconds from the arrival of a request to the first token of a sequence",
        lambda counted: counted.first_token,
    ),
    (
        "tritrio_llm_inter_token_latency_seconds",
        "Seconds from a token of a sequence to its next one",
        lambda counted: counted.inter_token,
    ),
    (
        "tritrio_llm_queue_time_seconds",
        "Seconds from the arrival of a request to the admission of a sequence",
        lambda counted: counted.queue,
    ),
    (
        "tritrio_llm_request_duration_seconds",
        "Seconds from the arrival of a request to the end of a sequence that was finished",
        lambda counted: counted.request,
    ),
    (
        "tritrio_llm_step_duration_seconds",
        "Seconds of a step of the engine",
        lambda counted: counted.step,
    ),
    (
        "tritrio_llm_cancellation_release_seconds",
        "Seconds from the cancellation of a request to the first step without it",
        lambda counted: counted.release,
    ),
)

COUNTERS: Final[Families[LlmStatistics]] = (
    (
        "tritrio_llm_prompt_tokens_total",
        "Tokens of prompts of admitted sequences",
        lambda counted: counted.prompt_tokens,
    ),
    (
        "tritrio_llm_cached_prompt_tokens_total",
        "Tokens of prompts that were not computed, since another sequence began in the same way",
        lambda counted: counted.cached_tokens,
    ),
    (
        "tritrio_llm_generated_tokens_total",
        "Tokens generated",
        lambda counted: counted.output_tokens,
    ),
    (
        "tritrio_llm_preemptions_total",
        "Sequences that gave their place back for others",
        lambda counted: counted.preemptions,
    ),
)

LABELLED_COUNTERS: Final[
    tuple[tuple[str, str, str, Callable[[LlmStatistics], Mapping[str, float]]], ...]
] = (
    (
        "tritrio_llm_finished_sequences_total",
        "Sequences that ended by themselves, by what ended them",
        "finish_reason",
        lambda counted: {
            **{reason.value: count for reason, count in counted.finished.items()},
            "error": counted.failed,
        },
    ),
    (
        "tritrio_llm_cancelled_requests_total",
        "Requests that were cancelled, by what cancelled them",
        "reason",
        lambda counted: {reason.value: count for reason, count in counted.cancelled.items()},
    ),
    (
        "tritrio_llm_step_time_seconds_total",
        "Seconds spent in steps, by what was done",
        "part",
        lambda counted: {
            "prefill": counted.prefill.ns / 1e9,
            "decode": counted.decode.ns / 1e9,
            "sample": counted.sample.ns / 1e9,
        },
    ),
)
"""(name, documentation, label, what reads label value -> number)."""

KV_GAUGES: Final[Families[EngineGauges]] = (
    (
        "tritrio_llm_kv_cache_used_bytes",
        "Bytes of the state of sequences that are generated",
        lambda engines: engines.kv_used_bytes,
    ),
    (
        "tritrio_llm_kv_cache_cached_bytes",
        "Bytes of state that is kept for prompts that begin in the same way",
        lambda engines: engines.kv_cached_bytes,
    ),
    (
        "tritrio_llm_kv_cache_budget_bytes",
        "Most bytes of state",
        lambda engines: engines.kv_budget_bytes,
    ),
)


def llm_families(models: LlmModels) -> Iterator[Metric]:
    """Yield every family of models that generate text, if there are any such models."""
    if not models:
        return
    for name, documentation, histogram in HISTOGRAMS:
        metric = Metric(name, documentation, "histogram")
        for labels, counted in models:
            add_histogram(metric, labels, histogram(counted))
        yield metric
    for name, documentation, count in COUNTERS:
        samples = ((labels, count(counted)) for labels, counted in models)
        yield plain_family(name, documentation, "counter", samples)
    for name, documentation, label, counts in LABELLED_COUNTERS:
        samples = (
            ({**labels, label: value}, number)
            for labels, counted in models
            for value, number in counts(counted).items()
        )
        yield plain_family(name, documentation, "counter", samples)
    standing = [(labels, counted.totals()) for labels, counted in models]
    yield plain_family(
        "tritrio_llm_sequences",
        "Sequences that the engine has, by what they do",
        "gauge",
        (
            ({**labels, "state": state}, number)
            for labels, totals in standing
            for state, number in (
                ("running", totals.running),
                ("waiting", totals.waiting),
                ("paused", totals.paused),
            )
        ),
    )
    for name, documentation, gauge in KV_GAUGES:
        values = ((labels, gauge(totals)) for labels, totals in standing)
        yield plain_family(name, documentation, "gauge", values)
