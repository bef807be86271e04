"""A model that generates text, as its statistics know it."""

from __future__ import annotations

from types import SimpleNamespace

from tritrio.protocol.llm_statistics import CancelReason, LlmStatistics
from tritrio.protocol.sampling_params import FinishReason
from tritrio.protocol.statistics import ModelStatistics


def counted_llm() -> LlmStatistics:
    """Something of everything: two engines, one text that is complete."""
    counted = LlmStatistics()
    counted.record_admission(queue_s=0.25, prompt_tokens=30, cached_tokens=16)
    counted.record_first_token(0.5)
    counted.record_next_token(0.0625)
    counted.record_next_token(0.125)
    counted.record_finish(FinishReason.LENGTH, 0.75)
    counted.record_fault()
    counted.record_cancellation(CancelReason.CLIENT)
    counted.record_cancellation(CancelReason.CLIENT)
    counted.record_release(0.03125)
    counted.record_preemption()
    counted.record_step(4_000_000, prefill_ns=3_000_000, decode_ns=0, sample_ns=500_000)
    for index in range(2):
        engine = counted.engine(index)
        engine.running, engine.waiting, engine.paused = 3 + index, 2, 1
        engine.kv_used_bytes, engine.kv_cached_bytes = 100, 50
        engine.kv_budget_bytes, engine.kv_capacity_tokens = 400, 40
    return counted


def counted_model(llm: LlmStatistics | None) -> SimpleNamespace:
    """A model version with these counters beside its own, for codecs and collectors."""
    statistics = ModelStatistics()
    statistics.llm = llm
    return SimpleNamespace(
        name="story",
        version="3",
        statistics=statistics,
        metric_tags={},
        namespace="",
        load_duration_s=0.0,
    )
