"""What is counted for models that generate text."""

from tritrio.protocol.llm_statistics import CancelReason, LlmStatistics
from tritrio.protocol.sampling_params import FinishReason
from tritrio.protocol.statistics import Histogram


def observed(histogram: Histogram) -> tuple[int, float]:
    return sum(histogram.counts), histogram.sum


def test_a_text_is_counted_from_its_admission_to_its_end() -> None:
    counted = LlmStatistics()
    counted.record_admission(queue_s=0.25, prompt_tokens=30, cached_tokens=16)
    counted.record_first_token(0.5)
    counted.record_next_token(0.125)
    counted.record_next_token(0.0625)
    counted.record_finish(FinishReason.LENGTH, 0.75)

    assert observed(counted.queue) == (1, 0.25)
    assert observed(counted.first_token) == (1, 0.5)
    assert observed(counted.inter_token) == (2, 0.1875)
    assert observed(counted.request) == (1, 0.75)
    assert (counted.prompt_tokens, counted.cached_tokens, counted.output_tokens) == (30, 16, 3)
    assert counted.finished == {FinishReason.STOP: 0, FinishReason.LENGTH: 1}


def test_ends_without_a_complete_text_are_counted_by_their_kind_and_take_no_time() -> None:
    counted = LlmStatistics()
    counted.record_fault()
    for reason in (CancelReason.CLIENT, CancelReason.CLIENT, CancelReason.SHUTDOWN):
        counted.record_cancellation(reason)
    counted.record_preemption()

    assert counted.failed == 1
    assert counted.preemptions == 1
    assert counted.cancelled == {
        CancelReason.CLIENT: 2,
        CancelReason.DEADLINE: 0,
        CancelReason.QUEUE_TIMEOUT: 0,
        CancelReason.SLOW_READER: 0,
        CancelReason.SHUTDOWN: 1,
    }
    assert observed(counted.request) == (0, 0.0)


def test_a_step_counts_only_the_parts_that_it_had() -> None:
    counted = LlmStatistics()
    counted.record_step(4_000_000, prefill_ns=3_000_000, decode_ns=0, sample_ns=500_000)
    counted.record_step(2_000_000, prefill_ns=0, decode_ns=1_500_000, sample_ns=0)

    assert observed(counted.step) == (2, 0.006)
    parts = [(part.count, part.ns) for part in (counted.prefill, counted.decode, counted.sample)]
    assert parts == [(1, 3_000_000), (1, 1_500_000), (1, 500_000)]


def test_the_gauges_of_engines_add_up_until_one_ends() -> None:
    counted = LlmStatistics()
    for index in range(2):
        engine = counted.engine(index)
        engine.running, engine.waiting, engine.paused = 3 + index, 2, 1
        engine.kv_used_bytes, engine.kv_cached_bytes = 100, 50
        engine.kv_budget_bytes, engine.kv_capacity_tokens = 400, 40
    both = counted.totals()
    assert (both.running, both.waiting, both.paused) == (7, 4, 2)
    assert (both.kv_used_bytes, both.kv_cached_bytes) == (200, 100)
    assert (both.kv_budget_bytes, both.kv_capacity_tokens) == (800, 80)

    assert counted.engine(0) is counted.engine(0)
    counted.remove_engine(1)
    counted.remove_engine(1)  # it may end without having come up
    assert counted.totals().running == 3
