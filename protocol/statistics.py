"""What is counted for one model version, as plain integers.

The hot path only adds; the statistics extension and the metrics collector read the same numbers,
so they cannot disagree. All durations are nanoseconds. Whoever ends a request records it here
before the response is sent, so that a client which has its answer finds it counted.
Source: the KServe v2 statistics extension; Triton's `nv_inference_*` metric families.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, final

from .errors import FailureReason
from .latency_window import LatencyWindow

if TYPE_CHECKING:
    from .llm_statistics import LlmStatistics

RESPONSE_KEYS_MAX: Final = 1024
"""Responses of a request that are counted apart, by their index; all later ones count with the last
of these. Each costs a line of every statistics answer, and a model may give any number."""


@final
class Duration:
    """How often something happened and how long it took in all, in nanoseconds."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def __repr__(self) -> str:
        return f"<Duration {self.count}x {self.ns} ns>"


@final
class BatchSizeStatistics:
    """What the executions of one batch size took."""

    __slots__ = ("compute_infer", "compute_input", "compute_output")

    def __init__(self) -> None:
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()


@final
class ResponseStatistics:
    """What the responses of one index, of all requests to a decoupled model, took.

    Attributes:
      compute_infer: Since the response before it, or since the execution began.
      compute_output: For sending it; no time of its own, since a model sends and goes on.
      success: Responses with outputs.
      fail: Responses with an error.
      empty_response: Ends without a response.
      cancel: Requests that were cancelled before this response, and what was spent on it by then.
    """

    __slots__ = (
        "cancel",
        "compute_infer",
        "compute_output",
        "empty_response",
        "fail",
        "success",
    )

    def __init__(self) -> None:
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.success = Duration()
        self.fail = Duration()
        self.empty_response = Duration()
        self.cancel = Duration()


@final
class Histogram:
    """How often values fell between bounds.

    Attributes:
      bounds: Upper bounds, ascending; the last one, which is infinite, is left out.
      counts: Values in each bucket alone, one more than `bounds`.
      sum: Of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value; one that equals a bound is below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@final
class ModelStatistics:
    """The counters of one model version.

    Attributes:
      inference_count: Rows answered with success.
      execution_count: Batches executed, those that failed included.
      last_inference_ms: Wall-clock milliseconds since the epoch of the last request, 0 if none.
      pending_count: Requests accepted and neither executing nor ended.
      failures: Reason -> failed requests; the sum is `fail.count`.
      batches: Executed batch size in rows -> what its executions took.
      cache_hit: Requests answered from the response cache, and their look-ups.
      cache_miss: Requests that looked for an answer there in vain, with their look-ups and the
        insertions of their own answers. A request's duration covers its look-up already.
      cached: Whether the version uses a response cache; set by who does.
      responses: Index of a response -> what such responses took; of decoupled models only.
      first_response: Milliseconds from the arrival of a request to its first response; None unless
        that is measured.
      latencies: The durations of recent requests; None unless they are remembered.
      llm: What is counted beside that for a model that generates text; None for any other.
    """

    __slots__ = (
        "batches",
        "cache_hit",
        "cache_miss",
        "cached",
        "compute_infer",
        "compute_input",
        "compute_output",
        "execution_count",
        "fail",
        "failures",
        "first_response",
        "inference_count",
        "last_inference_ms",
        "latencies",
        "llm",
        "pending_count",
        "queue",
        "responses",
        "success",
    )

    def __init__(self) -> None:
        self.inference_count = 0
        self.execution_count = 0
        self.last_inference_ms = 0
        self.pending_count = 0
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.failures: dict[FailureReason, int] = dict.fromkeys(FailureReason, 0)
        self.batches: dict[int, BatchSizeStatistics] = {}
        self.cache_hit = Duration()
        self.cache_miss = Duration()
        self.cached = False
        self.responses: dict[int, ResponseStatistics] = {}
        self.first_response: Histogram | None = None
        self.latencies: LatencyWindow | None = None
        self.llm: LlmStatistics | None = None

    def record_success(
        self,
        *,
        batch_size: int,
        request_ns: int,
        queue_ns: int,
        compute_input_ns: int,
        compute_infer_ns: int,
        compute_output_ns: int,
    ) -> None:
        """Count one request that was answered with success; durations of its batch and its own."""
        self.inference_count += batch_size or 1
        for duration, ns in (
            (self.success, request_ns),
            (self.queue, queue_ns),
            (self.compute_input, compute_input_ns),
            (self.compute_infer, compute_infer_ns),
            (self.compute_output, compute_output_ns),
        ):
            duration.count += 1
            duration.ns += ns

    def record_cache_hit(self, *, request_ns: int, queue_ns: int, lookup_ns: int) -> None:
        """Count one request answered from the cache: a success that is no inference."""
        for duration, ns in (
            (self.success, request_ns),
            (self.queue, queue_ns),
            (self.cache_hit, lookup_ns),
        ):
            duration.count += 1
            duration.ns += ns

    def record_cache_miss(self, lookup_ns: int) -> None:
        """Count one request that the cache has no answer for; it ends in another way."""
        self.cache_miss.count += 1
        self.cache_miss.ns += lookup_ns

    def record_failure(self, reason: FailureReason, request_ns: int) -> None:
        """Count one request that ended without success, `request_ns` after it arrived."""
        self.failures[reason] += 1
        self.fail.count += 1
        self.fail.ns += request_ns

    def record_execution(
        self,
        *,
        batch_size: int,
        compute_input_ns: int,
        compute_infer_ns: int,
        compute_output_ns: int,
    ) -> None:
        """Count one executed batch of `batch_size` rows in all."""
        self.execution_count += 1
        batch = self.batches.get(batch_size)
        if batch is None:
            batch = self.batches[batch_size] = BatchSizeStatistics()
        for duration, ns in (
            (batch.compute_input, compute_input_ns),
            (batch.compute_infer, compute_infer_ns),
            (batch.compute_output, compute_output_ns),
        ):
            duration.count += 1
            duration.ns += ns

    def record_response(self, index: int, took_ns: int, *, failed: bool) -> None:
        """Count one response of a decoupled model, the `index`-th of its request from 0."""
        response = self.responses.get(index) or self._response(index)
        infer, ended = response.compute_infer, response.fail if failed else response.success
        infer.count += 1
        infer.ns += took_ns
        response.compute_output.count += 1
        ended.count += 1
        ended.ns += took_ns

    def record_empty_response(self, index: int, took_ns: int) -> None:
        """Count the end of a request of a decoupled model that came without a response."""
        response = self._response(index)
        _add(response.compute_infer, took_ns)
        _add(response.empty_response, took_ns)

    def record_cancelled_response(self, index: int, took_ns: int) -> None:
        """Count that a request to a decoupled model was cancelled before this response."""
        _add(self._response(index).cancel, took_ns)

    def _response(self, index: int) -> ResponseStatistics:
        index = min(index, RESPONSE_KEYS_MAX - 1)
        response = self.responses.get(index)
        if response is None:
            response = self.responses[index] = ResponseStatistics()
        return response


def _add(duration: Duration, ns: int) -> None:
    duration.count += 1
    duration.ns += ns
