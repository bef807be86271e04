"""The backends "repeat" and "square": decoupled test models that answer once per element.

- `repeat`: inputs IN INT32 [n], DELAY UINT32 [n] and WAIT UINT32 [1]. Element i of IN comes back
  as OUT, with i as IDX, DELAY[i] ms after the one before it. The instance is busy for WAIT ms only.
- `square`: IN INT32 [1] with the value n comes back n times as OUT. `parameters` of the
  configuration: `CUSTOM_INFER_DELAY_NS` before each response, `CUSTOM_OUTPUT_DELAY_NS` before each
  that is sent; the last `CUSTOM_EMPTY_COUNT` responses are left out, and the
  `CUSTOM_FAIL_COUNT` before those are errors.

The end of a request is a message of its own. A model may batch, but a request has one row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any, Final, final

import numpy as np

from ..protocol.errors import ErrorCode
from ..protocol.pb.inference import ModelConfig
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.wording import shape_text
from .base import Batch, InstancePlace, ModelSource
from .device_context import HostContext
from .device_thread import DeviceThread
from .parameters import number_parameter
from .testing_models import (
    DELAY_MAX_S,
    Answers,
    FilelessBackend,
    Pauses,
    check_decoupled,
    check_single,
    check_tensors,
)

RESPONDING_MAX: Final = 64
"""Requests that one instance answers at the same time, each on a thread of its own; the next one
waits for one of them to end."""

RESPONSES_MAX: Final = 2**31
"""Most that the counts of a configuration may say: as many as an INT32 can ask for."""


@final
class _Responders:
    """Threads that answer one request each, while their instance goes on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._room = threading.BoundedSemaphore(RESPONDING_MAX)

    def start(self, respond: Callable[[Batch, int], None], batch: Batch, index: int) -> None:
        """Let `respond(batch, index)` run; waits while too many others do."""
        self._room.acquire()
        thread = DeviceThread(self._name, HostContext(), _call)
        thread.submit(self._ended, respond, batch, index)
        thread.start()
        thread.stop()

    def _ended(self, *_: object) -> None:
        # It raises only where the event loop is gone, and with it everybody who waits.
        self._room.release()


def _call(callback: Callable[..., object], /, *args: Any) -> None:
    callback(*args)


@final
class RepeatInstance:
    """One repeat model."""

    def __init__(self, source: ModelSource, config: ModelConfig, place: InstancePlace) -> None:
        self._source = source
        self._config = config
        self._batches = config.max_batch_size > 0
        self._responders = _Responders(place.name)
        self._pauses = Pauses()
        self._answers: Answers | None = None

    def load(self) -> None:
        """Check the configuration.

        Raises:
          RequestError: it has other tensors, or is not decoupled.
        """
        inputs = {"IN": "INT32", "DELAY": "UINT32", "WAIT": "UINT32"}
        check_tensors(self._config, "repeat", inputs, {"OUT": "INT32", "IDX": "UINT32"})
        check_single(self._config, "repeat", "WAIT")
        check_decoupled(self._config, "repeat")
        self._answers = Answers(self._source, self._config)

    def execute(self, batch: Batch) -> None:
        """Begin to answer; keep the instance busy as long as the longest WAIT says."""
        answers = self._answers
        assert answers is not None, "execute() before load()"
        batch.compute_start_ns = batch.infer_start_ns = perf_counter_ns()
        wait_ms = 0
        for index, request in enumerate(batch.requests):
            refusal = _refusal(answers, request, batches=self._batches) or _uneven(answers, request)
            if refusal is not None:
                batch.respond(index, refusal)
                continue
            wait_ms = max(wait_ms, int(request.inputs["WAIT"].array.item()))
            self._responders.start(partial(self._respond, answers), batch, index)
        self._pauses.wait(wait_ms / 1000, batch.requests)
        batch.infer_end_ns = batch.compute_end_ns = perf_counter_ns()

    def unload(self) -> None:
        """End the delays of requests that nobody waits for any more."""
        self._pauses.end()

    def _respond(self, answers: Answers, batch: Batch, index: int) -> None:
        request = batch.requests[index]
        values = request.inputs["IN"].array
        shape = (1,) * values.ndim
        delays_ms = request.inputs["DELAY"].array.ravel().tolist()
        for number, value in enumerate(values.ravel().tolist()):
            if not self._pauses.wait(delays_ms[number] / 1000, [request]):
                break
            arrays = {
                "OUT": np.full(shape, value, np.int32),
                "IDX": np.full(shape, number, np.uint32),
            }
            batch.respond(index, answers.answer(request, arrays, final=False))
        batch.respond(index, answers.end(request))


