"""Calls of models by models ("business logic scripting"), from any thread onto the event loop.

A call is an ordinary request to the callee's scheduler. It ends with the requests it is made for,
once nobody waits for any of them. One that could only wait for itself is refused (`_call_graph`).
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeAlias, final

import trio

from ..backends.base import InstancePlace
from ..backends.metric_store import MetricStore
from ..backends.pb_tensor import TritonModelException
from ..backends.server_link import RESPONSES_AHEAD, Arm, Respond
from ..protocol.errors import ErrorCode, FailureReason, RequestError
from ..protocol.request_rules import check_fields
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.wording import quoted
from ._call_graph import Link, chain_text, circle
from ._control_requests import ControlRequests
from ._doorbell import current_doorbell
from ._execution_watch import ExecutionWatch, Executor
from .inference import submit
from .messages import Execute
from .model_control import LoadOverride, StartsControl
from .reply import Reply
from .routing_table import ModelState, ModelVersion

Find: TypeAlias = Callable[[str, str], ModelVersion]

_logger = logging.getLogger(__name__)


@final
class Calls:
    """The calls of all models of one server; what its models have as their `ServerLink`.

    Lifetime: made on the event loop. After `close` every call is answered with an error, at once.

    Args:
      find: Returns the READY version of a model by name and version, or raises.

    Attributes:
      metrics: The models' own metrics; those of a model version go when it is removed.
    """

    def __init__(self, find: Find) -> None:
        self.find = find
        self.metrics = MetricStore()
        self.ring = current_doorbell()
        self._numbers = itertools.count()
        self._instances: dict[int, Executor] = {}
        self._takers: dict[ModelVersion, Sequence[int]] = {}
        self._watches: dict[Execute, ExecutionWatch[Call]] = {}
        self._waited: set[int | None] = set()
        self._requests = ControlRequests(self.ring, self._why_no_control)
        self._held_up_by: str | None = None
        self._open: dict[Call, None] = {}
        self._closed = False
        self._lock = threading.Lock()  # of the two above

    def __repr__(self) -> str:
        return f"<Calls between {len(self._takers)} model versions, {len(self._open)} open>"

    # For the composition, on the event loop.

    def number(self, place: InstancePlace) -> InstancePlace:
        """Return a place with a number, and with this as its server."""
        return replace(place, number=next(self._numbers), server=self)

    def add_model(self, version: ModelVersion, instances: Sequence[Executor]) -> None:
        """Take note of the instances of a model version, whose places are numbered."""
        self._instances.update(zip(map(_number, instances), instances, strict=True))
        self._takers[version] = [_number(each) for each in instances if not each.place.passive]

    def remove_model(self, version: ModelVersion, instances: Sequence[Executor]) -> None:
        """Forget a model version."""
        del self._takers[version]
        for each in instances:
            number = _number(each)
            del self._instances[number]
            self._waited.discard(number)
            self.metrics.release(number)

    def close(self) -> None:
        """Answer every call with an error, those that come from now on included."""
        with self._lock:
            self._closed = True
            left, self._open = self._open, {}
        for call in left:
            call.end(_server_stops())
        self._requests.close()

    def connect(self, control: StartsControl) -> None:
        """Have models loaded and unloaded by this from now on."""
        self._requests.control = control

    def _why_no_control(self, caller: int | None) -> RequestError | None:
        """Return why the code of an instance may not load or unload models now."""
        for version, numbers in self._takers.items():
            if caller in numbers and version.state is ModelState.LOADING:
                return RequestError(
                    ErrorCode.UNAVAILABLE,
                    f"model '{version.name}' is being loaded, and cannot load or unload others "
                    "before that has ended",
                )
        return None

    @contextmanager
    def held_up_by(self, instance: InstancePlace) -> Iterator[None]:
        """Refuse calls, whatever thread they come from, while an instance blocks the event loop."""
        self._held_up_by = instance.name
        try:
            yield
        finally:
            self._held_up_by = None

    # For models, on any thread.

    def infer(
        self, request: InferRequest, respond: Respond, *, caller: int | None, decoupled: bool
    ) -> Call:
        """Send a request to another model; see `ServerLink`.

        Raises:
          TritonModelException: the event loop is held up, so that the call would never end.
        """
        if self._held_up_by is not None:
            raise TritonModelException(
                f"instance '{self._held_up_by}' waits for another model, "
                f"{quoted(request.model_name)}, which cannot run meanwhile: without a server all "
                "models run on one thread; use an 'async def execute' that imports no asyncio and "
                "awaits async_exec(), or test it with a server"
            )
        call = Call(self, request, respond, caller=caller, decoupled=decoupled)
        request.call = call
        with self._lock:
            closed = self._closed
            if not closed:
                self._open[call] = None
        if closed:
            call.end(_server_stops())
        else:
            self.ring(call.start)
        return call

    def load_model(
        self, name: str, config: str | None, files: Mapping[str, bytes], *, caller: int | None
    ) -> None:
        """Load a model, and wait for it; see `ServerLink`."""
        override = LoadOverride(config, files)
        self._requests.ask(
            lambda control, done: control.start_load(name, override, done), caller=caller
        )

    def unload_model(self, name: str, *, unload_dependents: bool, caller: int | None) -> None:
        """Begin to unload a model; see `ServerLink`."""
        self._requests.ask(
            lambda control, done: control.start_unload(name, unload_dependents, done),
            caller=caller,
        )

    def is_model_ready(self, name: str, version: str) -> bool:
        """Return whether a version of a model takes requests; see `ServerLink`."""
        try:
            self.find(name, version)
        except RequestError:
            return False
        return True

    async def sleep(self, arm: Arm) -> None:
        """Sleep until the function that `arm` is given was called; under any trio loop."""
        token = trio.lowlevel.current_trio_token()
        woken = trio.Event()

        def wake() -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(woken.set)

        arm(wake)
        await woken.wait()

    # For calls, on the event loop.

    def began(self, call: Call) -> bool:
        """Tie a call to what its caller executes; False if nobody waits for that any more."""
        caller = call.caller
        instance = None if caller is None else self._instances.get(caller)
        execute = None if instance is None else instance.executing
        if execute is None:
            return True
        watch = self._watches.get(execute)
        if watch is None:
            watch = ExecutionWatch(execute.infers, Call.cancel_now)
            self._watches[execute] = watch
        call.made_by = execute
        watch.add(call)
        return call.made_by is not None

    def ended(self, call: Call) -> None:
        """Forget a call."""
        with self._lock:
            self._open.pop(call, None)
        execute, call.made_by = call.made_by, None
        if execute is not None:
            self._waited.add(call.caller)
            if self._watches[execute].remove(call):
                del self._watches[execute]

    def waited(self, instance: int | None) -> bool:
        """Return whether an execution of an instance has waited for a call since this was asked."""
        lately = instance in self._waited
        self._waited.discard(instance)
        if instance is None:
            return lately
        return lately or self._requests.waited(instance) or bool(self.calls_of(instance))

    def check(self, request: InferRequest, version: ModelVersion) -> None:
        """Refuse a request to a model that could only wait for itself; it is in its call already.

        Raises:
          RequestError: UNAVAILABLE; names the chain.
        """
        takers = self._takers_of(request, version)
        chain = circle(takers, self)
        if chain is not None:
            others = f", and so do the others of its {len(takers)} instances"
            help_ = "; one more in its instance_group could take the call"
            if takers != self._takers.get(version):
                help_ = ", which has the sequence"
            raise RequestError(
                ErrorCode.UNAVAILABLE,
                f"this call of model '{version.name}' would wait for itself: {self._text(chain)}"
                f"{others if len(takers) > 1 else ''}{help_}",
                reason=FailureReason.REJECTED,
            )

    def calls_of(self, instance: int) -> Collection[Call]:
        """Return the calls that what an instance executes waits for; see `Waits`."""
        executor = self._instances.get(instance)
        execute = None if executor is None else executor.executing
        watch = None if execute is None else self._watches.get(execute)
        return () if watch is None else watch.parts.keys()

    def takers_of(self, call: Call) -> list[Sequence[int]]:
        """Return who may come free for each request of a call; see `Waits`."""
        return [
            self._takers_of(reply.request, version)
            for reply, version in call.requests.items()
            if not reply.done
        ]

    def _takers_of(self, request: InferRequest, version: ModelVersion) -> Sequence[int]:
        """Return who may come free for a request: who executes it or its sequence, or anybody."""
        takers = self._takers.get(version, ())
        sequence_id = request.sequence_id if version.spec.sequences else 0
        for number in takers:
            execute = self._instances[number].executing
            for infer in () if execute is None else execute.infers:
                if infer.request is request or (
                    sequence_id and infer.request.sequence_id == sequence_id
                ):
                    return (number,)
        return takers

    def _text(self, chain: list[Link[Call, int]]) -> str:
        return chain_text(
            (self._instances[link.instance].place.name, link.call.model_name) for link in chain
        )


@final
class Call:
    """One call of a model. `cancel` and `more` are for any thread, the rest for the event loop.

    Attributes:
      model_name: The callee.
      caller: The number of the instance that called, if its execution waits.
      requests: What it consists of: one request, and those that it leads to if the callee is an
        ensemble, by their replies.
      made_by: What the caller executes, while that waits for this call.
    """

    def __init__(
        self,
        calls: Calls,
        request: InferRequest,
        respond: Respond,
        *,
        caller: int | None,
        decoupled: bool,
    ) -> None:
        self.model_name = request.model_name
        self.caller = caller
        self.requests: dict[Reply, ModelVersion] = {}
        self.made_by: Execute | None = None
        self._calls = calls
        self._request = request
        self._respond = respond
        self._decoupled = decoupled
        self._credit = RESPONSES_AHEAD
        self._reply: Reply | None = None
        self._ended = False

    def __repr__(self) -> str:
        return f"<Call of {self.model_name}{' ended' if self._ended else ''}>"

    def cancel(self) -> None:
        """Cancel the call, from any thread; see `OpenCall`."""
        self._calls.ring(self.cancel_now)

    def more(self, count: int) -> None:
        """Let more responses be handed over, from any thread; see `OpenCall`."""
        self._calls.ring(self._extend, count)

    def start(self) -> None:
        """Hand the request to the callee's scheduler."""
        if self._ended:
            return
        try:
            check_fields(self._request)
            version = self._find()
            if not self._calls.began(self):
                return
            reply = self._reply = submit(version, self._request, trio.current_time())
        except RequestError as error:
            self.end(error)
            return
        except Exception as error:  # the doorbell must survive whatever a model sends
            _logger.exception("%r cannot be made", self)
            self.end(RequestError(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}"))
            return
        reply.notify = self._pass_on
        self._pass_on()  # a cached one

    def join(self, reply: Reply, version: ModelVersion) -> None:
        """Take note of a request that this call consists of, before it is queued.

        Raises:
          RequestError: it could only wait for this call.
        """
        self.requests[reply] = version
        if self.made_by is not None:
            self._calls.check(reply.request, version)

    def cancel_now(self) -> None:
        """Cancel the call, on the event loop."""
        self.end(_cancelled())

    def end(self, error: RequestError) -> None:
        """End the call with an error, unless it has ended; cancels what was queued for it."""
        if self._ended:
            return
        if self._reply is not None:
            self._reply.close()
        request = self._request
        self._finish(
            InferResponse(request.model_name, request.model_version, request.id, error=error)
        )

    def _find(self) -> ModelVersion:
        name = self._request.model_name
        try:
            version = self._calls.find(name, self._request.model_version)
        except RequestError as error:
            raise RequestError(
                error.code, f"model {quoted(name)} is not ready: {error.message}"
            ) from None
        if version.spec.decoupled and not self._decoupled:
            raise RequestError(
                ErrorCode.UNSUPPORTED,
                f"model {quoted(name)} is decoupled, so that it may give any number of responses; "
                "call it with decoupled=True",
            )
        return version

    def _extend(self, count: int) -> None:
        self._credit += count
        if not self._ended:
            self._pass_on()

    def _pass_on(self) -> None:
        reply = self._reply
        while reply is not None and self._credit and reply.has_response:
            response = reply.receive_nowait()
            self._credit -= 1
            if response.final:
                reply.close()
                self._finish(response)
                return
            self._respond(response)

    def _finish(self, response: InferResponse) -> None:
        self._ended = True
        self._reply = None
        self.requests.clear()
        self._calls.ended(self)
        self._respond(response)


def _number(instance: Executor) -> int:
    number = instance.place.number
    assert number is not None, "a place comes from Calls.number"
    return number


def _cancelled() -> RequestError:
    return RequestError(ErrorCode.CANCELLED, "the call was cancelled before it was answered")


def _server_stops() -> RequestError:
    return RequestError(ErrorCode.UNAVAILABLE, "the server stops, and takes no more calls")
