"""Decoupled Python models: any number of responses, then or later, and exactly one end."""

from __future__ import annotations

import gc
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import trio

from tests.backends.builders import (
    config_of,
    error_of,
    floats,
    loaded,
    outputs_of,
    request_of,
    write_model,
)
from triton_python_backend_utils import InferenceResponse, TritonModelException
from tritrio.backends.base import Batch, ModelInstance
from tritrio.backends.registry import get_backend
from tritrio.protocol.pb.inference import ModelTransactionPolicy
from tritrio.protocol.requests import InferRequest, InferResponse

PYTHON = get_backend("python")
SENDER_GONE = "INTERNAL: the model dropped the response sender before the final flag was sent"
MODEL = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
def answer(value):
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor("OUTPUT0", np.array([value], np.float32))])
class TritonPythonModel:
    def execute(self, requests):
{body}
"""


def model(directory: Path, body: str) -> ModelInstance:
    config = config_of([("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [1])])
    config.model_transaction_policy = ModelTransactionPolicy(decoupled=True)
    source = write_model(directory, MODEL.format(body=indent(body, " " * 8)))
    return loaded(PYTHON, source, config)


class Posted:
    """What a batch posted, by request."""

    def __init__(self, *requests: InferRequest) -> None:
        self.responses: list[list[InferResponse]] = [[] for _ in requests]
        self.batch = Batch(requests, self.post)

    def post(self, index: int, response: InferResponse) -> None:
        self.responses[index].append(response)

    def shown(self, index: int = 0) -> list[Any]:
        """Values, errors and "empty" of a request's responses; the last one ends in "final"."""
        shown: list[Any] = []
        for response in self.responses[index]:
            if response.error is not None:
                shown.append(error_of(response))
            elif response.empty:
                shown.append("empty")
            else:
                shown.append(outputs_of(response)["OUTPUT0"].item())
            if response.final:
                shown.append("final")
        return shown


def run(directory: Path, body: str, *requests: InferRequest) -> Posted:
    posted = Posted(*(requests or [request_of(floats(1))]))
    instance = model(directory, body)
    instance.execute(posted.batch)
    return posted


@pytest.mark.parametrize(
    ("calls", "shown"),
    [
        ("s.send(flags=FINAL)", ["empty", "final"]),
        ("s.send(answer(1), FINAL)", [1, "final"]),
        (
            "[s.send(answer(value)) for value in range(3)]; s.send(flags=FINAL)",
            [0, 1, 2, "empty", "final"],
        ),
        (
            (
                "s.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('bad')))\n"
                "s.send(answer(1), FINAL)"
            ),
            ["INTERNAL: bad", 1, "final"],
        ),
    ],
)
def test_responses_are_posted_as_they_are_sent(
    tmp_path: Path, calls: str, shown: list[Any]
) -> None:
    assert run(tmp_path, f"s = requests[0].get_response_sender()\n{calls}").shown() == shown


def test_the_requests_of_a_batch_are_answered_apart(tmp_path: Path) -> None:
    body = """
for value, request in enumerate(requests):
    request.get_response_sender().send(answer(value), FINAL)
"""
    first = request_of(floats(1), request_id="a")
    posted = run(tmp_path, body, first, request_of(floats(1), request_id="b"))
    assert [posted.shown(index) for index in (0, 1)] == [[0, "final"], [1, "final"]]
    assert [responses[0].id for responses in posted.responses] == ["a", "b"]
    assert posted.batch.compute_end_ns >= posted.batch.infer_end_ns > 0


def test_responses_may_come_after_execute_returned(tmp_path: Path) -> None:
    posted = Posted(request_of(floats(1)))
    instance = model(tmp_path, "self.kept = [r.get_response_sender() for r in requests]")
    instance.execute(posted.batch)
    assert posted.shown() == []
    (sender,) = instance._model.kept  # type: ignore[attr-defined]
    assert not sender.is_cancelled()
    posted.batch.requests[0].cancelled = True
    assert sender.is_cancelled()
    sender.send(flags=1)
    assert posted.shown() == ["empty", "final"]
    with pytest.raises(TritonModelException, match="sender is closed"):
        sender.send(InferenceResponse())
    assert posted.shown() == ["empty", "final"]


def test_a_request_kept_without_its_sender_stays_open(tmp_path: Path) -> None:
    posted = Posted(request_of(floats(1)))
    instance = model(tmp_path, "self.kept = list(requests)")
    instance.execute(posted.batch)
    gc.collect()
    assert posted.shown() == []
    instance._model.kept.pop().get_response_sender().send(flags=1)  # type: ignore[attr-defined]
    assert posted.shown() == ["empty", "final"]


@pytest.mark.parametrize("body", ["pass", "requests[0].get_response_sender().send(answer(1))"])
def test_a_sender_dropped_without_a_final_flag_ends_its_request_with_an_error(
    tmp_path: Path, body: str
) -> None:
    posted = run(tmp_path, body)
    gc.collect()
    assert posted.shown()[-2:] == [SENDER_GONE, "final"]


def test_a_send_that_fails_leaves_the_sender_open(tmp_path: Path) -> None:
    def post(index: int, response: InferResponse) -> None:
        if outputs_of(response)["OUTPUT0"].item() == 1:
            raise LookupError("nobody took it")
        posted.post(index, response)

    posted = Posted(request_of(floats(1)))
    posted.batch.post = post
    body = """
sender = requests[0].get_response_sender()
try:
    sender.send(answer(1), FINAL)
except LookupError as error:
    assert str(error) == "nobody took it"
    sender.send(answer(2), FINAL)
"""
    model(tmp_path, body).execute(posted.batch)
    assert posted.shown() == [2, "final"]


def test_a_sender_dropped_after_the_server_has_ended_is_no_fault(tmp_path: Path) -> None:
    def post(index: int, response: InferResponse) -> None:
        posted.append(index)
        raise trio.RunFinishedError

    posted: list[int] = []
    model(tmp_path, "pass").execute(Batch([request_of(floats(1))], post))
    gc.collect()
    assert posted == [0]


def test_an_exception_after_two_responses_ends_open_requests_only(tmp_path: Path) -> None:
    body = """
senders = [request.get_response_sender() for request in requests]
senders[0].send(answer(1))
senders[0].send(answer(2))
senders[1].send(answer(3), FINAL)
raise ValueError("no")
"""
    posted = run(tmp_path, body, *[request_of(floats(1)) for _ in range(3)])
    fault = (
        "INTERNAL: model instance 'm_0_0': execute raised ValueError: no (at 1/model.py:15 "
        "in execute)"
    )
    assert posted.shown(0) == [1, 2, fault, "final"]
    assert posted.shown(1) == [3, "final"]
    assert posted.shown(2) == [fault, "final"]


def test_a_returned_list_is_an_error(tmp_path: Path) -> None:
    assert run(tmp_path, "return [answer(1)]").shown() == [
        (
            "INTERNAL: model instance 'm_0_0': execute must return None, since the model is "
            "decoupled, got an object of type list"
        ),
        "final",
    ]


def test_a_faulty_output_is_an_error_response_and_the_stream_goes_on(tmp_path: Path) -> None:
    body = """
sender = requests[0].get_response_sender()
sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.zeros(1))]))
sender.send(answer(2), FINAL)
"""
    assert run(tmp_path, body).shown() == [
        "INTERNAL: model 'm': output 'OUTPUT0' must be FP32, got FP64",
        2,
        "final",
    ]
