"""How a request ends: it is counted first and answered then.

A client that has its answer finds it in the statistics, and no request is counted twice, because
everything that ends a request of a model version calls the one `Completion` of that version.
"""

from __future__ import annotations

import time
from typing import TypeAlias, final

from ..protocol.errors import ErrorCode, FailureReason, RequestError
from ..protocol.llm_statistics import CancelReason
from ..protocol.requests import InferResponse
from ..protocol.statistics import ModelStatistics
from ..protocol.tensors import Tensor
from ._completion_order import CompletionOrder
from .messages import Infer

States: TypeAlias = dict[str, Tensor]
"""State output name -> its new value."""


def nanoseconds(duration_s: float) -> int:
    """Return a duration in whole nanoseconds."""
    return int(duration_s * 1e9)


@final
class Completion:
    """Ends the requests of one model version.

    Args:
      name: Model name, for error responses.
      version: Version as decimal text, for error responses.
      statistics: Where ends are counted.
      order: Set if responses are released in dispatch order.
    """

    __slots__ = ("_name", "_order", "_version", "statistics")

    def __init__(
        self,
        name: str,
        version: str,
        statistics: ModelStatistics,
        order: CompletionOrder | None = None,
    ) -> None:
        self._name = name
        self._version = version
        self._order = order
        self.statistics = statistics

    @property
    def ordered(self) -> bool:
        """Whether responses wait until the requests dispatched earlier have ended."""
        return self._order is not None

    def is_first(self, infer: Infer) -> bool:
        """Whether no request dispatched earlier holds its responses back; from any thread."""
        return self._order is None or self._order.is_first(infer)

    def dispatched(self, infers: list[Infer]) -> None:
        """Count that requests left the queue for an instance, in this order."""
        self.statistics.pending_count -= len(infers)
        if self._order is not None:
            for infer in infers:
                if not infer.retried:
                    self._order.begin(infer)

    def requeued(self, infers: list[Infer]) -> None:
        """Count that dispatched requests wait in the queue again; their order is as it was."""
        self.statistics.pending_count += len(infers)

    def refuse(self, infer: Infer, error: RequestError, now_s: float) -> None:
        """End a request that is not (or no longer) counted as pending, before its dispatch."""
        self._count_failure(infer, error, now_s)
        response = self._error_response(infer, error)
        _tell(infer, response)
        if infer.retried:  # its place in the order is taken
            self.send(infer, response)
        else:
            infer.reply.send(response)

    def refuse_pending(self, infer: Infer, error: RequestError, now_s: float) -> None:
        """End a request that waits in a queue."""
        if error is STOPPING:
            self._count_cancellation(CancelReason.SHUTDOWN)
        self.statistics.pending_count -= 1
        self.refuse(infer, error, now_s)

    def expire_pending(self, infer: Infer, error: RequestError, now_s: float) -> None:
        """End a request that has waited too long in a queue."""
        self._count_cancellation(CancelReason.QUEUE_TIMEOUT)
        self.refuse_pending(infer, error, now_s)

    def drop_pending(self, infer: Infer, now_s: float) -> None:
        """End a request in a queue that nobody waits for any more."""
        expired = now_s >= infer.reply.expires_s
        self._count_cancellation(CancelReason.DEADLINE if expired else CancelReason.CLIENT)
        self.refuse_pending(infer, _CANCELLED, now_s)

    def drop(self, infer: Infer, now_s: float, states: States | None = None) -> None:
        """End a dispatched request that nobody waits for any more.

        Args:
          infer: The request.
          now_s: The time.
          states: What its execution made of the states of its sequence; None if it never began.
        """
        assert infer.request.cancelled
        self.fail(infer, _CANCELLED, now_s, states)

    def fail(
        self, infer: Infer, error: RequestError, now_s: float, states: States | None = None
    ) -> None:
        """End a dispatched request with an error; one that nobody waits for is cancelled."""
        if infer.request.cancelled:
            error = _CANCELLED
        self._count_failure(infer, error, now_s)
        response = self._error_response(infer, error)
        response.states = states
        _tell(infer, response)
        self.send(infer, response)

    def succeed(
        self,
        infer: Infer,
        response: InferResponse,
        dispatched_s: float,
        compute_ns: tuple[int, int, int],
        now_s: float,
    ) -> None:
        """End a dispatched request with its answer.

        Args:
          infer: The request.
          response: Its final response.
          dispatched_s: When it left the queue.
          compute_ns: Time its batch took for input, inference and output.
          now_s: The time.
        """
        response.compute_ns = compute_ns
        statistics = self.statistics
        statistics.last_inference_ms = time.time_ns() // 1_000_000
        request_ns = nanoseconds(now_s - infer.arrived_s)
        queue_ns = nanoseconds(dispatched_s - infer.queued_s)
        input_ns, infer_ns, output_ns = compute_ns
        statistics.record_success(
            batch_size=infer.request.batch_size,
            request_ns=request_ns,
            queue_ns=queue_ns,
            compute_input_ns=input_ns,
            compute_infer_ns=infer_ns,
            compute_output_ns=output_ns,
        )
        if statistics.latencies is not None:
            statistics.latencies.add(
                now_s,
                request_ns=request_ns,
                queue_ns=queue_ns,
                compute_input_ns=input_ns,
                compute_infer_ns=infer_ns,
                compute_output_ns=output_ns,
            )
        _tell(infer, response)
        self.send(infer, response)

    def count_response(
        self, infer: Infer, response: InferResponse, dispatched_s: float, now_s: float
    ) -> None:
        """Count a response of a decoupled model, which is sent afterwards.

        Args:
          infer: Its request.
          response: The response, or the bare end.
          dispatched_s: When the request left the queue.
          now_s: The time.
        """
        statistics = self.statistics
        index = infer.response_count
        took_ns = nanoseconds(now_s - max(dispatched_s, infer.responded_s))
        if response.empty:
            statistics.record_empty_response(index, took_ns)
        else:
            statistics.record_response(index, took_ns, failed=response.error is not None)
            if index == 0 and statistics.first_response is not None:
                statistics.first_response.observe((now_s - infer.arrived_s) * 1e3)
        infer.response_count += 1
        infer.responded_s = now_s

    def count_unanswered(self, infer: Infer, dispatched_s: float, now_s: float) -> None:
        """Count that a request to a decoupled model is cancelled; see `count_response`."""
        took_ns = nanoseconds(now_s - max(dispatched_s, infer.responded_s))
        self.statistics.record_cancelled_response(infer.response_count, took_ns)

    def send(self, infer: Infer, response: InferResponse) -> None:
        """Hand a response of a dispatched request to whoever waits for it."""
        if self._order is None:
            infer.reply.send(response)
        else:
            for earlier, released in self._order.respond(infer, response):
                earlier.reply.send(released)
            first = self._order.first
            if first is not None and first.on_turn is not None:
                on_turn, first.on_turn = first.on_turn, None
                on_turn()

    def _count_cancellation(self, reason: CancelReason) -> None:
        if self.statistics.llm is not None:
            self.statistics.llm.record_cancellation(reason)

    def _count_failure(self, infer: Infer, error: RequestError, now_s: float) -> None:
        self.statistics.last_inference_ms = time.time_ns() // 1_000_000
        self.statistics.record_failure(error.reason, nanoseconds(now_s - infer.arrived_s))

    def _error_response(self, infer: Infer, error: RequestError) -> InferResponse:
        return InferResponse(self._name, self._version, infer.request.id, error=error)


def _tell(infer: Infer, response: InferResponse) -> None:
    """Let the scheduler know of the end of a request, before anybody else does."""
    on_end, infer.on_end = infer.on_end, None
    if on_end is not None:
        on_end(response)


def timed_out(infer: Infer, now_s: float) -> RequestError:
    """Return what ends a request that has waited too long for its execution."""
    waited_ms = (now_s - infer.queued_s) * 1e3
    return RequestError(
        ErrorCode.UNAVAILABLE,
        f"the request timed out in the queue after {waited_ms:.1f} ms",
        reason=FailureReason.REJECTED,
    )


CUT_OFF = RequestError(
    ErrorCode.UNAVAILABLE, "the model was stopped before it answered the request"
)
"""Ends what was dispatched when the time for a graceful stop is over."""

STOPPING = RequestError(
    ErrorCode.UNAVAILABLE,
    "the scheduler of the model takes no more requests, because the model stops",
    reason=FailureReason.REJECTED,
)
"""Refuses what comes, or still waits, when a scheduler stops."""

_CANCELLED = RequestError(
    ErrorCode.CANCELLED,
    "the request was cancelled before it was answered",
    reason=FailureReason.CANCELED,
)
