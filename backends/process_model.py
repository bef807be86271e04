"""A Python model in a process of its own, as its device thread sees it.

The process runs the python backend too, so models behave as they do in the server itself. What is
different is what they cannot do to others: a crash ends this instance only, a lock or a long
computation in Python code holds up nobody, and an interpreter of its own may have other packages.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter_ns
from typing import Any, Final, final

from ..protocol.errors import ErrorCode, RequestError
from ..protocol.log_settings import LOG_FIELDS
from ..protocol.pb.inference import ModelConfig
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.tensors import Buffer
from ..protocol.trace import Trace, TraceLink
from .base import Batch, DeviceFaultError, InstancePlace, ModelSource, SequenceEnd
from .device_thread import attend_between_jobs
from .model_process import ModelProcess, ProcessEndedError
from .process_calls import ProcessCalls
from .process_link import Header, LinkError, Message, Packet
from .process_wire import ResponseReader, error_from, place_header, request_header, source_header
from .python_env import interpreter_for

LOOKS_EVERY_S: Final = 1 / 64
"""How often an instance at work looks which of its requests were cancelled, in seconds: soon enough
to save work, and too seldom to cost any."""

FINALIZE_MAX_S: Final = 3.0
"""How long `finalize` may take, in seconds, out of what an unload may take in all."""

ENDING_MAX_S: Final = 0.5
"""How long a process may take to end once it is done, and again after SIGTERM, in seconds."""

RECEIVED_AT_ONCE: Final = 16
"""Responses to one request that are confirmed together: a quarter of those that may be on their
way, so that the model need not wait for it."""

LOG_NAME_MAX_CHARS: Final = 200
"""Most characters of the name of a logger."""

_LOGGER: Final = logging.getLogger("tritrio.model")


@final
class _Execution:
    """A batch that the process has, until its last request has ended."""

    __slots__ = ("batch", "cancelled", "open", "taken", "waiting")

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.open = set(range(len(batch.requests)))
        self.cancelled: set[int] = set()  # those the process knows of
        self.waiting: dict[int, deque[InferResponse]] = {}  # for room, in order
        self.taken: dict[int, int] = {}  # index -> responses that were not confirmed


@final
class ProcessModelInstance:
    """One instance of a Python model, in a process that lives from `load` to `unload`.

    Attributes:
      decoupled: Whether a request may have any number of responses.
      hears_sequence_ends: Whether the model has the method `on_sequence_end`; known after `load`.
      says_ready: Whether the model has the method `is_ready`; known after `load`.
    """

    def __init__(self, source: ModelSource, config: ModelConfig, place: InstancePlace) -> None:
        self._source = source
        self._config = config
        self._place = place
        policy = config.model_transaction_policy
        self.decoupled = policy is not None and policy.decoupled
        self.hears_sequence_ends = False
        self.says_ready = False
        self._name = f"model instance '{place.name}'"
        self._process: ModelProcess | None = None
        self._calls: ProcessCalls | None = None
        self._fault = "is not loaded"
        self._killed = False
        self._jobs = itertools.count()
        self._executions: dict[int, _Execution] = {}
        self._looked_ns = 0
        self._undelivered = -1  # a job that the process never heard of

    def load(self) -> None:
        """Start the process and load the model in it.

        Raises:
          RequestError: the environment or the process cannot be made, or as the python backend.
        """
        interpreter = interpreter_for(self._source, self._config)
        self._process = ModelProcess(self._name, interpreter)
        self._calls = ProcessCalls(self._place, self._process.send_later, self._trace_within)
        if self._killed:
            self._process.kill()
        header = {"source": source_header(self._source), "place": place_header(self._place)}
        try:
            reply = self._call("load", header, [bytes(self._config)])
        except ProcessEndedError as error:
            self._lost(error)
            raise RequestError(
                ErrorCode.INTERNAL, f"loading {self._name} failed: {error}"
            ) from None
        self.hears_sequence_ends = reply.header.get("hears_sequence_ends") is True
        self.says_ready = reply.header.get("says_ready") is True
        attend_between_jobs(self)

    def execute(self, batch: Batch) -> None:
        """Let the process execute the batch.

        Raises:
          DeviceFaultError: the process has ended, before it or meanwhile.
        """
        batch.compute_start_ns = perf_counter_ns()
        buffers: list[Buffer] = []
        headers = [request_header(request, buffers) for request in batch.requests]
        job = next(self._jobs)
        execution = self._executions[job] = _Execution(batch)
        try:
            reply = self._call("execute", {"requests": headers}, buffers, job=job)
            self._take(execution, reply)
        except ProcessEndedError as error:
            raise self._lost(error, job) from None
        except RequestError:
            execution.open.clear()
            raise
        finally:
            if not self.decoupled or not execution.open:
                self._executions.pop(job, None)
        batch.compute_end_ns = perf_counter_ns()

    def _take(self, execution: _Execution, reply: Message) -> None:
        """Take over what came of an execution."""
        assert self._process is not None
        batch, reader = execution.batch, ResponseReader(reply.buffers)
        count = len(batch.requests)
        try:
            match reply.header:
                case {
                    "times": [int(start_ns), int(end_ns)],
                    "rescheduled": list(rescheduled),
                    "responses": list(responses),
                } if len(responses) == count and set(rescheduled) <= set(range(count)):
                    pass
                case _:
                    raise LinkError(f"expected an execution of {count} requests")
            batch.infer_start_ns, batch.infer_end_ns = start_ns, end_ns
            batch.rescheduled.update(rescheduled)
            execution.open -= batch.rescheduled
            for index, header in enumerate(responses):
                if header is not None:
                    batch.respond(index, reader.response(header, batch.requests[index]))
        except (LinkError, TypeError) as error:
            raise _misbehaved(self._process, error) from None

    def is_ready(self) -> bool:
        """Ask the model; see `SaysReady`.

        An instance whose process has ended is ready: the next request has another one started, and
        none might come to one that is not.

        Raises:
          DeviceFaultError: the process has ended meanwhile.
        """
        if self._process is None:
            return True
        try:
            return self._call("ready", {}).header.get("ready") is True
        except ProcessEndedError as error:
            raise self._lost(error) from None

    def sequences_ended(self, ends: Sequence[SequenceEnd]) -> None:
        """Tell the model.

        Raises:
          DeviceFaultError: the process has ended, before it or meanwhile.
        """
        header = {"ends": [[end.sequence_id, end.reason.value] for end in ends]}
        try:
            self._call("ends", header)
        except ProcessEndedError as error:
            raise self._lost(error) from None

    def unload(self) -> None:
        """Let the model finalise, within bounds, and end the process."""
        process = self._process
        if process is None:
            return
        try:
            self._call("unload", {}, time_max_s=FINALIZE_MAX_S)
        except TimeoutError:
            _LOGGER.warning("%s: finalize took more than %g s", self._name, FINALIZE_MAX_S)
            process.kill()
        except ProcessEndedError as error:
            _LOGGER.warning("%s: finalize failed: %s", self._name, error)
        except RequestError as error:
            _LOGGER.warning("%s", error.message)
        self._process = None
        process.close(ENDING_MAX_S)
        self._close_calls()

    def _trace_within(self, link: TraceLink) -> Trace | None:
        """Return a new trace that is part of that of a request which the process has."""
        for execution in self._executions.values():
            for request in execution.batch.requests:
                if link.means(request.trace):
                    trace: Trace = request.trace.child()
                    return trace
        return None

    def _close_calls(self) -> None:
        if self._calls is not None:
            self._calls.close()

    def kill(self) -> None:
        """End the process at once; whatever the instance was called for fails."""
        self._killed = True
        process = self._process
        if process is not None:
            process.kill()

    def attend(self, until_fd: int, timeout_s: float | None = None) -> bool:
        """Take the responses of a decoupled model between executions; see `Attended`."""
        if self._process is None:
            return False
        if self._executions:
            timeout_s = min(LOOKS_EVERY_S, LOOKS_EVERY_S if timeout_s is None else timeout_s)
        try:
            self._look_after(timeout_s, until_fd)
        except ProcessEndedError as error:
            self._lost(error)
        return self._process is not None

    def _call(
        self,
        kind: str,
        header: Header,
        buffers: Sequence[Buffer] = (),
        *,
        job: int | None = None,
        time_max_s: float | None = None,
    ) -> Message:
        """Have the process do something, and return its reply.

        Raises:
          ProcessEndedError: it has ended.
          RequestError: it could not do it.
          TimeoutError: it took longer than `time_max_s`.
        """
        if self._process is None:
            raise DeviceFaultError(self._fault, begun=False)
        job = next(self._jobs) if job is None else job
        header = {"kind": kind, "job": job, "log_level": _LOGGER.getEffectiveLevel(), **header}
        if not self._process.send(Packet(header, buffers)):
            self._undelivered = job
        start_ns = perf_counter_ns()
        while True:
            reply = self._look_after(LOOKS_EVERY_S if time_max_s or self._executions else None)
            if reply is not None and reply.header.get("job") == job:
                break
            if time_max_s is not None and perf_counter_ns() - start_ns > time_max_s * 1e9:
                raise TimeoutError
        if "error" in reply.header:
            try:
                raise error_from(reply.header["error"])
            except LinkError as error:
                raise _misbehaved(self._process, error) from None
        return reply

    def _look_after(self, timeout_s: float | None, until_fd: int = -1) -> Message | None:
        """Wait for messages and handle them; return the one that ends a job, if it came.

        Raises:
          ProcessEndedError: the process has ended.
        """
        process = self._process
        assert process is not None
        reply = None
        for message in process.messages(timeout_s, until_fd):
            match message.header:
                case {"kind": "done"}:
                    reply = message
                case {"kind": "unfit", "text": str(text)}:
                    raise process.misbehaved(f"cannot run it: {text}")
                case {"kind": "log", "name": str(), "level": int(), "text": str()} as record:
                    log_here(record)
                case {"kind": "post", "execution": int(job), "index": int(index), **rest}:
                    self._posted(job, index, rest.get("response"), message)
                case _:
                    self._pass_on(message)
        if self._executions:
            now_ns = perf_counter_ns()
            if now_ns - self._looked_ns > LOOKS_EVERY_S * 1e9:
                self._looked_ns = now_ns
                self._look_at_requests()
        return reply

    def _pass_on(self, message: Message) -> None:
        assert self._process is not None
        try:
            if self._calls is None or not self._calls.handles(message):
                raise LinkError("expected a message of a known kind")
        except LinkError as error:
            raise _misbehaved(self._process, error) from None

    def _posted(self, job: int, index: int, header: Any, message: Message) -> None:
        """Hand on a response, or keep it while its client is slow."""
        assert self._process is not None
        execution = self._executions.get(job)
        if execution is None or index not in execution.open or not self.decoupled:
            raise _misbehaved(self._process, LinkError("expected a response to an open request"))
        try:
            response = ResponseReader(message.buffers).response(
                header, execution.batch.requests[index]
            )
        except LinkError as error:
            raise _misbehaved(self._process, error) from None
        execution.waiting.setdefault(index, deque()).append(response)
        self._hand_on(job, execution, index)

    def _hand_on(self, job: int, execution: _Execution, index: int) -> None:
        batch, waiting = execution.batch, execution.waiting[index]
        has_room = batch.has_room
        while waiting and (waiting[0].final or has_room is None or has_room(index)):
            response = waiting.popleft()
            with suppress(RuntimeError):  # the event loop, and with it every client, is gone
                batch.respond(index, response)
            if response.final:
                self._ended(job, execution, index)
                return
            taken = execution.taken[index] = execution.taken.get(index, 0) + 1
            if taken >= RECEIVED_AT_ONCE:
                execution.taken[index] = 0
                self._tell("received", job, index, count=taken)
        if not waiting:
            del execution.waiting[index]

    def _ended(self, job: int, execution: _Execution, index: int) -> None:
        execution.open.discard(index)
        execution.waiting.pop(index, None)
        if not execution.open:
            self._executions.pop(job, None)

    def _look_at_requests(self) -> None:
        """Hand on what there is room for now, and tell the model who has gone."""
        for job, execution in list(self._executions.items()):
            for index in list(execution.waiting):
                self._hand_on(job, execution, index)
            for index in execution.open - execution.cancelled:
                if execution.batch.requests[index].cancelled:
                    execution.cancelled.add(index)
                    self._tell("cancel", job, index)

    def _tell(self, kind: str, job: int, index: int, **more: int) -> None:
        assert self._process is not None
        self._process.send(Packet({"kind": kind, "execution": job, "index": index, **more}))

    def _lost(self, error: ProcessEndedError, job: int = -1) -> DeviceFaultError:
        """Let go of a process that has ended, and end the requests that it leaves open."""
        process, self._process = self._process, None
        assert process is not None
        process.close()
        self._close_calls()
        self._fault = str(error)
        executions, self._executions = self._executions, {}
        begun = job < 0 or job != self._undelivered
        if not begun:
            del executions[job]
        if self.decoupled:
            for execution in executions.values():
                for index in execution.open:
                    request = execution.batch.requests[index]
                    with suppress(RuntimeError):
                        execution.batch.respond(index, self._failure(request))
        return DeviceFaultError(self._fault, begun=begun)

    def _failure(self, request: InferRequest) -> InferResponse:
        message = f"{self._name} did not survive the request: {self._fault}"
        error = RequestError(ErrorCode.INTERNAL, message)
        return InferResponse(self._source.name, str(self._source.version), request.id, error=error)


def _misbehaved(process: ModelProcess, error: Exception) -> ProcessEndedError:
    return process.misbehaved(f"sent what is no answer: {error}")


def log_here(record: Header) -> None:
    """Log what a model's process has logged, as if its logger were one of the server.

    Args:
      record: With its `name`, `level` and `text`; the rest may be anything.
    """
    if not _LOGGER.isEnabledFor(record["level"]):
        return
    name = record["name"][:LOG_NAME_MAX_CHARS]
    line = logging.LogRecord(name, record["level"], "", 0, "%s", (record["text"],), None)
    match record:
        case {"file": str(file), "line": int(number)}:
            line.filename, line.lineno = file[:LOG_NAME_MAX_CHARS], number
    for field in LOG_FIELDS:
        about = record.get(field)
        if isinstance(about, str) and about:
            setattr(line, field, about[:LOG_NAME_MAX_CHARS])
    _LOGGER.handle(line)
