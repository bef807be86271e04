"""What a model in a process of its own asks of the server: calls of other models, and small things.

The model sees a `ServerLink`. Each use of it is a message, which the instance in the server passes
to the `ServerLink` that it was made with, as if the model had used that.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, final

from ..protocol.errors import RequestError
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.tensors import Buffer
from ..protocol.trace import Trace, TraceLink
from .base import InstancePlace
from .metric_store import Labels, MetricKind
from .pb_tensor import TritonModelException
from .process_link import Header, LinkError, Message, Packet
from .process_wire import (
    ResponseReader,
    error_from,
    error_header,
    request_from,
    request_header,
    response_header,
)
from .server_link import Arm, OpenCall, Respond, ServerLink

MakePacket: TypeAlias = Callable[[], Packet]

_CALLS: Final = frozenset({"call", "cancel_call", "more", "ask", "tell"})
"""Kinds of messages that are for `ProcessCalls`."""

_Send: TypeAlias = Callable[[Header, list[Buffer]], None]


@final
class ProcessCalls:
    """In the server: passes on what the process of one instance asks.

    Args:
      place: Of the instance.
      send_later: Has a message made and sent by the instance's thread; callable from any thread.
      trace_of: Returns a new trace that is part of that of a request which the process has.
    """

    def __init__(
        self,
        place: InstancePlace,
        send_later: Callable[[MakePacket], None],
        trace_of: Callable[[TraceLink], Trace | None],
    ) -> None:
        self._place = place
        self._trace_of = trace_of
        self._send_later = send_later
        self._open: dict[int, OpenCall] = {}

    def handles(self, message: Message) -> bool:
        """Pass a message on, on the instance's thread; False if it is for somebody else.

        Raises:
          LinkError: it is not what it should be.
        """
        kind, server = message.header.get("kind"), self._place.server
        if kind not in _CALLS or server is None:
            return False
        try:
            self._pass_on(kind, message, server)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise LinkError(f"expected a call, got {type(error).__name__}: {error}") from None
        return True

    def _pass_on(self, kind: str, message: Message, server: ServerLink) -> None:
        header = message.header
        if kind == "call":
            self._call(header["call"], message, server)
        elif kind == "cancel_call":
            call = self._open.pop(header["call"], None)
            if call is not None:
                call.cancel()
        elif kind == "more":
            if header["call"] in self._open:
                self._open[header["call"]].more(int(header["count"]))
        else:
            answer = self._answer(header["what"], header["arguments"], message.buffers, server)
            if kind == "ask":
                packet = Packet({"kind": "answer", "ask": header["ask"], **answer})
                self._send_later(lambda: packet)

    def _call(self, number: int, message: Message, server: ServerLink) -> None:
        header = message.header
        caller = self._place.number if header["in_execution"] else None
        request = request_from(header["request"], message.buffers, 0)
        if request.trace is not None:
            request.trace = self._trace_of(request.trace)
        self._open[number] = server.infer(
            request,
            partial(self._respond, number),
            caller=caller,
            decoupled=bool(header["decoupled"]),
        )

    def _respond(self, number: int, response: InferResponse) -> None:
        """Take a response on the event loop; it is copied on the instance's thread."""

        def make() -> Packet:
            if response.final:
                self._open.pop(number, None)
            buffers: list[Buffer] = []
            header = response_header(response, buffers)
            return Packet({"kind": "response", "call": number, "response": header}, buffers)

        self._send_later(make)

    def _answer(
        self, what: str, arguments: list[Any], buffers: Sequence[memoryview], server: ServerLink
    ) -> Header:
        try:
            return {"result": self._ask(what, arguments, buffers, server)}
        except RequestError as error:
            return {"error": error_header(error)}
        except ValueError as error:  # of metrics
            return {"value_error": str(error)}

    def _ask(
        self, what: str, arguments: list[Any], buffers: Sequence[memoryview], server: ServerLink
    ) -> Any:
        metrics = server.metrics
        result: bool | float | None = None
        match what, arguments:
            case "ready", [str(name), str(version)]:
                result = server.is_model_ready(name, version)
            case "load", [str(name), config, list(files)]:
                contents = dict(zip(files, map(bytes, buffers), strict=True))
                server.load_model(name, config, contents, caller=self._place.number)
            case "unload", [str(name), bool(dependents)]:
                server.unload_model(name, unload_dependents=dependents, caller=self._place.number)
            case "declare", [str(name), str(description), str(kind)]:
                metrics.declare(name, description, MetricKind(kind))
            case "add", [str(name), labels, list(buckets)]:
                metrics.add(self._place.number, name, _labels(labels), tuple(buckets))
            case "increment", [str(name), labels, float(value) | int(value)]:
                metrics.increment(name, _labels(labels), value)
            case "set", [str(name), labels, float(value) | int(value)]:
                metrics.set(name, _labels(labels), value)
            case "observe", [str(name), labels, float(value) | int(value)]:
                metrics.observe(name, _labels(labels), value)
            case "value", [str(name), labels]:
                result = metrics.value(name, _labels(labels))
            case _:
                raise LinkError(f"expected something to ask, got {what[:20]}")
        return result

    def close(self) -> None:
        """Cancel what the process leaves open."""
        calls, self._open = self._open, {}
        for call in calls.values():
            call.cancel()


