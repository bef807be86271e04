"""The process of one model, on its own side: what runs here is the python backend itself.

The main thread receives messages, the model lives on a device thread as it does in the server, and
any thread of the model may send. There is nothing else in it: no event loop, no other backend.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias, final

import outcome

from ..protocol.errors import ErrorCode, RequestError
from ..protocol.log_settings import LOG_FIELDS
from ..protocol.pb.inference import ModelConfig
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.tensors import Buffer
from .base import Batch, InstancePlace, SequenceEnd, SequenceEndReason
from .device_context import HostContext
from .device_thread import DeviceThread
from .fault_text import cut_to, text_of
from .process_calls import RemoteServer
from .process_link import Header, LinkClosedError, Message, Packet, receive
from .process_wire import error_header, request_from, response_header, source_from
from .python_model import PythonModelInstance, complete_in_here

LOG_TEXT_MAX_CHARS: Final = 65536
"""Most characters of a log message: a long traceback; more would fill the server's log."""

RESPONSES_AHEAD_MAX: Final = 64
"""Responses of one request on their way to a client: as many as wait for it in the server, so that
the model need not wait for each to be handed on."""

_PR_SET_PDEATHSIG: Final = 1

_Reply: TypeAlias = tuple[Header, list[Buffer]]


def main(link_fd: int, parent_pid: int) -> None:
    """Serve the process with this id over a socket, until either has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        return  # it ended before it could be told
    os.set_inheritable(link_fd, False)  # the model's children do not keep the link open
    faulthandler.enable()
    with socket.socket(fileno=link_fd) as link:
        _Worker(link).run()


@final
class _Gate:
    """Lets threads of the model send responses to one request, while few are on their way."""

    __slots__ = ("_opened", "_room")

    def __init__(self) -> None:
        self._room = threading.Semaphore(RESPONSES_AHEAD_MAX)
        self._opened = False

    def enter(self) -> bool:
        """Wait for room for one response; False if nobody wants it."""
        self._room.acquire()
        if self._opened:
            self._room.release()  # for the next thread that waits
        return not self._opened

    def leave(self, count: int) -> None:
        """Note that so many responses were handed on."""
        self._room.release(count)

    def open(self) -> None:
        """Let every thread through from now on, since nobody wants the responses."""
        self._opened = True
        self._room.release()


@final
class _Gates:
    """The requests of one batch that a decoupled model has not ended."""

    def __init__(self, requests: list[InferRequest]) -> None:
        self.requests = requests
        self.open = {index: _Gate() for index in range(len(requests))}


@final
class _Worker:
    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._thread = DeviceThread("model", HostContext(), self._finished)
        self._instance: PythonModelInstance | None = None
        self._executions: dict[int, _Gates] = {}
        self._server = RemoteServer(self._send)
        self._jobs: dict[str, Callable[[Message, int], _Reply]] = {
            "complete": self._complete,
            "load": self._load,
            "execute": self._execute,
            "ends": self._end_sequences,
            "ready": self._ready,
            "unload": self._unload,
        }

    def run(self) -> None:
        """Handle messages until the link is closed."""
        self._thread.start()
        try:
            while True:
                self._handle(receive(self._link, writable=True))
        except LinkClosedError:
            self._thread.stop()

    def _handle(self, message: Message) -> None:
        if self._server.handles(message):
            return
        match message.header:
            case {"kind": "cancel", "execution": number, "index": index}:
                self._cancel(number, index)
            case {"kind": "received", "execution": number, "index": index, "count": count}:
                self._received(number, index, count)
            case {"kind": str(kind), "job": job}:
                if kind == "execute":
                    self._open(job, message)
                self._thread.submit(self._done, self._jobs[kind], message, job)

    def _open(self, job: int, message: Message) -> None:
        requests, first = [], 0
        for header in message.header["requests"]:
            requests.append(request_from(header, message.buffers, first))
            first += len(header["inputs"])
        self._executions[job] = _Gates(requests)

    def _received(self, number: int, index: int, count: int) -> None:
        execution = self._executions.get(number)
        gate = None if execution is None else execution.open.get(index)
        if gate is not None:
            gate.leave(count)

    def _cancel(self, number: int, index: int) -> None:
        execution = self._executions.get(number)
        if execution is not None:
            execution.requests[index].cancelled = True
            gate = execution.open.get(index)
            if gate is not None:
                gate.open()

    def _send(self, header: Header, buffers: list[Buffer]) -> None:
        try:
            Packet(header, buffers).send(self._link)
        except LinkClosedError:
            os._exit(1)  # nobody is left to work for
        except Exception:  # no descriptor, no memory: an answer would be lost  # noqa: BLE001
            traceback.print_exc()  # not logged, which would send as well
            os._exit(1)

    def _finished(self, done: Callable[..., object], *args: Any) -> None:
        done(*args)

    def _done(self, result: outcome.Outcome[_Reply], _: Message, job: int) -> None:
        """Tell what came of a job, on its thread."""
        try:
            header, buffers = result.unwrap()
        except RequestError as error:
            header, buffers = {"error": error_header(error)}, []
        except BaseException as error:  # noqa: BLE001 - whatever a model may raise
            text = f"{type(error).__name__}: {cut_to(text_of(error))}"
            header, buffers = {"error": error_header(RequestError(ErrorCode.INTERNAL, text))}, []
        self._send({"kind": "done", "job": job, **header}, buffers)

    def _complete(self, message: Message, _: int) -> _Reply:
        header = message.header
        self._log(header["log_level"])
        config = ModelConfig.parse(bytes(message.buffers[0]))
        completed = complete_in_here(source_from(header["source"]), config)
        return {}, [] if completed is config else [bytes(completed)]

    def _load(self, message: Message, _: int) -> _Reply:
        header = message.header
        self._log(header["log_level"])
        config = ModelConfig.parse(bytes(message.buffers[0]))
        place = InstancePlace(**header["place"], server=self._server)
        instance = PythonModelInstance(source_from(header["source"]), config, place)
        self._instance = instance
        instance.load()
        attributes = {
            "hears_sequence_ends": instance.hears_sequence_ends,
            "says_ready": instance.says_ready,
        }
        return attributes, []

    def _ready(self, _: Message, __: int) -> _Reply:
        assert self._instance is not None
        return {"ready": self._instance.is_ready()}, []

    def _unload(self, _: Message, __: int) -> _Reply:
        if self._instance is not None:
            self._instance.unload()
        return {}, []

    def _end_sequences(self, message: Message, _: int) -> _Reply:
        assert self._instance is not None
        ends = [
            SequenceEnd(sequence_id, SequenceEndReason(reason))
            for sequence_id, reason in message.header["ends"]
        ]
        self._instance.sequences_ended(ends)
        return {}, []

    def _execute(self, _: Message, job: int) -> _Reply:
        instance, execution = self._instance, self._executions[job]
        assert instance is not None
        batch = Batch(execution.requests)
        if instance.decoupled:
            batch.post = partial(self._post, job, execution)
        try:
            instance.execute(batch)
        finally:
            for index in range(len(execution.requests)):
                if not instance.decoupled or index in batch.rescheduled:
                    self._close(job, execution, index)
        buffers: list[Buffer] = []
        responses = [
            None if response is None else response_header(response, buffers)
            for response in batch.responses
        ]
        header: Header = {
            "times": [batch.infer_start_ns, batch.infer_end_ns],
            "rescheduled": sorted(batch.rescheduled),
            "responses": responses,
        }
        return header, buffers

    def _post(self, job: int, execution: _Gates, index: int, response: InferResponse) -> None:
        """Send a response of a decoupled model, on any thread; waits while many are under way."""
        gate = execution.open.get(index)
        if response.final:
            self._close(job, execution, index)
        elif gate is not None and not gate.enter():
            return
        buffers: list[Buffer] = []
        header = response_header(response, buffers)
        self._send({"kind": "post", "execution": job, "index": index, "response": header}, buffers)

    def _close(self, job: int, execution: _Gates, index: int) -> None:
        execution.open.pop(index, None)
        if not execution.open:
            self._executions.pop(job, None)

    def _log(self, level: int) -> None:
        handler = _LogToServer(self._send)
        logging.basicConfig(level=level, handlers=[handler], format="%(message)s", force=True)


class _LogToServer(logging.Handler):
    """Sends what is logged here to the server's log."""

    def __init__(self, send: Callable[[Header, list[Buffer]], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record as text."""
        try:
            text = cut_to(self.format(record), LOG_TEXT_MAX_CHARS)
        except Exception:  # noqa: BLE001 - the arguments are the model's own
            self.handleError(record)
            return
        header: Header = {"kind": "log", "name": record.name, "level": record.levelno, "text": text}
        header |= {name: getattr(record, name, "") for name in LOG_FIELDS}
        self._send({**header, "file": record.filename, "line": record.lineno}, [])
