"""Test backends as whole models: the examples of their page, scheduled on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from tests.support.fake_device import FakeDevices
from tests.support.testing_models import example_config
from tritrio.actors._model_services import ModelServices
from tritrio.actors.messages import Infer
from tritrio.actors.model import Model, ModelDefinition
from tritrio.actors.reply import Reply
from tritrio.actors.routing_table import ModelState
from tritrio.backends.base import InstancePlace, ModelSource
from tritrio.backends.registry import get_backend
from tritrio.protocol.errors import ErrorCode
from tritrio.protocol.pb.inference import (
    ModelConfig,
    ModelSequenceBatchingStrategyDirect,
    ModelSequenceBatchingStrategyOldest,
)
from tritrio.protocol.request_rules import validate
from tritrio.protocol.requests import InferRequest, InferResponse
from tritrio.protocol.statistics import ModelStatistics
from tritrio.protocol.tensors import Tensor

TAKES_S = 0.25


class Served:
    """One model, ready for requests; every batch takes TAKES_S."""

    def __init__(self, config: ModelConfig) -> None:
        source = ModelSource(config.name, 1, Path("/m"), Path("/m/1"))
        self.batches: list[tuple[str, int]] = []  # instance and rows
        devices = FakeDevices(lambda place, batch: self._note(place, len(batch.requests)))
        services = ModelServices(device_factory=devices)
        definition = ModelDefinition(source, config, get_backend(config.backend), services=services)
        self.model = Model(definition, report=lambda: None)

    def _note(self, place: InstancePlace, rows: int) -> float:
        self.batches.append((place.name, rows))
        return TAKES_S

    @property
    def statistics(self) -> ModelStatistics:
        return self.model.version.statistics

    def submit(
        self, sequence_id: int = 0, flags: str = "", **inputs: list[int] | list[list[int]]
    ) -> Reply:
        version = self.model.version
        request = InferRequest(version.name)
        request.sequence_id = sequence_id
        request.sequence_start, request.sequence_end = ">" in flags, "." in flags
        for name, values in inputs.items():
            array = np.array(values, np.int32)
            request.inputs[name] = Tensor(name, "INT32", array.shape, array=array)
        validate(request, version.spec)
        infer = Infer(request, Reply(request), trio.current_time())
        version.submit(infer)
        return infer.reply

    async def ask(
        self, sequence_id: int, flags: str, **inputs: list[int] | list[list[int]]
    ) -> list[int] | str:
        return value_of(await self.submit(sequence_id, flags, **inputs).receive())


def value_of(response: InferResponse) -> list[int] | str:
    """All elements of the one output, or the error."""
    if response.error is not None:
        return f"{response.error.code.name}: {response.error.message}"
    assert response.states is None
    (tensor,) = response.outputs
    values: list[int] = tensor.array.ravel().tolist()
    return values


@asynccontextmanager
async def serving(config: ModelConfig) -> AsyncIterator[Served]:
    served = Served(config)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.model.run)
        assert served.model.version.state is ModelState.READY, served.model.version.reason
        yield served
        await served.model.stop(trio.current_time() + 60.0)


async def test_sequences_side_by_side_keep_their_rows(autojump_clock: MockClock) -> None:
    async with serving(example_config("custom_sequence_int32")) as served:
        for step in range(1, 4):
            replies = [
                served.submit(number, ">" * (step == 1), INPUT=[[number, step]])
                for number in range(1, 5)
            ]
            sums = [value_of(await reply.receive()) for reply in replies]
            triangle = step * (step + 1) // 2
            assert sums == [[step * number + triangle] * 2 for number in range(1, 5)]
        assert await served.ask(4, ".", INPUT=[[0, 0]]) == [18, 18]  # the rows before it are empty
        assert await served.ask(1, ".", INPUT=[[1, 1]]) == [11, 11]
    assert [rows for _, rows in served.batches][-2:] == [4, 1]


async def test_the_last_answer_of_a_sequence_has_its_id_whatever_its_place_in_the_batch(
    autojump_clock: MockClock,
) -> None:
    async with serving(example_config("custom_dyna_sequence_int32")) as served:
        first = [served.submit(number, ">", INPUT=[[number]]) for number in (100, 200, 300)]
        assert [value_of(await reply.receive()) for reply in first] == [[100], [200], [300]]
        last = [served.submit(number, ".", INPUT=[[1]]) for number in (300, 100)]
        assert [value_of(await reply.receive()) for reply in last] == [[601], [201]]
        assert await served.ask(200, ".", INPUT=[[1]]) == [401]


@pytest.mark.parametrize("direct", [True, False])
async def test_a_request_that_counts_down_shares_executions_with_others(
    autojump_clock: MockClock, direct: bool
) -> None:
    config = example_config("iterative_sequence")
    assert config.sequence_batching is not None
    if direct:
        config.sequence_batching.direct = ModelSequenceBatchingStrategyDirect()
    else:
        config.sequence_batching.direct = None
        config.sequence_batching.oldest = ModelSequenceBatchingStrategyOldest()
    async with serving(config) as served:
        replies = [served.submit(INPUT=[[count]]) for count in (3, 1, 2)]
        answers = []
        for reply in replies:
            responses = [await reply.receive()]
            while not responses[-1].final:
                responses.append(await reply.receive())
            answers.append([value_of(response) for response in responses])
        assert answers == [[[2], [1], [0]], [[0]], [[1], [0]]]
        assert [rows for _, rows in served.batches] == [3, 3 if direct else 2, 1]


async def test_a_client_that_leaves_ends_its_count_down(autojump_clock: MockClock) -> None:
    async with serving(example_config("iterative_sequence")) as served:
        reply = served.submit(INPUT=[[1000]])
        assert value_of(await reply.receive()) == [999]
        reply.close()
        await trio.sleep(4 * TAKES_S)
        assert len(served.batches) == 1
        assert served.statistics.fail.count == 1


async def test_a_state_goes_on_as_each_test_case_says(autojump_clock: MockClock) -> None:
    async with serving(example_config("single_state_buffer")) as served:
        assert await served.ask(5, ">", INPUT=[1], TEST_CASE=[1]) == [1]
        assert await served.ask(5, "", INPUT=[2], TEST_CASE=[2]) == [2]
        assert await served.ask(5, "", INPUT=[3], TEST_CASE=[2]) == [5]
        assert await served.ask(5, "", INPUT=[1], TEST_CASE=[1]) == [6]
        refused = await served.ask(5, "", INPUT=[1], TEST_CASE=[3])
        assert str(refused).startswith(f"{ErrorCode.UNSUPPORTED.name}: ")
        assert await served.ask(5, ".", INPUT=[1], TEST_CASE=[1]) == [6]


async def test_a_passive_instance_is_loaded_and_gets_no_work(autojump_clock: MockClock) -> None:
    async with serving(example_config("distributed_int32")) as served:
        ones = [[1] * 16]
        replies = [served.submit(INPUT0=ones, INPUT1=ones) for _ in range(3)]
        for reply in replies:
            response = await reply.receive()
            outputs = {tensor.name: tensor.array.tolist() for tensor in response.outputs}
            assert outputs == {"OUTPUT0": [[2] * 16], "OUTPUT1": [[0] * 16]}
    assert [name for name, _ in served.batches] == ["distributed_int32_0_0"] * 3