def _labels(labels: list[list[str]]) -> Labels:
    return tuple([(str(name), str(value)) for name, value in labels])


@final
class RemoteServer:
    """In the process: the server, as its model sees it; callable from any thread of the model.

    Args:
      send: Sends a message; callable from any thread.
    """

    def __init__(self, send: _Send) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._calls: dict[int, tuple[InferRequest, Respond]] = {}
        self._answers: dict[int, SimpleQueue[Header]] = {}
        self.metrics = _RemoteMetrics(self)

    def handles(self, message: Message) -> bool:
        """Take a message of the server; False if it is for somebody else."""
        match message.header:
            case {"kind": "response", "call": number, "response": header}:
                request, respond = self._calls[number]
                response = ResponseReader(message.buffers).response(header, request)
                if response.final:
                    del self._calls[number]
                respond(response)
            case {"kind": "answer", "ask": number}:
                self._answers.pop(number).put(message.header)
            case _:
                return False
        return True

    def infer(
        self, request: InferRequest, respond: Respond, *, caller: int | None, decoupled: bool
    ) -> OpenCall:
        """Send a request to another model; see `ServerLink`."""
        number = next(self._numbers)
        self._calls[number] = request, respond
        buffers: list[Buffer] = []
        header: Header = {
            "kind": "call",
            "call": number,
            "request": request_header(request, buffers),
            "in_execution": caller is not None,
            "decoupled": decoupled,
        }
        self._send(header, buffers)
        return _RemoteCall(self._send, number)

    def load_model(
        self, name: str, config: str | None, files: Mapping[str, bytes], *, caller: int | None
    ) -> None:
        """Load a model; see `ServerLink`."""
        del caller  # the server knows
        self.ask("load", name, config, list(files), buffers=list(files.values()))

    def unload_model(self, name: str, *, unload_dependents: bool, caller: int | None) -> None:
        """Begin to unload a model; see `ServerLink`."""
        del caller  # the server knows
        self.ask("unload", name, unload_dependents)

    def is_model_ready(self, name: str, version: str) -> bool:
        """Return whether a model takes requests; see `ServerLink`."""
        return self.ask("ready", name, version) is True

    def sleep(self, arm: Arm) -> Awaitable[None]:
        """Refuse: no code here is run by trio."""
        del arm
        raise TritonModelException(
            "an async execute in a process of its own runs on asyncio, got another event loop"
        )

    def ask(self, what: str, *arguments: Any, buffers: Sequence[Buffer] = ()) -> Any:
        """Ask, and wait for the answer.

        Raises:
          RequestError: the server's answer.
          ValueError: likewise.
        """
        number = next(self._numbers)
        answers = self._answers[number] = SimpleQueue()
        header = {"kind": "ask", "ask": number, "what": what, "arguments": arguments}
        self._send(header, list(buffers))
        answer = answers.get()
        if "error" in answer:
            raise error_from(answer["error"])
        if "value_error" in answer:
            raise ValueError(answer["value_error"])
        return answer["result"]

    def tell(self, what: str, *arguments: Any) -> None:
        """Tell something that has no answer."""
        self._send({"kind": "tell", "what": what, "arguments": arguments}, [])


@final
class _RemoteCall:
    """A call that was sent."""

    __slots__ = ("_number", "_send")

    def __init__(self, send: _Send, number: int) -> None:
        self._send = send
        self._number = number

    def cancel(self) -> None:
        self._send({"kind": "cancel_call", "call": self._number}, [])

    def more(self, count: int) -> None:
        self._send({"kind": "more", "call": self._number, "count": count}, [])


@final
class _RemoteMetrics:
    """The metrics of the server; what has no result is not waited for."""

    def __init__(self, server: RemoteServer) -> None:
        self._server = server

    def declare(self, name: str, description: str, kind: MetricKind) -> None:
        self._server.ask("declare", name, description, kind.value)

    def add(self, owner: int | None, name: str, labels: Labels, buckets: tuple[float, ...]) -> None:
        del owner  # the server knows
        self._server.ask("add", name, labels, buckets)

    def increment(self, name: str, labels: Labels, value: float) -> None:
        self._server.tell("increment", name, labels, value)

    def set(self, name: str, labels: Labels, value: float) -> None:
        self._server.tell("set", name, labels, value)

    def observe(self, name: str, labels: Labels, value: float) -> None:
        self._server.tell("observe", name, labels, value)

    def value(self, name: str, labels: Labels) -> float:
        return float(self._server.ask("value", name, labels))
