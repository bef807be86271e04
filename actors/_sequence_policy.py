"""Which slot a sequence gets, which of its requests is executed when, and how it ends.

Pure: no trio, no clock, no I/O. What is to be done outside piles up until it is taken: requests
that are refused, slots whose idle deadline moved, and ends of sequences that a model may hear.

A sequence never leaves its slot, and has at most one request at the instance, so that its state is
always that of the request before. A slot is free once its sequence is over and nothing of it is at
the instance. Sequences with one id are never executed side by side: one whose turn for a slot comes
before an earlier one with its id is over takes over the slot of that one.

Source: Triton `ModelSequenceBatching` in model_config.proto, and its sequence batcher.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import final

from ..backends.base import SequenceEnd, SequenceEndReason
from ..protocol.errors import RequestError
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.sequence_tensors import SequenceTensors
from ._queue_rules import QUEUE_SIZE_MAX
from ._sequence_actions import (
    SEQUENCE_CANCELLED,
    Dispatch,
    Refusal,
    SequenceSnapshot,
    no_new_sequences,
    sequence_lost,
    sequence_timed_out,
    sequence_unknown,
    too_many_requests,
)
from ._sequence_backlog import Backlog
from ._sequence_forming import Forming
from ._sequence_ids import SequenceIds
from ._sequence_slots import Sequence, Slot, SlotPool
from .messages import Infer


@final
class SequencePolicy:
    """The sequences of one model version.

    Args:
      model_name: Named in errors.
      instances: How many instances there are.
      slots: Slots an instance has.
      idle_max_s: How long a sequence may have no request before its slot is freed, in seconds,
        from its last request or, if that is later, its answer.
      iterative: Whether each request is a sequence of its own, executed again and again.
      tensors: What requests need beside the inputs of the client, and how states go on.
      make_forming: Makes what forms the batches of an instance.
      requests_max: Most requests that wait or execute.
    """

    def __init__(
        self,
        model_name: str,
        *,
        instances: int,
        slots: int,
        idle_max_s: float,
        iterative: bool,
        tensors: SequenceTensors,
        make_forming: Callable[[], Forming],
        requests_max: int = QUEUE_SIZE_MAX,
    ) -> None:
        self._model_name = model_name
        self._idle_max_s = idle_max_s
        self._iterative = iterative
        self._tensors = tensors
        self._requests_max = requests_max
        self._pool = SlotPool(instances, slots)
        self._forming = [make_forming() for _ in range(instances)]
        self._ids = SequenceIds()
        self._sequences: dict[Infer, Sequence] = {}  # of each request that waits or executes
        self._backlog = Backlog()
        self._stopping = False
        self._refusals: list[Refusal] = []
        self._moved: dict[Slot, None] = {}
        self._ends: list[list[SequenceEnd]] = [[] for _ in range(instances)]

    def __len__(self) -> int:
        """How many requests wait or execute."""
        return len(self._sequences)

    def __repr__(self) -> str:
        return f"<SequencePolicy {self._model_name}: {self.snapshot()}>"

    def snapshot(self) -> SequenceSnapshot:
        """Return how full it is."""
        pool = self._pool
        return SequenceSnapshot(len(pool), pool.used, len(self._backlog), len(self))

    def stop(self) -> None:
        """Take no new sequences; those under way may go on."""
        self._stopping = True

    def is_unfinished(self, request: InferRequest) -> bool:
        """Whether the sequence of a request takes requests: a START would end it early."""
        sequence = self._ids.latest(request.sequence_id)
        return sequence is not None and sequence.end_reason is None

    def add(self, infer: Infer, now_s: float) -> RequestError | None:
        """Queue one request, or return why it cannot be."""
        request = infer.request
        assert request.batch_size <= 1, "request_rules lets no larger request pass"
        if self._iterative and not request.sequence_id:
            request.sequence_id = self._ids.new_id()
            request.sequence_start, request.sequence_end = True, False
        error = self._fault_of(request)
        if error is not None:
            return error
        assert request.sequence_id, "request_rules lets no request without an id pass"
        infer.queued_s = now_s
        latest = self._ids.latest(request.sequence_id)
        if request.sequence_start:
            states = self._tensors.initial_states()
            sequence = self._ids.begin(request.sequence_id, states)
        else:
            assert latest is not None
            sequence = latest
        sequence.queue.append(infer)
        self._sequences[infer] = sequence
        if self._iterative or request.sequence_end:
            sequence.end_reason = SequenceEndReason.END_FLAG
        if sequence is latest:
            if sequence.slot is not None and len(sequence.queue) == 1:
                self._settle(sequence, now_s)
        elif not sequence.follows:
            self._place(sequence, now_s)
        elif latest is not None and not latest.queue:
            self._settle(latest, now_s)
        if request.timeout_us and sequence.slot is None:
            self._backlog.add_deadline(sequence, now_s + request.timeout_us / 1e6)
        return None

    def _fault_of(self, request: InferRequest) -> RequestError | None:
        if len(self._sequences) >= self._requests_max:
            return too_many_requests(self._requests_max, self._model_name)
        if request.sequence_start:
            return no_new_sequences(self._model_name) if self._stopping else None
        if not self.is_unfinished(request):
            return sequence_unknown(request.sequence_id, self._model_name)
        return None

    def _place(self, sequence: Sequence, now_s: float) -> None:
        """Give a sequence a slot, or else a place in the backlog."""
        slot = self._pool.take()
        if slot is None:
            self._backlog.append(sequence)
        else:
            self._take_turn(sequence, slot, now_s)

    def _take_turn(self, sequence: Sequence, slot: Slot, now_s: float) -> None:
        """Give a sequence a taken slot, unless an earlier one with its id is not over."""
        if sequence.predecessor is None:
            self._hold(slot, sequence, now_s)
        else:
            self._pool.give_back(slot)
            sequence.follows = True

    def _hold(self, slot: Slot, sequence: Sequence, now_s: float) -> None:
        slot.sequence, sequence.slot = sequence, slot
        sequence.follows = False
        self._settle(sequence, now_s)

    def _settle(self, sequence: Sequence, now_s: float) -> None:
        """Do what is next for a sequence; called after each change of it."""
        if sequence.executing is not None:
            return
        slot = sequence.slot
        if sequence.queue:
            if slot is not None:
                self._offer(slot, sequence, now_s)
        elif sequence.end_reason is not None:
            self._over(sequence, now_s)
        elif slot is not None:
            self._move_deadline(slot, now_s + self._idle_max_s)

    def _offer(self, slot: Slot, sequence: Sequence, now_s: float) -> None:
        self._move_deadline(slot, inf)
        request = sequence.queue[0].request
        self._tensors.complete(
            request,
            start=request.sequence_start,
            end=request.sequence_end,
            states=sequence.states,
        )
        self._forming[slot.instance].offer(slot, now_s)

    def _move_deadline(self, slot: Slot, idle_at_s: float) -> None:
        if slot.idle_at_s != idle_at_s:
            slot.idle_at_s = idle_at_s
            self._moved[slot] = None

    def _over(self, sequence: Sequence, now_s: float) -> None:
        """Let go of a sequence of which nothing is left; its slot goes to the next one."""
        assert sequence.end_reason is not None
        self._ids.remove(sequence)
        slot = sequence.slot
        if slot is not None:
            self._release(slot, sequence, now_s)
        else:
            self._backlog.remove(sequence)

    def _release(self, slot: Slot, sequence: Sequence, now_s: float) -> None:
        assert sequence.end_reason is not None
        if sequence.started:
            end = SequenceEnd(sequence.id, sequence.end_reason)
            self._ends[slot.instance].append(end)
        slot.sequence = sequence.slot = None
        self._move_deadline(slot, inf)
        follower = sequence.follower
        if follower is not None and not self._pool.is_lost(slot.instance):
            self._hold(slot, follower, now_s)
            return
        self._pool.give_back(slot)
        if follower is not None:
            follower.follows = False
            self._place(follower, now_s)
        self._promote(now_s)

    def _promote(self, now_s: float) -> None:
        while self._backlog:
            slot = self._pool.take()
            if slot is None:
                break
            self._take_turn(self._backlog.pop(), slot, now_s)

    def take(self, instance: int, now_s: float) -> Dispatch | None:
        """Remove and return the batch that is ripe for an instance, or None.

        Args:
          instance: The index of an idle instance.
          now_s: The time; `inf` makes everything ripe.
        """
        formed = self._forming[instance].take(now_s)
        if formed is None:
            return None
        infers: list[Infer] = []
        fresh: list[Infer] = []
        for slot in formed.slots:
            sequence = slot.sequence
            assert sequence is not None
            infer = sequence.executing = sequence.queue.popleft()
            infers.append(infer)
            if not sequence.resumed:
                fresh.append(infer)
            sequence.started = True
        return Dispatch(infers, fresh, formed.fillers)

    def is_ripe(self, instance: int, now_s: float) -> bool:
        """Whether `take` would return a batch."""
        return self._forming[instance].is_ripe(now_s)

    def ripe_at_s(self, instance: int) -> float:
        """When a batch of an instance ripens by waiting, after `take` found none; or `inf`."""
        return self._forming[instance].ripe_at_s()

    def take_ends(self, instance: int) -> list[SequenceEnd]:
        """Remove and return the ends of sequences that an instance has executed."""
        ends, self._ends[instance] = self._ends[instance], []
        return ends

    def take_refusals(self) -> list[Refusal]:
        """Remove and return the requests that end without an execution."""
        refusals, self._refusals = self._refusals, []
        return refusals

    def take_moved(self) -> list[Slot]:
        """Remove and return the slots whose `idle_at_s` changed."""
        moved, self._moved = list(self._moved), {}
        return moved

    def ended(self, infer: Infer, response: InferResponse, now_s: float) -> None:
        """Go on after the final response of a dispatched request; takes its states.

        An error of the model leaves the state as it was, and the sequence goes on, as it does when
        the request was cancelled while it was executed. One that was cancelled before that is
        missing from its sequence, which is over then, and so is one whose state nobody knows.
        """
        sequence = self._sequences.pop(infer, None)
        if sequence is None:
            return
        assert sequence.executing is infer
        sequence.executing = None
        states, response.states = response.states, None
        missing = states is None or (not states and sequence.states)
        if infer.request.cancelled and (self._iterative or missing):
            self._abandon(sequence, SequenceEndReason.CANCELLED, SEQUENCE_CANCELLED, now_s)
            return
        if states is not None:
            try:
                sequence.states = self._tensors.next_states(states, sequence.states)
            except RequestError as error:
                response.error = error
                response.outputs = []
                self._abandon(sequence, SequenceEndReason.ERROR, error, now_s)
                return
        self._settle(sequence, now_s)

    def reschedule(self, infer: Infer, now_s: float) -> None:
        """Queue a request again that was executed and is not answered: first in its sequence."""
        sequence = self._sequences[infer]
        assert sequence.executing is infer
        sequence.executing = None
        sequence.resumed = True
        infer.queued_s = now_s
        infer.request.sequence_start = infer.request.sequence_end = False
        sequence.queue.appendleft(infer)
        if infer.request.cancelled:
            self._abandon(sequence, SequenceEndReason.CANCELLED, SEQUENCE_CANCELLED, now_s)
        else:
            self._settle(sequence, now_s)

    def cancel(self, infer: Infer, now_s: float) -> None:
        """End the sequence of a request that waits and that nobody waits for any more.

        In a slot, the requests ahead of it are still executed.
        """
        sequence = self._sequences.get(infer)
        if sequence is not None and sequence.executing is not infer:
            ahead = 0 if sequence.slot is None else sequence.queue.index(infer)
            self._abandon(sequence, SequenceEndReason.CANCELLED, SEQUENCE_CANCELLED, now_s, ahead)

    def cancel_all(self, now_s: float) -> None:
        """Do `cancel` for all that nobody waits for; looks at every request."""
        for infer in [infer for infer in self._sequences if infer.request.cancelled]:
            self.cancel(infer, now_s)

    def _abandon(
        self,
        sequence: Sequence,
        reason: SequenceEndReason,
        error: RequestError,
        now_s: float,
        spared: int = 0,
    ) -> None:
        """End a sequence early: its waiting requests are refused, except for the first ones."""
        sequence.end_reason = reason
        slot = sequence.slot
        if slot is not None and not spared:
            self._forming[slot.instance].withdraw(slot)
        for infer in list(sequence.queue)[spared:]:
            sequence.queue.pop()
            del self._sequences[infer]
            self._refusals.append(Refusal(infer, error, sequence.resumed))
        if not spared:
            self._settle(sequence, now_s)

    def timeout_at_s(self) -> float:
        """When the next sequence that waits for a slot times out, in clock seconds; or `inf`."""
        return self._backlog.timeout_at_s()

    def expire(self, now_s: float) -> None:
        """Refuse the requests of sequences that waited too long for a slot."""
        while (sequence := self._backlog.next_expired(now_s)) is not None:
            waited_s = now_s - sequence.queue[0].queued_s
            error = sequence_timed_out(sequence.id, self._model_name, waited_s)
            self._abandon(sequence, SequenceEndReason.ERROR, error, now_s)

    def idle(self, number: int, generation: int, now_s: float) -> None:
        """End the sequence in a slot if it is the one that is meant, and still idle."""
        slot = self._pool.find(number)
        sequence = None if slot is None else slot.sequence
        if slot is None or sequence is None or sequence.generation != generation:
            return
        if slot.idle_at_s <= now_s:
            sequence.end_reason = SequenceEndReason.IDLE
            self._over(sequence, now_s)

    def lose(self, instance: int, now_s: float) -> None:
        """End all sequences of an instance, whose state is gone; use no slot of it for now.

        Those of which the instance has not got any request lose nothing and wait for another slot.
        """
        self._pool.lose(instance)
        held = [slot for slot in self._pool.of_instance(instance) if slot.sequence is not None]
        for slot in reversed(held):
            sequence = slot.sequence
            assert sequence is not None
            if sequence.started:
                error = sequence_lost(sequence.id, self._model_name)
                self._abandon(sequence, SequenceEndReason.ERROR, error, now_s)
            else:
                self._forming[instance].withdraw(slot)
                slot.sequence = sequence.slot = None
                self._pool.give_back(slot)
                self._backlog.put_back(sequence)
        self._promote(now_s)

    def restore(self, instance: int, now_s: float) -> None:
        """Use the slots of an instance again, if it was lost."""
        if self._pool.restore(instance):
            self._promote(now_s)

    def refuse_all(self, error: RequestError, now_s: float) -> None:
        """Refuse every request that waits; those that execute are answered by their instances."""
        for sequence in dict.fromkeys(self._sequences.values()):
            if sequence.queue:
                self._abandon(sequence, SequenceEndReason.UNLOAD, error, now_s)

    def make_room(self, now_s: float) -> None:
        """End the sequences that have no request, if others wait for their slots: for a stop."""
        if self._backlog:
            self.end_idle(now_s)

    def end_idle(self, now_s: float) -> None:
        """End every sequence that has no request, since its model is unloaded."""
        for sequence in self._ids.all_latest():
            if not sequence.queue and sequence.executing is None:
                sequence.end_reason = SequenceEndReason.UNLOAD
                self._over(sequence, now_s)
