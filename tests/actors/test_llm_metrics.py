"""What metrics and statistics say of models that generate text."""

from __future__ import annotations

import json
import re

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.support.llm_counting import counted_llm, counted_model
from tritrio.actors.metrics_collector import ModelCollector, render
from tritrio.protocol import grpc_codec, management_codec
from tritrio.protocol.llm_statistics import LlmStatistics
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.statistics import ModelStatistics


def scraped(llm: LlmStatistics | None) -> str:
    registry = CollectorRegistry()
    models = [counted_model(None), counted_model(llm)]
    models[0].name = "other"
    registry.register(ModelCollector(lambda: models))
    return render(registry).decode()


def llm_samples(text: str) -> dict[str, float]:
    """Name and labels other than model and version -> value; buckets are left out."""
    found = {}
    for line in text.splitlines():
        if line.startswith("tritrio_llm_") and "_bucket" not in line:
            match = re.fullmatch(r'(\w+)\{(.*,)?model="story",(.*,)?version="3"\} (\S+)', line)
            assert match is not None, line
            labels = ((match[2] or "") + (match[3] or "")).removesuffix(",")
            found[f"{match[1].removeprefix('tritrio_llm_')},{labels}".strip(",")] = float(match[4])
    return found


def test_every_figure_has_its_series() -> None:
    assert llm_samples(scraped(counted_llm())) == {
        "time_to_first_token_seconds_sum": 0.5,
        "time_to_first_token_seconds_count": 1,
        "inter_token_latency_seconds_sum": 0.1875,
        "inter_token_latency_seconds_count": 2,
        "queue_time_seconds_sum": 0.25,
        "queue_time_seconds_count": 1,
        "request_duration_seconds_sum": 0.75,
        "request_duration_seconds_count": 1,
        "step_duration_seconds_sum": 0.004,
        "step_duration_seconds_count": 1,
        "cancellation_release_seconds_sum": 0.03125,
        "cancellation_release_seconds_count": 1,
        "prompt_tokens_total": 30,
        "cached_prompt_tokens_total": 16,
        "generated_tokens_total": 3,
        "preemptions_total": 1,
        'finished_sequences_total,finish_reason="stop"': 0,
        'finished_sequences_total,finish_reason="length"': 1,
        'finished_sequences_total,finish_reason="error"': 1,
        'cancelled_requests_total,reason="client"': 2,
        'cancelled_requests_total,reason="deadline"': 0,
        'cancelled_requests_total,reason="queue_timeout"': 0,
        'cancelled_requests_total,reason="slow_reader"': 0,
        'cancelled_requests_total,reason="shutdown"': 0,
        'step_time_seconds_total,part="prefill"': 0.003,
        'step_time_seconds_total,part="decode"': 0,
        'step_time_seconds_total,part="sample"': 0.0005,
        'sequences,state="running"': 7,
        'sequences,state="waiting"': 4,
        'sequences,state="paused"': 2,
        "kv_cache_used_bytes": 200,
        "kv_cache_cached_bytes": 100,
        "kv_cache_budget_bytes": 800,
    }


def test_prometheus_reads_the_families_by_their_types() -> None:
    text = scraped(counted_llm())
    types = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert types["tritrio_llm_time_to_first_token_seconds"] == "histogram"
    assert types["tritrio_llm_generated_tokens"] == "counter"  # without what all counters end in
    assert types["tritrio_llm_sequences"] == "gauge"
    assert "# TYPE tritrio_llm_generated_tokens_total counter\n" in text
    labels = '{le="0.1",model="story",version="3"}'
    assert f"tritrio_llm_inter_token_latency_seconds_bucket{labels} 1.0\n" in text


def test_without_such_a_model_there_are_no_such_families() -> None:
    assert "tritrio_llm" not in scraped(None)


def test_the_statistics_have_a_member_of_the_same_figures() -> None:
    (shown,) = json.loads(management_codec.statistics([counted_model(counted_llm())]))[
        "model_stats"
    ]
    assert shown["llm_stats"] == {
        "first_token": {"count": 1, "ns": 500_000_000},
        "inter_token": {"count": 2, "ns": 187_500_000},
        "queue": {"count": 1, "ns": 250_000_000},
        "request": {"count": 1, "ns": 750_000_000},
        "step": {"count": 1, "ns": 4_000_000},
        "release": {"count": 1, "ns": 31_250_000},
        "prefill": {"count": 1, "ns": 3_000_000},
        "decode": {"count": 0, "ns": 0},
        "sample": {"count": 1, "ns": 500_000},
        "prompt_tokens": 30,
        "cached_prompt_tokens": 16,
        "generated_tokens": 3,
        "preemptions": 1,
        "finished_sequences": {"stop": 0, "length": 1, "error": 1},
        "cancelled_requests": {
            "client": 2,
            "deadline": 0,
            "queue_timeout": 0,
            "slow_reader": 0,
            "shutdown": 0,
        },
        "sequences": {"running": 7, "waiting": 4, "paused": 2},
        "kv_cache_bytes": {"used": 200, "cached": 100, "budget": 800},
    }


def test_other_models_have_no_such_member_and_grpc_has_it_for_none() -> None:
    (shown,) = json.loads(management_codec.statistics([counted_model(None)]))["model_stats"]
    assert "llm_stats" not in shown
    message = bytes(grpc_codec.statistics_message([counted_model(counted_llm())]))
    assert message == bytes(grpc_codec.statistics_message([counted_model(None)]))
    assert pb.ModelStatisticsResponse.parse(message).model_stats[0].name == "story"
    assert ModelStatistics().llm is None
