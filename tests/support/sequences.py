"""A sequence batcher, real instances on fake devices, and a model that remembers sequences."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

import numpy as np
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.fake_device import FakeDeviceDiedError, FakeDevices, Seconds
from tritrio.actors._completion import CUT_OFF, Completion
from tritrio.actors._completion_order import CompletionOrder
from tritrio.actors._sequence_config import sequence_policy
from tritrio.actors.instance import Instance
from tritrio.actors.messages import (
    Cancel,
    Execute,
    Infer,
    InstanceGone,
    SchedulerMessage,
    Stop,
)
from tritrio.actors.reply import Reply
from tritrio.actors.sequence_batcher import SequenceBatcher
from tritrio.backends.base import Batch, InstancePlace, SequenceEnd
from tritrio.protocol.config_rules import instances
from tritrio.protocol.model_spec import ModelSpec
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferRequest, InferResponse
from tritrio.protocol.sequence_tensors import SequenceTensors
from tritrio.protocol.statistics import ModelStatistics
from tritrio.protocol.tensors import Tensor

INBOX_CAPACITY = 8192
Strategy: TypeAlias = Callable[..., pb.ModelSequenceBatching]
KINDS = pb.ModelSequenceBatchingControlKind


def control(name: str, kind: KINDS) -> pb.ModelSequenceBatchingControlInput:
    one = pb.ModelSequenceBatchingControl(kind=kind, int32_false_true=[0, 1])
    if kind == KINDS.CONTROL_SEQUENCE_CORRID:
        one = pb.ModelSequenceBatchingControl(kind=kind, data_type=pb.DataType.TYPE_STRING)
    return pb.ModelSequenceBatchingControlInput(name=name, control=[one])


def direct(delay_ticks: int = 0, utilization: float = 0.0) -> pb.ModelSequenceBatching:
    """The strategy `direct`."""
    strategy = pb.ModelSequenceBatchingStrategyDirect(
        max_queue_delay_microseconds=delay_ticks * 15625 // 16,
        minimum_slot_utilization=utilization,
    )
    return pb.ModelSequenceBatching(direct=strategy)


def oldest(
    candidates: int = 0, *, delay_ticks: int = 0, preferred: tuple[int, ...] = (), **fields: Any
) -> pb.ModelSequenceBatching:
    """The strategy `oldest`."""
    strategy = pb.ModelSequenceBatchingStrategyOldest(
        max_candidate_sequences=candidates,
        max_queue_delay_microseconds=delay_ticks * 15625 // 16,
        preferred_batch_size=list(preferred),
        **fields,
    )
    return pb.ModelSequenceBatching(oldest=strategy)


def sequence_config(
    batching: pb.ModelSequenceBatching,
    *,
    max_batch_size: int = 4,
    count: int = 1,
    idle_ticks: int = 1024,
    iterative: bool = False,
    dims: tuple[int, ...] = (1,),
    implicit: bool = True,
    decoupled: bool = False,
) -> pb.ModelConfig:
    """The normalised configuration of a model whose state is the history of a sequence."""
    batching.max_sequence_idle_microseconds = idle_ticks * 15625 // 16
    batching.iterative_sequence = iterative
    batching.control_input = [
        control("START", KINDS.CONTROL_SEQUENCE_START),
        control("END", KINDS.CONTROL_SEQUENCE_END),
        control("READY", KINDS.CONTROL_SEQUENCE_READY),
        control("CORRID", KINDS.CONTROL_SEQUENCE_CORRID),
    ]
    if implicit:
        batching.state = [
            pb.ModelSequenceBatchingState(
                input_name="PAST",
                output_name="HISTORY",
                data_type=pb.DataType.TYPE_STRING,
                dims=[1],
                initial_state=[
                    pb.ModelSequenceBatchingInitialState(
                        data_type=pb.DataType.TYPE_STRING, dims=[1], zero_data=True, name="zero"
                    )
                ],
            )
        ]
    int32 = pb.DataType.TYPE_INT32
    return pb.ModelConfig(
        name="model",
        backend="remember",
        max_batch_size=max_batch_size,
        input=[pb.ModelInput(name="INPUT0", data_type=int32, dims=list(dims))],
        output=[pb.ModelOutput(name="OUTPUT0", data_type=pb.DataType.TYPE_STRING, dims=[1])],
        instance_group=[
            pb.ModelInstanceGroup(name="model", count=count, kind=pb.ModelInstanceGroupKind.CPU)
        ],
        sequence_batching=batching,
        model_transaction_policy=pb.ModelTransactionPolicy(decoupled=decoupled),
    )


def history(*numbers: int) -> list[int]:
    """What the model answers to the last of these requests of one sequence."""
    return list(numbers)


class Remembering:
    """A model whose answer is the history of the sequence, from its state or from its own memory.

    Attributes:
      executed: (virtual time at the end, instance index, what is in each row) of each batch: a
        request's number, with ">" in front of the first and "." behind the last of a sequence, or
        "-" for a filler.
      ends: (instance index, sequence id, reason) of each end it heard of.
      before: Called with each batch; may raise.
      again: Numbers of requests -> how often they want to be executed again.
      instances: All its instances, in the order they were made.
      state_shape: What its states have.
      holds: For a decoupled model: numbers of requests that are answered by hand, with their
        batch and index.
    """

    def __init__(self, *, implicit: bool, state_shape: tuple[int, ...]) -> None:
        self.implicit = implicit
        self.executed: list[tuple[float, int, list[str]]] = []
        self.ends: list[tuple[int, int | str, str]] = []
        self.before: Callable[[Batch], None] = lambda _: None
        self.again: dict[int, int] = {}
        self.instances: list[RememberingInstance] = []
        self.state_shape: tuple[int, ...] = state_shape
        self.holds: dict[int, tuple[Batch, int] | None] = {}

    @property
    def batches(self) -> list[list[str]]:
        return [rows for _, _, rows in self.executed]


class RememberingInstance:
    """One instance of `Remembering`."""

    hears_sequence_ends = True

    def __init__(self, model: Remembering, index: int) -> None:
        self._model = model
        self._index = index
        self.memory: dict[bytes, bytes] = {}
        model.instances.append(self)

    def load(self) -> None:
        """Nothing to do."""

    def unload(self) -> None:
        """Nothing to do."""

    def sequences_ended(self, ends: Any) -> None:
        for end in ends:
            assert isinstance(end, SequenceEnd)
            self._model.ends.append((self._index, end.sequence_id, end.reason.value))
            self.memory.pop(str(end.sequence_id).encode(), None)

    def execute(self, batch: Batch) -> None:
        rows = [self._row(request) for request in batch.requests]
        self._model.executed.append((trio.current_time(), self._index, rows))
        self._model.before(batch)
        for index, request in enumerate(batch.requests):
            if rows[index] == "-":
                batch.respond(index, InferResponse("model", "1"))
                continue
            number = number_of(request)
            if self._model.again.get(number, 0) > 0:
                self._model.again[number] -= 1
                self.answer(request)  # which it remembers
                batch.rescheduled.add(index)
            elif number in self._model.holds:
                self._model.holds[number] = (batch, index)
            else:
                batch.respond(index, self.answer(request))

    def _row(self, request: InferRequest) -> str:
        ready, start, end = [
            bool(request.inputs[name].array.item()) for name in ("READY", "START", "END")
        ]
        if not ready:
            assert not start
            assert not end
            assert request.inputs["CORRID"].array.item() == b""
            assert not request.inputs["INPUT0"].array.any()
            return "-"
        assert request.inputs["CORRID"].array.item() == str(request.sequence_id).encode()
        return ">" * start + str(number_of(request)) + "." * end

    def answer(self, request: InferRequest) -> InferResponse:
        key = request.inputs["CORRID"].array.item()
        if self._model.implicit:
            past = request.inputs["PAST"].array.item()
        else:
            past = b"" if request.sequence_start else self.memory[key]
        value = self.memory[key] = past + b"%d " % number_of(request)
        array = np.array([value], np.object_)
        tensor = Tensor("OUTPUT0", "BYTES", (1, 1), array=array.reshape(1, 1))
        response = InferResponse("model", "1", request.id, [tensor])
        if self._model.implicit:
            shape = self._model.state_shape
            state = Tensor("HISTORY", "BYTES", shape, array=array.reshape(shape))
            response.states = {"HISTORY": state}
        return response


def number_of(request: InferRequest) -> int:
    return int(request.inputs["INPUT0"].array.flat[0])


def answered(response: InferResponse) -> list[int]:
    """The history in a response that succeeded."""
    assert response.error is None, response.error
    assert response.states is None
    return [int(number) for number in response.outputs[0].array.item().split()]


def numbered(
    number: int,
    sequence_id: int | str,
    flags: str = "",
    *,
    width: int = 1,
    timeout_us: int = 0,
) -> InferRequest:
    """Request `number` of a sequence; flags: ">" for START, "." for END."""
    request = InferRequest("model")
    request.id = str(number)
    request.sequence_id = sequence_id
    request.sequence_start = ">" in flags
    request.sequence_end = "." in flags
    request.timeout_us = timeout_us
    array = np.full((1, width), number, np.int32)
    request.inputs = {"INPUT0": Tensor("INPUT0", "INT32", array.shape, array=array)}
    return request


class Sequences:
    """A sequence batcher and its instances, ready for requests.

    Attributes:
      restarts_after_s: How long the restart of an instance that died takes; None is for ever.
    """

    def __init__(self, config: pb.ModelConfig, seconds: Seconds | float, inbox: int) -> None:
        self.config = config
        self.spec = ModelSpec.from_config(config, 1)
        assert config.sequence_batching is not None
        self.model = Remembering(
            implicit=bool(config.sequence_batching.state),
            state_shape=(1, 1) if config.max_batch_size else (1,),
        )
        self.statistics = ModelStatistics()
        strategy = config.sequence_batching.oldest
        ordered = strategy is not None and strategy.preserve_ordering
        self.completion = Completion(
            "model", "1", self.statistics, CompletionOrder() if ordered else None
        )
        self.to_batcher, receive = trio.open_memory_channel[SchedulerMessage](inbox)
        count = len(list(instances(config)))
        self.links = [trio.open_memory_channel[Execute](1) for _ in range(count)]
        self.policy = sequence_policy(
            config, self.spec, tensors=SequenceTensors(config, {}), instances=count
        )
        self.batcher = SequenceBatcher(
            inbox=receive,
            to_inbox=self.to_batcher,
            outboxes=[outbox for outbox, _ in self.links],
            policy=self.policy,
            completion=self.completion,
            hears_ends=lambda _: True,
        )
        self.devices = FakeDevices(seconds)
        self.restarts_after_s: float | None = 0.0
        self.start_s = trio.current_time()
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    for index in range(len(self.links)):
                        nursery.start_soon(self._run_instance, index)
                    await nursery.start(self.batcher.run)
                    task_status.started()
        finally:
            self.batcher.close()
            for _, inbox in self.links:
                self._answer_unreceived(inbox)
            self.ended.set()

    def _answer_unreceived(self, inbox: trio.MemoryReceiveChannel[Execute]) -> None:
        """Answer a batch that was sent and never received, as the slot of an instance does."""
        with inbox, suppress(trio.WouldBlock, trio.EndOfChannel):
            for infer in inbox.receive_nowait().infers:
                self.completion.fail(infer, CUT_OFF, trio.current_time())

    async def _run_instance(self, index: int) -> None:
        place = InstancePlace(f"model_{index}")
        while True:
            device = self.devices(place)
            device.start()
            instance = Instance(
                index=index,
                name=place.name,
                inbox=self.links[index][1],
                outbox=self.to_batcher,
                device=device,
                model=RememberingInstance(self.model, index),
                completion=self.completion,
                decoupled=self.spec.decoupled,
            )
            try:
                await instance.run()
            except FakeDeviceDiedError:
                await self.to_batcher.send(InstanceGone(index))
                if self.restarts_after_s is None:
                    return
                await trio.sleep(self.restarts_after_s)
            else:
                return

    def submit(
        self, number: int, sequence_id: int | str, flags: str = "", **attributes: Any
    ) -> Reply:
        """Hand one request in, as a model version does."""
        request = numbered(number, sequence_id, flags, **attributes)
        infer = Infer(request, Reply(request), trio.current_time())
        self.to_batcher.send_nowait(infer)
        self.statistics.pending_count += 1
        infer.reply.on_close = lambda: self.cancel(infer)
        return infer.reply

    def cancel(self, infer: Infer) -> None:
        with suppress(trio.WouldBlock, trio.BrokenResourceError):
            self.to_batcher.send_nowait(Cancel(infer))

    async def ask(
        self, number: int, sequence_id: int | str, flags: str = "", **attributes: Any
    ) -> InferResponse:
        """Hand one request in and wait for its answer."""
        return await self.submit(number, sequence_id, flags, **attributes).receive()

    async def stop(self, drain_s: float) -> None:
        """Stop as a model does, and wait for the end."""
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + drain_s)
        with suppress(trio.BrokenResourceError):  # it has ended
            await self.to_batcher.send(Stop())
        await self.ended.wait()

    def elapsed_s(self) -> float:
        return trio.current_time() - self.start_s

    def left_s(self) -> list[float]:
        """When each batch ended, since the start."""
        return [end_s - self.start_s for end_s, _, _ in self.model.executed]


@asynccontextmanager
async def sequences(
    config: pb.ModelConfig,
    *,
    seconds: Seconds | float = 0.0,
    drain_s: float = 60.0,
    inbox: int = INBOX_CAPACITY,
) -> AsyncIterator[Sequences]:
    """Serve a model of sequences on virtual time; at the end it drains."""
    served = Sequences(config, seconds, inbox)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await wait_all_tasks_blocked()  # so that all instances are idle
        yield served
        await served.stop(drain_s)
    assert served.statistics.pending_count == 0
    snapshot = served.batcher.snapshot()
    assert (snapshot.requests, snapshot.backlog) == (0, 0)
