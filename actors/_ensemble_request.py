"""One request of an ensemble: requests go to the composing models, and their responses come back.

What runs when is decided by `EnsembleRun`; here it is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias, final

import trio

from ..memory.budget import ByteBudget
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.model_spec import ModelSpec
from ..protocol.requests import InferRequest, InferResponse, RequestedOutput
from ..protocol.tensors import Shape, Tensor
from ._completion import CUT_OFF, Completion
from ._ensemble_graph import EnsembleGraph, Step
from ._ensemble_holdings import Holdings
from ._ensemble_limits import InflightLimit
from ._ensemble_run import ITERATIONS_MAX, Answer, EnsembleRun, StepCall
from ._wakeup import Wakeup
from .inference import submit
from .messages import Infer
from .reply import Reply
from .routing_table import ModelVersion

Find: TypeAlias = Callable[[str, str], ModelVersion]

PATIENCE_S: Final = 1.0
"""How long a step that is held back keeps its turn while no answer is received, in seconds. Clients
that read take far less from one answer to the next, and others wait no longer for one that does
not."""


@dataclass(frozen=True, slots=True)
class EnsembleParts:
    """What the requests of one ensemble share.

    Attributes:
      graph: Its data flow.
      spec: What its requests are checked against.
      completion: Ends its requests.
      find: Returns the READY version of a model by name and version, or raises.
      budget: Charged for the outputs of steps while they are held; None counts nothing.
      places: For requests between their first step and their end.
      limits: By step.
      to_client: Output -> its shape as a client sees it, from the shape that the steps see.
    """

    graph: EnsembleGraph
    spec: ModelSpec
    completion: Completion
    find: Find
    budget: ByteBudget | None
    places: InflightLimit[EnsembleRequest]
    limits: list[InflightLimit[StepCall]]
    to_client: dict[str, Callable[[Shape], Shape]]


@final
class EnsembleRequest:
    """Takes one request of an ensemble through its steps.

    It waits for a place before its first step, and for a turn before each. Once whoever asked has
    received nothing for `PATIENCE_S` while steps are held back, it steps aside: its place and the
    turns of those steps go to others for good. They cost no more than what `_has_room` lets in,
    and do not line up again, since whoever has a turn by then may wait for their models.
    """

    def __init__(self, parts: EnsembleParts, infer: Infer) -> None:
        self._parts = parts
        self._infer = infer
        self._run: EnsembleRun | None = None
        self._origin = 0
        self._holdings = Holdings(parts.budget)
        self._in_line = False  # for a place
        self._has_place = False
        self._held_back = False  # by an answer that waits to be received
        self._aside = False
        self._open: dict[StepCall, Reply] = {}
        self._turns: set[StepCall] = set()  # the open ones that have not given theirs back
        self._responded: dict[StepCall, None] = {}  # those with responses that were not taken
        self._queued: set[StepCall] = set()  # those that wait for their turn
        self._granted: list[StepCall] = []
        self._unreceived: deque[Answer] = deque()  # that wait for whoever asked
        self._compute_ns = [0, 0, 0]
        self._wakeup = Wakeup()
        self._ended = False
        infer.reply.on_close = self._cancelled
        infer.reply.on_receive = self._received

    async def run(self) -> None:
        """Work until the request has ended; it is answered even if this is cancelled."""
        try:
            self._line_up()
            while not self._ended:
                await self._wait()
                self._go_on()
        finally:
            self._fail(CUT_OFF)
            self._infer.reply.on_receive = None  # which knows this, which knows the reply

    async def _wait(self) -> None:
        """Wait for news; note if whoever asked takes too long."""
        if not self._held_back:
            await self._wakeup.wait()
            return
        with trio.move_on_after(PATIENCE_S) as patience:
            await self._wakeup.wait()
        self._aside = patience.cancelled_caught

    def _cancelled(self) -> None:
        """End at once, and with it every request to a composing model."""
        self._end()
        now_s = trio.current_time()
        if self._parts.graph.decoupled:
            self._parts.completion.count_unanswered(self._infer, self._infer.queued_s, now_s)
        self._parts.completion.drop(self._infer, now_s)

    def _received(self) -> None:
        if self._unreceived:  # none if it is an error
            self._holdings.let_go(self._unreceived.popleft().tensors.values())
        self._wakeup.set()

    def _line_up(self) -> None:
        if not self._ended:
            self._in_line = not self._parts.places.take(self, EnsembleRequest._placed)
            self._has_place = not self._in_line
            self._go_on()

    def _placed(self) -> None:
        self._in_line = False
        self._has_place = True
        self._wakeup.set()

    def _begin(self) -> None:
        request = self._infer.request
        plan = self._parts.graph.plan(output.name for output in request.outputs)
        self._origin = plan.origin
        self._run = EnsembleRun(self._parts.graph, plan, request.id, self._holdings)
        for call in self._run.start(request.inputs):
            self._start(call)

    def _go_on(self) -> None:
        """Start what may start now, and take the responses there is room for."""
        granted: list[StepCall] = []
        self._held_back = False
        try:
            if self._run is None and self._has_place:
                self._begin()
            granted, self._granted = self._granted, []
            while granted:
                self._send(granted.pop(0))
            taken = True
            while taken and not self._ended:
                taken = False
                for call in list(self._responded):
                    taken |= self._take_response(call)
        except RequestError as error:
            self._granted += granted
            self._fail(error)

    def _take_response(self, call: StepCall) -> bool:
        """Take one response of a step, if there is one and room for it."""
        reply = self._open.get(call)
        if reply is None:
            return False
        if not reply.has_response:
            del self._responded[call]
            return False
        if not self._has_room(call.step):
            self._hold_back(call)
            return False
        response = reply.receive_nowait()
        if response.error is not None:
            raise self._step_error(call.step, response.error)
        assert self._run is not None
        if response.final:
            self._close(call)
            for index, nanoseconds in enumerate(response.compute_ns):
                self._compute_ns[index] += nanoseconds
        elif not call.step.decoupled:
            raise self._step_error(call.step, _NOW_DECOUPLED)
        if response.empty:
            calls = self._run.end(call)
        else:
            calls = self._run.respond(
                call, response.outputs, response.parameters, final=response.final
            )
        self._answer(self._run)
        for following in calls:
            self._start(following)
        return True

    def _has_room(self, step: Step) -> bool:
        """Whether a response of a step may be taken, or its model is held back."""
        assert self._run is not None
        if not step.decoupled:
            return True
        waiting = len(self._unreceived) if self._origin == step.index else 0
        return self._run.live(step) + waiting < ITERATIONS_MAX

    def _hold_back(self, call: StepCall) -> None:
        if self._aside:
            self._give_back_turn(call)
            self._leave_place()
        elif self._unreceived and call in self._turns:
            self._held_back = self._parts.graph.inflight_max > 0

    def _start(self, call: StepCall) -> None:
        if self._parts.limits[call.step.index].take(call, self._grant):
            self._send(call)
        else:
            self._queued.add(call)

    def _grant(self, call: StepCall) -> None:
        self._queued.discard(call)
        self._granted.append(call)
        self._wakeup.set()

    def _send(self, call: StepCall) -> None:
        """Hand a request to a composing model."""
        self._turns.add(call)
        try:
            version = self._parts.find(call.step.model_name, call.step.version)
            reply = submit(version, self._request(call), trio.current_time())
        except RequestError as error:
            self._give_back_turn(call)
            raise self._step_error(call.step, _as_unavailable(error)) from None
        self._open[call] = reply
        reply.notify = partial(self._notified, call)
        if reply.has_response:  # a cached one
            self._notified(call)

    def _notified(self, call: StepCall) -> None:
        self._responded[call] = None
        self._wakeup.set()

    def _request(self, call: StepCall) -> InferRequest:
        step = call.step
        request = self._infer.request.without_inputs(step.model_name, step.version)
        request.outputs = tuple(RequestedOutput(name) for name, _ in call.outputs)
        for name, value in call.sequence.items():
            setattr(request, name, value)
        request.inputs = {
            name: _copy(tensor, name, tensor.shape) for name, tensor in call.inputs.items()
        }
        if self._infer.request.trace is not None:
            request.trace = self._infer.request.trace.child()
        return request

    def _answer(self, run: EnsembleRun) -> None:
        """Send what is ready: a sole answer once nothing runs any more, others at once."""
        if not (self._parts.graph.decoupled or run.done):
            return
        while run.answers and not self._ended:
            answer = run.answers.popleft()
            last = run.done and not run.answers
            self._respond(self._response(answer), answer, final=last)
        if run.done and not self._ended:
            response = InferResponse(
                self._parts.spec.name, self._parts.spec.version, self._infer.request.id
            )
            response.empty = True
            self._respond(response, Answer({}, {}), final=True)

    def _response(self, answer: Answer) -> InferResponse:
        spec = self._parts.spec
        outputs = [
            _copy(tensor, name, self._client_shape(name, tensor))
            for name, tensor in answer.tensors.items()
        ]
        response = InferResponse(spec.name, spec.version, self._infer.request.id, outputs)
        response.parameters = dict(answer.sequence)
        return response

    def _client_shape(self, name: str, tensor: Tensor) -> Shape:
        try:
            return self._parts.to_client[name](tensor.shape)
        except ValueError:
            raise RequestError(
                ErrorCode.INTERNAL,
                f"{self._parts.graph}: output '{name}' has the shape {list(tensor.shape)}, which "
                "its reshape does not fit",
            ) from None

    def _respond(self, response: InferResponse, answer: Answer, *, final: bool) -> None:
        response.final = final
        self._unreceived.append(answer)
        completion, infer = self._parts.completion, self._infer
        now_s = trio.current_time()
        if self._parts.graph.decoupled:
            completion.count_response(infer, response, infer.queued_s, now_s)
        if not final:
            completion.send(infer, response)
            return
        self._end()
        compute_ns = (self._compute_ns[0], self._compute_ns[1], self._compute_ns[2])
        completion.statistics.record_execution(
            batch_size=infer.request.batch_size,
            compute_input_ns=compute_ns[0],
            compute_infer_ns=compute_ns[1],
            compute_output_ns=compute_ns[2],
        )
        completion.succeed(infer, response, infer.queued_s, compute_ns, now_s)

    def _fail(self, error: RequestError) -> None:
        if not self._ended:
            self._end()
            self._parts.completion.fail(self._infer, error, trio.current_time())

    def _end(self) -> None:
        """Let go of everything; what still runs for this request is cancelled."""
        self._ended = True
        for call in self._queued:
            self._parts.limits[call.step.index].forget(call)
        self._queued.clear()
        for call, reply in list(self._open.items()):
            self._close(call)
            reply.close()
        for call in self._granted:
            self._parts.limits[call.step.index].give_back()
        self._granted.clear()
        if self._in_line:
            self._in_line = False
            self._parts.places.forget(self)
        self._leave_place()
        self._holdings.clear()
        self._run = None
        self._wakeup.set()

    def _close(self, call: StepCall) -> None:
        del self._open[call]
        self._responded.pop(call, None)
        self._give_back_turn(call)

    def _give_back_turn(self, call: StepCall) -> None:
        if call in self._turns:
            self._turns.remove(call)
            self._parts.limits[call.step.index].give_back()

    def _leave_place(self) -> None:
        if self._has_place:
            self._has_place = False
            self._parts.places.give_back()

    def _step_error(self, step: Step, error: RequestError) -> RequestError:
        return RequestError(
            error.code,
            f"{self._parts.graph}: {step}: {error.message}",
            reason=error.reason,
            retry_after_s=error.retry_after_s,
        )


def _copy(tensor: Tensor, name: str, shape: Shape) -> Tensor:
    """Return the same elements under another name, to be read only."""
    raw = tensor.given_raw
    if raw is not None:
        return Tensor(name, tensor.datatype, shape, raw=raw)
    array = tensor.array.reshape(shape).view()
    array.flags.writeable = False
    return Tensor(name, tensor.datatype, shape, array=array)


def _as_unavailable(error: RequestError) -> RequestError:
    """Return why a step cannot run; that its model is gone is no fault of the client."""
    if error.code is ErrorCode.NOT_FOUND:
        return RequestError(
            ErrorCode.UNAVAILABLE,
            error.message,
            reason=error.reason,
            retry_after_s=error.retry_after_s,
        )
    return error


_NOW_DECOUPLED = RequestError(
    ErrorCode.UNAVAILABLE,
    "the model gave several responses, which it could not when the ensemble was loaded; load the "
    "ensemble again",
)
