"""The instance actor: one per loaded copy of a model. Inbox `Execute`, outbox `InstanceIdle`.

It lives on one device, takes one batch at a time, and answers every request of it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import TypeAlias, final

import outcome
import trio

from ..backends.base import (
    Batch,
    DeviceFaultError,
    ExecutesAsync,
    HearsSequenceEnds,
    ModelInstance,
    PostResponse,
    SequenceEnd,
)
from ..backends.fault_text import cut_to
from ..protocol.errors import ErrorCode, FailureReason, RequestError
from ..protocol.requests import InferResponse
from ..protocol.trace import Trace
from ._async_execution import run_async
from ._completion import CUT_OFF, Completion, nanoseconds
from ._device_link import Device
from ._doorbell import current_doorbell
from ._response_gate import ResponseGate, StalledError
from ._traced_execution import executed, executing
from .messages import Execute, Infer, InstanceIdle, Reschedule, Retry, SchedulerMessage

Inbox: TypeAlias = trio.MemoryReceiveChannel[Execute]
Outbox: TypeAlias = trio.MemorySendChannel[SchedulerMessage]

_logger = logging.getLogger(__name__)


@final
class Instance:
    """Executes batches on its device until its inbox closes.

    Lifetime: owns neither its channels nor its device, so that it can be restarted on the same
    channels. A fault of the model fails one batch; a fault of the device, a hanging one included,
    ends the actor. Requests that a device did not survive are given back to the scheduler once, if
    no response has left yet. However it ends, the other requests it holds are answered.

    Attributes:
      executing: What it executes now.
    """

    def __init__(
        self,
        *,
        index: int,
        name: str,
        inbox: Inbox,
        outbox: Outbox,
        device: Device,
        model: ModelInstance,
        completion: Completion,
        decoupled: bool = False,
        hang_s: float = inf,
        waited: Callable[[], bool] = lambda: False,
    ) -> None:
        self._index = index
        self._name = name
        self._inbox = inbox
        self._outbox = outbox
        self._device = device
        self._model = model
        self._async_model = (
            model if isinstance(model, ExecutesAsync) and model.executes_async else None
        )
        self._completion = completion
        self._decoupled = decoupled
        self._hang_s = hang_s
        self._waited = waited
        self.executing: Execute | None = None
        self._open: dict[Infer, Execute] = {}
        self._open_ended = trio.Event()
        self._gates: dict[Infer, ResponseGate] = {}  # of the open requests of a decoupled model
        self._closes: dict[Infer, Callable[[], None] | None] = {}  # how each was cancelled before
        self._loop_thread = threading.get_ident()

    def __repr__(self) -> str:
        return f"<Instance {self._name}: {len(self._open)} open>"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until the inbox closes and every request has ended."""
        task_status.started()
        if not self._decoupled:
            await self._serve()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._open_gates_when_cancelled)
            served = await outcome.acapture(self._serve)
            nursery.cancel_scope.cancel()
        served.unwrap()  # outside of the nursery, which would wrap what it raises into a group

    async def _open_gates_when_cancelled(self) -> None:
        """Let the model's threads go on, since whoever cancels waits for the job of one."""
        try:
            await trio.sleep_forever()
        finally:
            self._open_gates()

    def _open_gates(self) -> None:
        for gate in self._gates.values():
            gate.open()

    async def _serve(self) -> None:
        try:
            await self._report_idle()
            async for execute in self._inbox:
                try:
                    await self._execute(execute)
                except Exception as fault:
                    self._give_back(execute, fault)
                    raise
                await self._report_idle()
            while self._open:  # of a decoupled model, whose responses may come late
                self._open_ended = trio.Event()
                await self._open_ended.wait()
        except trio.Cancelled:
            self._fail_open(CUT_OFF)
            raise
        finally:
            self._fail_open(self._internal("ended before it answered the request"))

    async def _report_idle(self) -> None:
        await self._report(InstanceIdle(self._index))

    async def _report(self, message: SchedulerMessage) -> bool:
        """Tell the scheduler; False if it has ended, so that the inbox will close as well."""
        try:
            try:
                self._outbox.send_nowait(message)
            except trio.WouldBlock:
                await self._outbox.send(message)
        except trio.BrokenResourceError:
            return False
        return True

    def _give_back(self, execute: Execute, fault: Exception) -> None:
        """Let another instance execute what the device did not survive, once; fail the rest."""
        begun = not isinstance(fault, DeviceFaultError) or fault.begun
        infers = [
            infer
            for infer in execute.infers
            if infer in self._open and not infer.retried and not (self._decoupled and begun)
        ]
        error = self._internal(f"did not survive the request: {cut_to(str(fault))}")
        with suppress(trio.WouldBlock, trio.BrokenResourceError):
            self._outbox.send_nowait(Retry(self._index, infers, error, begun=begun))
            for infer in infers:
                del self._open[infer]
                if infer in self._gates:
                    infer.reply.on_close = self._closes[infer]
                    self._drop_gate(infer)
        self._fail_open(error)

    async def _execute(self, execute: Execute) -> None:
        for infer in execute.infers:
            self._open[infer] = execute
        if execute.ends:
            await self._device.run(self._tell_ends, execute.ends, hang_s=self._hang_s)
        if not execute.fillers:  # else each holds a position that means something to the model
            self._drop_cancelled(execute)
        if not execute.infers:
            return
        rows: Sequence[Infer | None] = execute.infers
        if execute.fillers:
            rows = [row for _, row in execute.rows()]
            batch = Batch([request for request, _ in execute.rows()])
        else:
            batch = Batch([infer.request for infer in execute.infers])
        if self._decoupled:
            batch.post, batch.has_room = self._post_to(rows)

        def end(error: RequestError | None) -> None:
            self._count_execution(batch, traces)
            if error is not None:
                self._fail_open(error)
            elif not self._decoupled:
                self._answer(execute, rows, batch)

        traces = executing(execute.infers)
        self.executing = execute
        try:
            if self._async_model is None:
                await self._device.run(
                    self._run_model, batch, then=end, hang_s=self._hang_s, excused=self._excused
                )
            else:
                error = await run_async(
                    self._async_model,
                    execute.infers,
                    batch,
                    failed=self._internal,
                    hang_s=self._hang_s,
                    excused=self._waited,
                )
                end(error)
        finally:
            self.executing = None
            executed(traces, batch)  # if it did not come to its end
        if batch.rescheduled:
            wanted = [rows[position] for position in sorted(batch.rescheduled)]
            await self._reschedule([infer for infer in wanted if infer is not None])

    def _excused(self) -> bool:
        """Whether the model had to wait for a client or a call lately: it does not hang then."""
        waited = [self._waited(), *[gate.was_held_back() for gate in self._gates.values()]]
        return any(waited)

    async def _reschedule(self, infers: Sequence[Infer]) -> None:
        """Let the scheduler have requests again that want another turn."""
        if self._decoupled:  # responses that were posted before come first
            posted = trio.Event()
            current_doorbell()(posted.set)
            await posted.wait()
        for infer in infers:
            if infer not in self._open:
                continue
            if self._decoupled:
                infer.reply.on_close = self._closes[infer]
                self._drop_gate(infer)
            if not await self._report(Reschedule(infer)):
                self._completion.fail(infer, CUT_OFF, trio.current_time())
            del self._open[infer]

    def _tell_ends(self, ends: Sequence[SequenceEnd]) -> None:
        """Tell the model, on the device's thread; a fault of it is logged, since nobody waits."""
        assert isinstance(self._model, HearsSequenceEnds)
        try:
            self._model.sequences_ended(ends)
        except DeviceFaultError:
            raise
        except (Exception, SystemExit):  # whatever a model may raise
            _logger.exception("model instance %r failed at the end of a sequence", self._name)

    def _drop_cancelled(self, execute: Execute) -> None:
        for infer in execute.infers:
            if infer.request.cancelled:
                break
        else:
            return
        now_s = trio.current_time()
        for infer in execute.infers:
            if infer.request.cancelled:
                del self._open[infer]
                self._completion.drop(infer, now_s)
        execute.infers = [infer for infer in execute.infers if not infer.request.cancelled]

    def _run_model(self, batch: Batch) -> RequestError | None:
        """Execute on the device's thread; the traceback, which holds the batch, stays there."""
        try:
            self._model.execute(batch)
        except DeviceFaultError:
            raise
        except RequestError as error:
            return RequestError(error.code, error.message, reason=FailureReason.BACKEND)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a model may raise
            return self._internal(f"failed with {type(error).__name__}: {error}")
        return None

    def _internal(self, what: str) -> RequestError:
        return RequestError(
            ErrorCode.INTERNAL,
            f"model instance '{self._name}' {what}",
            reason=FailureReason.BACKEND,
        )

    def _count_execution(self, batch: Batch, traces: Sequence[Trace]) -> None:
        if traces:
            executed(traces, batch)
        input_ns, infer_ns, output_ns = batch.compute_ns()
        self._completion.statistics.record_execution(
            batch_size=sum([request.batch_size or 1 for request in batch.requests]),
            compute_input_ns=input_ns,
            compute_infer_ns=infer_ns,
            compute_output_ns=output_ns,
        )

    def _fail_open(self, error: RequestError) -> None:
        """End everything in execution with an error."""
        now_s = trio.current_time()
        infers, self._open = list(self._open), {}
        self._open_gates()
        self._gates.clear()
        self._closes.clear()
        for infer in infers:
            self._completion.fail(infer, error, now_s)
            infer.request.cancelled = True  # for the model, which may still work on it

    def _answer(self, execute: Execute, rows: Sequence[Infer | None], batch: Batch) -> None:
        """End the requests of an executed batch, in order."""
        compute_ns = batch.compute_ns()
        now_s = trio.current_time()
        for position, (infer, response) in enumerate(zip(rows, batch.responses, strict=True)):
            if infer is None or position in batch.rescheduled:
                continue
            if response is None:
                del self._open[infer]
                self._completion.fail(infer, self._internal("gave no response"), now_s)
            else:
                response.final = True
                self._end(infer, response, execute, compute_ns, now_s)

    def _end(
        self,
        infer: Infer,
        response: InferResponse,
        execute: Execute,
        compute_ns: tuple[int, int, int],
        now_s: float,
    ) -> None:
        """End one request with its final response."""
        del self._open[infer]
        completion = self._completion
        if response.error is not None:
            response.error.reason = FailureReason.BACKEND
            completion.fail(infer, response.error, now_s)
        elif infer.request.cancelled:
            completion.drop(infer, now_s, response.states or {})
        else:
            completion.succeed(infer, response, execute.dispatched_s, compute_ns, now_s)

    def _post_to(self, rows: Sequence[Infer | None]) -> tuple[PostResponse, Callable[[int], bool]]:
        """Return what takes the responses of a decoupled model, and whether that would not wait.

        It may be called on any thread, and blocks one of the model while too many responses to a
        request wait to be received. An end never waits, nor does the event loop, where a lost
        response sender may be collected; nor does a response that is held back for another request,
        whose turn the wait could keep from coming: a request that makes too many of them fails.
        """
        ring = current_doorbell()
        loop_thread = self._loop_thread
        completion = self._completion
        gates: list[ResponseGate] = []
        for infer in rows:
            gate = ResponseGate(ordered=completion.ordered)
            gates.append(gate)
            if infer is None:
                gate.open()
                continue
            self._gates[infer] = gate
            self._closes[infer] = infer.reply.on_close
            infer.reply.on_receive = gate.leave
            infer.reply.on_close = partial(self._cancelled, infer)

        def post(index: int, response: InferResponse) -> None:
            infer = rows[index]
            bounded = not response.final and threading.get_ident() != loop_thread
            if infer is None:
                return
            try:
                if not bounded or gates[index].enter(waits=completion.is_first(infer)):
                    ring(self._posted, infer, response)
            except StalledError as error:
                ring(self._stalled, infer, str(error))

        def has_room(index: int) -> bool:
            infer = rows[index]
            return infer is None or not completion.is_first(infer) or gates[index].has_room()

        return post, has_room

    def _posted(self, infer: Infer, response: InferResponse) -> None:
        execute = self._open.get(infer)
        if execute is None:
            return  # it has ended with an error, or nobody waits for it
        now_s = trio.current_time()
        self._completion.count_response(infer, response, execute.dispatched_s, now_s)
        if not response.final:
            self._completion.send(infer, response)
            return
        executed_ns = nanoseconds(now_s - execute.dispatched_s)
        self._end(infer, response, execute, (0, executed_ns, 0), now_s)
        self._ended(infer)

    def _stalled(self, infer: Infer, why: str) -> None:
        """Give a request up whose responses nobody takes: others wait for the model."""
        if infer in self._open:
            del self._open[infer]
            error = RequestError(ErrorCode.UNAVAILABLE, why, reason=FailureReason.OTHER)
            self._completion.fail(infer, error, trio.current_time())
            self._ended(infer)
            infer.request.cancelled = True  # for the model, which may still work on it

    def _cancelled(self, infer: Infer) -> None:
        """End a request at once: its model may never do."""
        execute = self._open.pop(infer, None)
        if execute is not None:
            now_s = trio.current_time()
            self._completion.count_unanswered(infer, execute.dispatched_s, now_s)
            self._completion.drop(infer, now_s, {})
            self._ended(infer)

    def _ended(self, infer: Infer) -> None:
        self._drop_gate(infer)
        if not self._open:
            self._open_ended.set()

    def _drop_gate(self, infer: Infer) -> None:
        self._gates.pop(infer).open()
        del self._closes[infer]
