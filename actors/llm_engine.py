"""The engine actor: one per instance of a model that generates text. Inbox `Execute`.

Its outbox gets `InstanceIdle`, `InstanceRests`, `InstanceGone` and `Retry`. It takes requests while
it has seats, has a slot answer each (see `llm_slot`), and executes one step after the other on its
device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from math import inf
from time import perf_counter_ns
from typing import TypeAlias, final

import outcome
import trio

from ..backends.base import DeviceFaultError
from ..backends.fault_log import FaultLog
from ..backends.fault_text import cut_to
from ..backends.llm.planner import StepPlanner
from ..backends.llm.steps import GeneratesTokens, SequenceStart, StepPlan, StepResult, TokenEvent
from ..protocol.errors import FailureReason, RequestError
from ..protocol.llm_statistics import LlmStatistics
from ._completion import Completion
from ._device_link import Device
from ._llm_preparation import TextPreparation
from ._wakeup import Wakeup
from ._worker_threads import RunInThread
from .llm_slot import LlmSlot, SlotSurroundings
from .messages import Execute, InstanceGone, InstanceIdle, InstanceRests, Retry, SchedulerMessage

Inbox: TypeAlias = trio.MemoryReceiveChannel[Execute]
Outbox: TypeAlias = trio.MemorySendChannel[SchedulerMessage]

LOOK_AHEAD = 2
"""Requests that an engine takes beside those that its rows hold: as many rows rarely come free in
one step, and the next requests have their tokens by then. More would leave less to the queue, which
knows priorities and limits."""


@final
class LlmEngine:
    """Generates text on its device until its inbox closes.

    Between two steps every slot with news deals with it, and whoever receives responses has one
    turn. So what a token leads to (a stop text, the end of a client that closes its reply when it
    gets a response) frees state before the next step is planned, whatever the order in which the
    event loop runs its tasks.

    Lifetime: owns neither its channels nor its device, so that it can be restarted on the same
    channels. A fault of the model fails the texts of one step; a fault of the device, a hanging one
    included, ends the actor. Requests that a device did not survive are given back to the scheduler
    once, if no response has left yet. However it ends, the other requests it holds are answered.
    """

    def __init__(
        self,
        *,
        index: int,
        name: str,
        inbox: Inbox,
        outbox: Outbox,
        device: Device,
        model: GeneratesTokens,
        completion: Completion,
        run_in_thread: RunInThread,
        hang_s: float = inf,
        waited: Callable[[], bool] = lambda: False,
    ) -> None:
        self._index = index
        self._name = name
        self._inbox = inbox
        self._outbox = outbox
        self._device = device
        self._model = model
        self._completion = completion
        self._hang_s = hang_s
        self._waited = waited
        self._faults = FaultLog()  # of the device's thread
        self._planner = StepPlanner(model.limits)
        statistics = completion.statistics
        self._statistics = statistics.llm = statistics.llm or LlmStatistics()
        self._gauges = self._statistics.engine(index)
        self._preemptions = 0
        self._surroundings = SlotSurroundings(
            name=name,
            sequences=self,
            preparation=TextPreparation(
                model.text, model.limits, model.sampling_defaults, run_in_thread
            ),
            text=model.text,
            completion=completion,
            statistics=self._statistics,
        )
        self._seats = model.limits.rows + LOOK_AHEAD
        self._slots: dict[LlmSlot, None] = {}
        self._by_sequence: dict[int, LlmSlot] = {}
        self._unadmitted: dict[int, LlmSlot] = {}
        self._unsettled: set[LlmSlot] = set()
        self._cancellations_s: list[float] = []  # since the last plan
        self._ids = count(1)
        self._rests = True
        self._closed = False
        self._work = Wakeup()
        self._seat_free = Wakeup()
        self._all_settled = Wakeup()

    def __repr__(self) -> str:
        return f"<LlmEngine {self._name}: {len(self._slots)} requests, {self._planner!r}>"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until the inbox closes and every request has ended."""
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._take_requests, nursery)
                served = await outcome.acapture(self._serve)
                self._end_slots(served)
                nursery.cancel_scope.cancel()
            served.unwrap()  # outside of the nursery, which would wrap what it raises into a group
        finally:
            self._statistics.remove_engine(self._index)

    async def _take_requests(self, nursery: trio.Nursery) -> None:
        with suppress(trio.EndOfChannel):
            while True:
                try:  # what was sent to the engine before this one, which did not live to take it
                    execute = self._inbox.receive_nowait()
                except trio.WouldBlock:
                    await self._offer_seat()
                    execute = await self._inbox.receive()
                self._begin(execute, nursery)
        self._closed = True
        self._work.set()

    def _begin(self, execute: Execute, nursery: trio.Nursery) -> None:
        for infer in execute.infers:
            slot = LlmSlot(infer, execute.dispatched_s, self._surroundings)
            self._slots[slot] = None
            self._rests = False
            slot.begin()
            nursery.start_soon(slot.run)

    async def _offer_seat(self) -> None:
        while len(self._slots) >= self._seats:
            await self._seat_free.wait()
        await self._report(InstanceIdle(self._index, executes=bool(self._slots)))

    async def _report(self, message: SchedulerMessage) -> None:
        with suppress(trio.BrokenResourceError):  # the scheduler ended, so the inbox closes as well
            try:
                self._outbox.send_nowait(message)
            except trio.WouldBlock:
                await self._outbox.send(message)

    def _end_slots(self, served: outcome.Outcome[None]) -> None:
        """Have what is left answered, here or by another instance."""
        fault = served.error if isinstance(served, outcome.Error) else None
        if not isinstance(fault, Exception):
            return  # none is left, or each cuts itself off when it is cancelled
        with suppress(trio.WouldBlock, trio.BrokenResourceError):
            # Before the requests come back: what reported a free seat would get them again.
            self._outbox.send_nowait(InstanceGone(self._index))
        error = self._surroundings.internal(f"did not survive the request: {cut_to(str(fault))}")
        for begun in (True, False):
            slots = [slot for slot in self._slots if slot.began is begun]
            self._give_back([slot for slot in slots if slot.can_be_given_back], error, begun=begun)
        for slot in list(self._slots):
            slot.fail(error)

    def _give_back(self, slots: Sequence[LlmSlot], error: RequestError, *, begun: bool) -> None:
        infers = [slot.infer for slot in slots]
        with suppress(trio.WouldBlock, trio.BrokenResourceError):
            if infers:
                self._outbox.send_nowait(Retry(self._index, infers, error, begun=begun))
            for slot in slots:
                slot.give_back()

    # The steps.

    async def _serve(self) -> None:
        while True:
            now_s = trio.current_time()
            plan = self._planner.plan(now_s)
            self._count_releases(now_s)
            self._note_admissions()
            self._set_gauges()
            if plan is not None:
                await self._step(plan)
                await self._settle()
            elif self._slots or not self._closed:
                if not self._slots and not self._rests:
                    self._rests = True
                    await self._report(InstanceRests(self._index))
                await self._work.wait()
            else:
                return

    async def _step(self, plan: StepPlan) -> None:
        start_ns = perf_counter_ns()
        result = await self._device.run(
            self._run_model, plan, hang_s=self._hang_s, excused=self._waited
        )
        if isinstance(result, RequestError):
            for event in self._planner.fail(plan, result.message):
                if event.sequence_id in self._by_sequence:  # else its request failed just before
                    self._by_sequence[event.sequence_id].fail(result)
            return
        self._count_step(plan, result, perf_counter_ns() - start_ns)
        news: dict[LlmSlot, list[TokenEvent]] = {}
        for event in self._planner.commit(plan, result):
            news.setdefault(self._by_sequence[event.sequence_id], []).append(event)
        for slot, events in news.items():
            self._unsettled.add(slot)
            slot.deliver(events)

    def _run_model(self, plan: StepPlan) -> StepResult | RequestError:
        """Do a step on the device's thread; the traceback stays there."""
        try:
            return self._model.step(plan)
        except DeviceFaultError:
            raise
        except RequestError as error:
            return RequestError(error.code, error.message, reason=FailureReason.BACKEND)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a model may raise
            fault = self._surroundings.internal(f"failed with {type(error).__name__}: {error}")
            self._faults.note(fault.message, error)
            return fault

    async def _settle(self) -> None:
        """Let slots deal with what the step has brought, and receivers with what they sent."""
        while self._unsettled:
            await self._all_settled.wait()
        await trio.lowlevel.checkpoint()

    def _count_releases(self, now_s: float) -> None:
        for cancelled_s in self._cancellations_s:
            self._statistics.record_release(now_s - cancelled_s)
        self._cancellations_s.clear()

    def _note_admissions(self) -> None:
        for sequence_id, slot in list(self._unadmitted.items()):
            facts = self._planner.facts(sequence_id)
            if facts.admitted_s is not None:
                del self._unadmitted[sequence_id]
                slot.admitted(sequence_id, facts.admitted_s, facts.cached_tokens)

    def _count_step(self, plan: StepPlan, result: StepResult, took_ns: int) -> None:
        if not (plan.decodes or plan.prefills):
            return  # the model was not asked for anything
        self._statistics.record_step(
            took_ns,
            prefill_ns=result.prefill_ns,
            decode_ns=result.decode_ns,
            sample_ns=result.sample_ns,
        )
        self._completion.statistics.record_execution(
            batch_size=len(plan.decodes) + len(plan.prefills),
            compute_input_ns=0,
            compute_infer_ns=result.prefill_ns + result.decode_ns,
            compute_output_ns=result.sample_ns,
        )

    def _set_gauges(self) -> None:
        planner, gauges, limits = self._planner, self._gauges, self._model.limits
        gauges.running = planner.running
        gauges.waiting = planner.waiting
        gauges.paused = planner.paused
        gauges.kv_used_bytes = planner.kv_used_bytes
        gauges.kv_cached_bytes = planner.kv_cached_bytes
        gauges.kv_budget_bytes = planner.kv_budget_bytes
        gauges.kv_capacity_tokens = limits.capacity_tokens
        while self._preemptions < planner.preemptions:
            self._preemptions += 1
            self._statistics.record_preemption()

    # For its slots: see `Sequences`.

    def next_id(self) -> int:
        """Return the id of another text."""
        return next(self._ids)

    def add(self, slot: LlmSlot, start: SequenceStart) -> None:
        """Take a text.

        Raises:
          RequestError: it can never be generated.
        """
        self._planner.add(start)
        self._by_sequence[start.id] = self._unadmitted[start.id] = slot
        self._work.set()

    def remove(self, sequence_id: int) -> None:
        """End a text; its state is free for the next step."""
        self._planner.remove(sequence_id)
        self._unadmitted.pop(sequence_id, None)
        self._by_sequence.pop(sequence_id, None)
        self._work.set()

    def cancelled(self, at_s: float) -> None:
        """Note since when nobody waits for texts that are removed."""
        self._cancellations_s.append(at_s)

    def pause(self, sequence_id: int) -> None:
        """Let a text rest from the next step on."""
        self._planner.pause(sequence_id)

    def resume(self, sequence_id: int) -> None:
        """Let a text go on from the next step on."""
        self._planner.resume(sequence_id)
        self._work.set()

    def settled(self, slot: LlmSlot) -> None:
        """Note that a slot has done with what was delivered to it."""
        if slot in self._unsettled:
            self._unsettled.remove(slot)
            if not self._unsettled:
                self._all_settled.set()

    def ended(self, slot: LlmSlot) -> None:
        """Note that a slot needs nothing any more, and leaves its seat."""
        del self._slots[slot]
        self.settled(slot)
        self._set_gauges()
        self._seat_free.set()
        self._work.set()
