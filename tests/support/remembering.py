"""A model that remembers what belongs to a sequence, its configurations, and requests to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
import trio

from tritrio.backends.base import Batch, InstancePlace, ModelSource, SequenceEnd
from tritrio.protocol.errors import RequestError
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferRequest, InferResponse
from tritrio.protocol.tensors import Tensor

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


def error_of(response: InferResponse) -> RequestError:
    """The error in a response that failed."""
    assert response.error is not None
    return response.error


BOTH = pytest.mark.parametrize("strategy", [direct, oldest])
"""For tests of what holds with either strategy."""


class RememberingBackend:
    """Makes instances of one `Remembering`."""

    name = "remember"
    stacks_inputs = True
    cpu_instance_count = 1

    def __init__(self, model: Remembering) -> None:
        self._model = model

    def complete_config(self, source: ModelSource, config: pb.ModelConfig) -> pb.ModelConfig:
        del source
        return config

    def create_instance(
        self, source: ModelSource, config: pb.ModelConfig, place: InstancePlace
    ) -> RememberingInstance:
        del source, config
        return RememberingInstance(self._model, int(place.name[-1]))
