"""What is counted for a model that generates text, beside what every model counts.

The hot path adds integers and puts values into buckets; the statistics extension and the metrics
collector read the same numbers. A text is one of the `n` texts of a request, and what is said of
texts is said of each of them. Methods name the unit of what they take: seconds on the server's
clock, nanoseconds of a step as the executor measures them.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, final

from .sampling_params import FinishReason
from .statistics import Duration, Histogram

LLM_BACKEND: Final = "llm"
"""The `backend` of the models that generate text."""

REQUEST_BUCKETS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0),
)
"""From the first token of a tiny model on an idle server to a long text behind a long queue. Each
is 2 to 2.5 times the one before, so a quantile read from them is off by no more than that."""

TOKEN_BUCKETS_S: Final = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03),
    *(0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0),
)
"""Finer, since a reader sees the difference between 30 and 50 ms a token; beyond 2 s it stands
still, however long."""


class CancelReason(Enum):
    """Why a request ended before its texts; the values are labels of a metric."""

    CLIENT = "client"
    """Its client left, or gave the call up."""
    DEADLINE = "deadline"
    """The deadline that its client set for the call passed."""
    QUEUE_TIMEOUT = "queue_timeout"
    """It waited longer for its admission than its queue policy or itself allows."""
    SLOW_READER = "slow_reader"
    """Its client took no response for too long, while others could have had its row."""
    SHUTDOWN = "shutdown"
    """The model or the server stopped."""


@final
class EngineGauges:
    """How one engine stands; set by it after each step, added up over those of a model.

    Attributes:
      running: Texts that go on with each step.
      waiting: Texts that wait for one, those included that gave theirs back for others. Requests
        that no engine has taken yet are pending ones of the model, and none of these.
      paused: Texts that do not go on meanwhile, because their readers are slow.
      kv_used_bytes: State of texts that are generated.
      kv_cached_bytes: State that is only kept for prompts that begin in the same way.
      kv_budget_bytes: Most bytes of state; 0 for a model that keeps none with the server.
      kv_capacity_tokens: Most tokens that state can be kept of, all texts together.
    """

    __slots__ = (
        "kv_budget_bytes",
        "kv_cached_bytes",
        "kv_capacity_tokens",
        "kv_used_bytes",
        "paused",
        "running",
        "waiting",
    )

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.paused = 0
        self.kv_used_bytes = 0
        self.kv_cached_bytes = 0
        self.kv_budget_bytes = 0
        self.kv_capacity_tokens = 0

    def add(self, other: EngineGauges) -> None:
        """Add what another engine has."""
        self.running += other.running
        self.waiting += other.waiting
        self.paused += other.paused
        self.kv_used_bytes += other.kv_used_bytes
        self.kv_cached_bytes += other.kv_cached_bytes
        self.kv_budget_bytes += other.kv_budget_bytes
        self.kv_capacity_tokens += other.kv_capacity_tokens


@final
class LlmStatistics:
    """The counters of one version of a model that generates text.

    Attributes:
      first_token: Seconds from the arrival of a request to the first token of each text.
      inter_token: Seconds from each token of a text to its next one.
      queue: Seconds from the arrival of a request to the admission of each text to a row.
      request: Seconds from the arrival of a request to the end of each text that was finished.
      step: Seconds of each step.
      release: Seconds from when it was known that nobody waits for a request to the first step
        without it.
      prompt_tokens: Tokens of prompts that were admitted.
      cached_tokens: Those of them whose state was there already.
      output_tokens: Tokens that were generated, those included that end a text.
      preemptions: Texts that gave their row back for others, and begin again.
      finished: Why texts were complete -> how many.
      failed: Texts that ended with an error.
      cancelled: Why requests were cancelled -> how many.
      prefill: Steps that read parts of prompts, and how long that took.
      decode: Steps in which texts went on, and how long that took.
      sample: Steps that chose tokens, and how long that took.
      engines: Index of an instance -> how it stands.
    """

    __slots__ = (
        "cached_tokens",
        "cancelled",
        "decode",
        "engines",
        "failed",
        "finished",
        "first_token",
        "inter_token",
        "output_tokens",
        "preemptions",
        "prefill",
        "prompt_tokens",
        "queue",
        "release",
        "request",
        "sample",
        "step",
    )

    def __init__(self) -> None:
        self.first_token = Histogram(REQUEST_BUCKETS_S)
        self.inter_token = Histogram(TOKEN_BUCKETS_S)
        self.queue = Histogram(REQUEST_BUCKETS_S)
        self.request = Histogram(REQUEST_BUCKETS_S)
        self.step = Histogram(TOKEN_BUCKETS_S)
        self.release = Histogram(TOKEN_BUCKETS_S)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.preemptions = 0
        self.finished = dict.fromkeys(FinishReason, 0)
        self.failed = 0
        self.cancelled = dict.fromkeys(CancelReason, 0)
        self.prefill = Duration()
        self.decode = Duration()
        self.sample = Duration()
        self.engines: dict[int, EngineGauges] = {}

    def engine(self, index: int) -> EngineGauges:
        """Return the gauges of one instance, at 0 if it is new."""
        return self.engines.setdefault(index, EngineGauges())

    def remove_engine(self, index: int) -> None:
        """Forget an instance that has ended."""
        self.engines.pop(index, None)

    def record_admission(self, *, queue_s: float, prompt_tokens: int, cached_tokens: int) -> None:
        """Count that a text got its first row, `queue_s` after its request arrived."""
        self.queue.observe(queue_s)
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens

    def record_first_token(self, since_arrival_s: float) -> None:
        """Count the first token of a text."""
        self.output_tokens += 1
        self.first_token.observe(since_arrival_s)

    def record_next_token(self, since_last_s: float) -> None:
        """Count a token of a text that has some."""
        self.output_tokens += 1
        self.inter_token.observe(since_last_s)

    def record_finish(self, reason: FinishReason, since_arrival_s: float) -> None:
        """Count a text that is complete."""
        self.finished[reason] += 1
        self.request.observe(since_arrival_s)

    def record_fault(self) -> None:
        """Count a text that ended with an error."""
        self.failed += 1

    def record_cancellation(self, reason: CancelReason) -> None:
        """Count a request that ended before its texts."""
        self.cancelled[reason] += 1

    def record_release(self, since_cancellation_s: float) -> None:
        """Count that a step is planned for others with what a cancelled request had."""
        self.release.observe(since_cancellation_s)

    def record_preemption(self) -> None:
        """Count a text that gave its row back for others."""
        self.preemptions += 1

    def record_step(self, took_ns: int, *, prefill_ns: int, decode_ns: int, sample_ns: int) -> None:
        """Count one step; a part of it that took no time was none of it."""
        self.step.observe(took_ns / 1e9)
        for duration, ns in (
            (self.prefill, prefill_ns),
            (self.decode, decode_ns),
            (self.sample, sample_ns),
        ):
            if ns:
                duration.count += 1
                duration.ns += ns

    def totals(self) -> EngineGauges:
        """Return how all instances stand together."""
        totals = EngineGauges()
        for engine in self.engines.values():
            totals.add(engine)
        return totals