@final
class SquareInstance:
    """One square model."""

    def __init__(self, source: ModelSource, config: ModelConfig, place: InstancePlace) -> None:
        self._source = source
        self._config = config
        self._batches = config.max_batch_size > 0
        self._responders = _Responders(place.name)
        self._pauses = Pauses()
        self._answers: Answers | None = None
        self._infer_delay_s = 0.0
        self._output_delay_s = 0.0
        self._empty_count = 0
        self._fail_count = 0

    def load(self) -> None:
        """Check the configuration.

        Raises:
          RequestError: it has other tensors, is not decoupled, or a parameter is not allowed.
        """
        config = self._config
        check_tensors(config, "square", {"IN": "INT32"}, {"OUT": "INT32"})
        check_single(config, "square", "IN")
        check_decoupled(config, "square")
        delays_ns = range(DELAY_MAX_S * 10**9 + 1)
        self._infer_delay_s = number_parameter(config, "CUSTOM_INFER_DELAY_NS", delays_ns, 0) / 1e9
        self._output_delay_s = (
            number_parameter(config, "CUSTOM_OUTPUT_DELAY_NS", delays_ns, 0) / 1e9
        )
        counts = range(RESPONSES_MAX + 1)
        self._empty_count = number_parameter(config, "CUSTOM_EMPTY_COUNT", counts, 0)
        self._fail_count = number_parameter(config, "CUSTOM_FAIL_COUNT", counts, 0)
        self._answers = Answers(self._source, config)

    def execute(self, batch: Batch) -> None:
        """Begin to answer."""
        answers = self._answers
        assert answers is not None, "execute() before load()"
        batch.compute_start_ns = batch.infer_start_ns = perf_counter_ns()
        for index, request in enumerate(batch.requests):
            refusal = _refusal(answers, request, batches=self._batches)
            if refusal is not None:
                batch.respond(index, refusal)
            else:
                self._responders.start(partial(self._respond, answers), batch, index)
        batch.infer_end_ns = batch.compute_end_ns = perf_counter_ns()

    def unload(self) -> None:
        """End the delays of requests that nobody waits for any more."""
        self._pauses.end()

    def _respond(self, answers: Answers, batch: Batch, index: int) -> None:
        request = batch.requests[index]
        values = request.inputs["IN"].array
        for left in range(int(values.item()), 0, -1):  # with this one
            if not self._pauses.wait(self._infer_delay_s, [request]):
                break
            if left <= self._empty_count:
                continue
            if not self._pauses.wait(self._output_delay_s, [request]):
                break
            if left <= self._empty_count + self._fail_count:
                message = "this response fails, as CUSTOM_FAIL_COUNT wants it"
                response = answers.failure(request, ErrorCode.UNKNOWN, message, final=False)
            else:
                response = answers.answer(request, {"OUT": values.copy()}, final=False)
            batch.respond(index, response)
        batch.respond(index, answers.end(request))


def _refusal(answers: Answers, request: InferRequest, *, batches: bool) -> InferResponse | None:
    """Return the error of a request with several rows, whose responses would have no order."""
    if batches and request.batch_size != 1:
        return answers.failure(
            request, ErrorCode.INVALID_ARG, f"expected one row, got {request.batch_size}"
        )
    return None


def _uneven(answers: Answers, request: InferRequest) -> InferResponse | None:
    values, delays = request.inputs["IN"], request.inputs["DELAY"]
    if values.shape == delays.shape:
        return None
    return answers.failure(
        request,
        ErrorCode.INVALID_ARG,
        "the shapes of IN and DELAY must match, "
        f"got {shape_text(values.shape)} and {shape_text(delays.shape)}",
    )


RepeatBackend = partial(FilelessBackend, "repeat", RepeatInstance)
SquareBackend = partial(FilelessBackend, "square", SquareInstance)
