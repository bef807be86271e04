"""Decoupled models in a process of their own: responses then or later, and exactly one end."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import outcome
import pytest

from tests.backends.builders import config_of, outputs_of, request_of, write_model
from tests.backends.processes import children_of, descriptors
from tritrio.backends.base import Batch, DeviceFaultError, InstancePlace
from tritrio.backends.device_context import HostContext
from tritrio.backends.device_thread import DeviceThread
from tritrio.backends.process_model import ProcessModelInstance
from tritrio.backends.process_worker import RESPONSES_AHEAD_MAX
from tritrio.backends.python_model import PythonBackend
from tritrio.protocol.pb.inference import (
    ModelConfig,
    ModelSequenceBatching,
    ModelTransactionPolicy,
)
from tritrio.protocol.requests import InferRequest, InferResponse

WAIT_S = 30.0
MODEL = """
import os, threading, time
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
def answer(value):
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor("OUTPUT0", np.array([value], np.float32))])
class TritonPythonModel:
    def execute(self, requests):
        threads = [threading.Thread(target=self.one, args=(r,), daemon=True) for r in requests]
        for thread in threads:
            thread.start()
    def one(self, request):
        sender = request.get_response_sender()
        what = int(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0])
        if what == 0:  # until it is cancelled
            sender.send(answer(0))
            while not request.is_cancelled():
                time.sleep(0.001)
            sender.send(answer(99), FINAL)
        elif what < 0:
            sender.send(answer(os.getpid()))
            os._exit(-what)
        else:
            for value in range(what):
                sender.send(answer(value))
            sender.send(flags=FINAL)
"""


class Clients:
    """Takes what the requests of one batch are answered with; has room for so many each."""

    def __init__(self, *values: float, room: float = float("inf")) -> None:
        self.room = room
        self.batch = Batch(
            [request_of(np.array([value], np.float32)) for value in values], self.post
        )
        self.batch.has_room = lambda index: self.room > len(self.responses[index])
        self.responses: list[list[InferResponse]] = [[] for _ in values]
        self.ended = [threading.Event() for _ in values]

    def post(self, index: int, response: InferResponse) -> None:
        self.responses[index].append(response)
        if response.final:
            self.ended[index].set()

    def shown(self, index: int = 0) -> list[Any]:
        """Values of a request's responses and its error, once it has ended."""
        assert self.ended[index].wait(WAIT_S)
        return [
            response.error.message
            if response.error is not None
            else "end"
            if response.empty
            else int(outputs_of(response)["OUTPUT0"][0])
            for response in self.responses[index]
        ]


class Served:
    """An instance on its thread."""

    def __init__(self, instance: ProcessModelInstance) -> None:
        self.instance = instance
        self._outcomes: SimpleQueue[outcome.Outcome[None]] = SimpleQueue()
        self._thread = DeviceThread("m_0_0", HostContext(), self._notify)
        self._thread.start()

    def _notify(self, _: Callable[..., object], /, *args: Any) -> None:
        result, *_arguments = args
        self._outcomes.put(result)

    def run(self, job: Callable[..., None], *args: Any) -> None:
        self._thread.submit(print, job, *args)
        self._outcomes.get(timeout=WAIT_S).unwrap()

    def execute(self, clients: Clients) -> None:
        self.run(self.instance.execute, clients.batch)

    def end(self) -> None:
        self.run(self.instance.unload)
        self._thread.stop()
        assert self._thread.join(WAIT_S)


def config(*, iterative: bool = False) -> ModelConfig:
    made = config_of(
        [("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [1])], EXECUTION_MODE="process"
    )
    made.model_transaction_policy = ModelTransactionPolicy(decoupled=True)
    if iterative:
        made.sequence_batching = ModelSequenceBatching(iterative_sequence=True)
    return made


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    before = descriptors(), set(threading.enumerate())
    source = write_model(tmp_path, MODEL)
    instance = PythonBackend().create_instance(source, config(), InstancePlace("m_0_0"))
    assert isinstance(instance, ProcessModelInstance)
    served = Served(instance)
    served.run(instance.load)
    (worker,) = set(threading.enumerate()) - before[1]
    yield served
    served.end()
    assert descriptors() <= before[0]
    assert not worker.is_alive()
    assert set(threading.enumerate()) <= before[1]
    assert children_of(os.getpid()) == []


def test_responses_of_many_requests_come_after_execute_returned(served: Served) -> None:
    clients = [Clients(3, 1, 2) for _ in range(5)]
    for each in clients:
        served.execute(each)
    for each in clients:
        assert each.shown(0) == [0, 1, 2, "end"]
        assert each.shown(1) == [0, "end"]
        assert each.shown(2) == [0, 1, "end"]


def test_a_model_learns_that_a_request_was_cancelled(served: Served) -> None:
    clients = Clients(0, 0)
    served.execute(clients)
    clients.batch.requests[1].cancelled = True
    assert clients.shown(1) == [0, 99]
    assert not clients.ended[0].is_set()
    clients.batch.requests[0].cancelled = True
    assert clients.shown(0) == [0, 99]


def test_a_slow_client_holds_its_own_responses_up_and_no_others(served: Served) -> None:
    slow = Clients(1000, room=5)
    served.execute(slow)
    quick = Clients(300)
    served.execute(quick)
    assert quick.shown() == [*range(300), "end"]
    assert len(slow.responses[0]) == 5
    (execution,) = served.instance._executions.values()
    assert len(execution.waiting[0]) <= RESPONSES_AHEAD_MAX
    slow.room = 2000
    assert slow.shown() == [*range(1000), "end"]


def test_a_process_that_ends_ends_all_its_requests_with_one_error_each(served: Served) -> None:
    waiting, dying = Clients(0, 0), Clients(-3)
    served.execute(waiting)
    with suppress(DeviceFaultError):  # it may end before or after it says that it has begun
        served.execute(dying)
    error = "model instance 'm_0_0' did not survive the request: its process ended with exit code 3"
    assert dying.shown()[1:] == [error]
    assert [waiting.shown(index)[-1] for index in (0, 1)] == [error, error]
    assert [len(responses) for responses in waiting.responses] == [2, 2]


def test_a_client_that_has_gone_does_not_end_the_thread(served: Served) -> None:
    def post(index: int, response: InferResponse) -> None:
        raise RuntimeError("the loop is gone")

    gone = Clients(3)
    gone.batch.post = post
    served.execute(gone)
    later = Clients(1)
    served.execute(later)
    assert later.shown() == [0, "end"]


def test_an_iterative_model_gets_its_request_again(tmp_path: Path) -> None:
    code = """
    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                assert request.flags() == 1 and request.correlation_id() == "a"
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        def on_sequence_end(self, sequence_id, reason):
            pb_utils.Logger.log_error(f"{sequence_id} {reason}")
    """
    source = write_model(tmp_path, code)
    instance = PythonBackend().create_instance(
        source, config(iterative=True), InstancePlace("m_0_0")
    )
    instance.load()
    assert isinstance(instance, ProcessModelInstance)
    assert instance.hears_sequence_ends
    clients = Clients(1)
    request: InferRequest = clients.batch.requests[0]
    request.sequence_id, request.sequence_start = "a", True
    instance.execute(clients.batch)
    assert clients.batch.rescheduled == {0}
    assert instance._executions == {}
    instance.unload()
