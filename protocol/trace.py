"""The trace of one request: what was done for it, and when.

It is on the request only if that is sampled. A request of an ensemble or of a model that calls
others has children. Times are of the monotonic clock in nanoseconds, and are passed in.
Names of activities: Triton's trace extension.
"""

from __future__ import annotations

from enum import IntFlag
from typing import Final, NamedTuple, Protocol, TypeAlias, final

from .model_spec import ModelSpec
from .requests import InferRequest, InferResponse
from .tensors import Tensor
from .trace_context import TraceContext
from .trace_settings import TraceSetting

HTTP: Final = ("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END")
GRPC: Final = ("GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END")
COMPUTE: Final = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


class Stamp(NamedTuple):
    """When something happened.

    Attributes:
      name: The activity.
      ns: The time.
    """

    name: str
    ns: int


class TensorSeen(NamedTuple):
    """A tensor that went into a queue or came out of a backend.

    Attributes:
      activity: "TENSOR_QUEUE_INPUT" or "TENSOR_BACKEND_OUTPUT".
      tensor: A copy of it.
    """

    activity: str
    tensor: Tensor


class Began(NamedTuple):
    """Which request the trace is of; known once the request is checked."""

    model_name: str
    model_version: str
    request_id: str


EVENTS_MAX: Final = 10_000
"""Events of one trace; those of a stream of thousands of responses that come later are left out."""

TENSOR_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of the tensors in one trace; likewise."""

Event: TypeAlias = Stamp | TensorSeen | Began


class _Part(IntFlag):
    """Who may still add to a trace."""

    FRONTEND = 1
    REQUEST = 2
    EXECUTION = 4


class TraceOwner(Protocol):
    """Makes traces and takes them back."""

    def child(self, parent: Trace) -> Trace:
        """Return a trace of a request that is made for another one; callable from any thread."""

    def begun(self, trace: Trace) -> None:
        """Note that a trace will be `finished`."""

    def finished(self, trace: Trace) -> None:
        """Take a trace to which nothing will be added."""


@final
class Trace:
    """What is known of one request so far; for the event loop, unless it says otherwise.

    Args:
      owner: Gets it in the end.
      number: Its id.
      setting: By which it was sampled.
      parent: The trace of the request that this one is made for; None for a client's.
      context: The span of this request, where spans are made.
      caller: The span that is its parent, if there is one.
      root: The span of the frontend, which is between these two; None in a child.

    Attributes:
      began: Which request it is of; None before that is known.
      events: In the order in which they were noted.
      error: Why the request failed; empty if it did not.
    """

    __slots__ = (
        "_open",
        "_owner",
        "_responded",
        "_tensor_bytes",
        "began",
        "caller",
        "context",
        "error",
        "events",
        "number",
        "parent",
        "root",
        "setting",
    )

    def __init__(
        self,
        owner: TraceOwner,
        number: int,
        setting: TraceSetting,
        *,
        parent: Trace | None = None,
        context: TraceContext | None = None,
        caller: TraceContext | None = None,
        root: TraceContext | None = None,
    ) -> None:
        self.number = number
        self.setting = setting
        self.parent = parent
        self.context = context
        self.caller = caller
        self.root = root
        self.began: Began | None = None
        self.events: list[Event] = []
        self.error = ""
        self._owner = owner
        self._open = _Part.REQUEST if parent is not None else _Part.REQUEST | _Part.FRONTEND
        self._responded = False
        self._tensor_bytes = 0

    def __repr__(self) -> str:
        return f"<Trace {self.number} of {self.began}, open {self._open!r}>"

    def child(self) -> Trace:
        """Return the trace of a request that is made for this one; callable from any thread."""
        return self._owner.child(self)

    # For frontends.

    def stamp(self, name: str, ns: int) -> None:
        """Note an activity."""
        if self.setting.timestamps and len(self.events) < EVENTS_MAX:
            self.events.append(Stamp(name, ns))

    def sent(self, name: str, ns: int) -> None:
        """Note that the last answer is written."""
        if self._open & _Part.FRONTEND:
            self.stamp(name, ns)
            self._close(_Part.FRONTEND)

    def release(self) -> None:
        """Note that the frontend adds nothing more; idempotent."""
        self._close(_Part.FRONTEND)

    # For whoever handles the request.

    def begin(self, request: InferRequest, spec: ModelSpec, ns: int) -> None:
        """Note that a request is checked and goes to its scheduler."""
        self._begin(request, spec, ns)
        self.stamp("QUEUE_START", ns)
        if self.setting.tensors:
            self._add_tensors("TENSOR_QUEUE_INPUT", list(request.inputs.values()))

    def refuse(self, request: InferRequest, spec: ModelSpec, why: str, ns: int) -> None:
        """Note that a request got no further than its check, or its queue."""
        if self.began is None:
            self._begin(request, spec, ns)
        self._end(why, ns)

    def respond(self, response: InferResponse, ns: int) -> None:
        """Note a response; a final one ends the request."""
        if not self._open & _Part.REQUEST:
            return  # it has ended already
        if self.setting.tensors:
            self._add_tensors("TENSOR_BACKEND_OUTPUT", response.outputs)
        if self.parent is None and not (response.empty or self._responded):
            self._responded = True
            self.stamp("INFER_RESPONSE_COMPLETE", ns)
        if response.final:
            self._end("" if response.error is None else response.error.message, ns)

    def abandon(self, ns: int) -> None:
        """Note that nobody waits for an answer any more; ignored if it was given."""
        if self._open & _Part.REQUEST:
            self._end("the request was cancelled before it was answered", ns)

    def executing(self) -> None:
        """Note that an execution begins, of which `executed` will tell."""
        if self._open & _Part.REQUEST:
            self._open |= _Part.EXECUTION

    def executed(self, *times_ns: int) -> None:
        """Note the times of `COMPUTE`, those that are not 0; ignored if they are known."""
        if self._open & _Part.EXECUTION:
            for name, ns in zip(COMPUTE, times_ns, strict=True):
                if ns:
                    self.stamp(name, ns)
            self._close(_Part.EXECUTION)

    def _begin(self, request: InferRequest, spec: ModelSpec, ns: int) -> None:
        self._owner.begun(self)
        self.began = Began(spec.name, spec.version, request.id)
        self.events.append(self.began)
        self.stamp("REQUEST_START", ns)

    def _end(self, error: str, ns: int) -> None:
        self.error = error
        if self.setting.timestamps:
            self.events.append(Stamp("REQUEST_END", ns))
        self._close(_Part.REQUEST)

    def _close(self, part: _Part) -> None:
        if self._open & part:
            self._open &= ~part
            if not self._open:
                self._owner.finished(self)

    def _add_tensors(self, activity: str, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            self._tensor_bytes += tensor.byte_size
            if self._tensor_bytes > TENSOR_BYTES_MAX or len(self.events) >= EVENTS_MAX:
                return
            copy = Tensor(tensor.name, tensor.datatype, tensor.shape, raw=bytes(tensor.raw))
            self.events.append(TensorSeen(activity, copy))


@final
class TraceLink:
    """A trace as the process of a model knows it, which is only by name.

    Args:
      number: Its id.
      context: The span of the request, where spans are made.
    """

    __slots__ = ("context", "number")

    def __init__(self, number: int, context: TraceContext | None) -> None:
        self.number = number
        self.context = context

    def means(self, trace: Trace | None) -> bool:
        """Return whether a trace is the one."""
        return trace is not None and trace.number == self.number
