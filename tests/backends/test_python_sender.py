"""Answers of Python models that are not decoupled, through response senders or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.builders import error_of, execute, floats, outputs_of, request_of
from tests.backends.test_python_execute import DOUBLES, model
from triton_python_backend_utils import InferenceResponse, TritonModelException
from tritrio.backends.base import Batch

NO_ANSWER = (
    "INTERNAL: model instance 'm_0_0': execute must return a response for each request or send it "
    "before it returns, got none for this one"
)


@pytest.mark.parametrize("body", ["return None", "pass", "return [None, None]"])
def test_requests_without_an_answer_get_an_error(tmp_path: Path, body: str) -> None:
    responses = execute(model(tmp_path, body), request_of(floats(1)), request_of(floats(2)))
    assert [error_of(response) for response in responses] == [NO_ANSWER, NO_ANSWER]


SENDS = """
responses = []
for request in requests:
    sender = request.get_response_sender()
    assert sender is request.get_response_sender()
    response = pb_utils.InferenceResponse(
        [pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
    responses.append(None)
"""


def test_a_response_may_come_through_the_sender_instead(tmp_path: Path) -> None:
    body = f"{SENDS}    sender.send(response)\nreturn responses"
    first, second = execute(model(tmp_path, body), request_of(floats(1)), request_of(floats(2)))
    assert outputs_of(first)["OUTPUT0"].tolist() == [[1]]
    assert outputs_of(second)["OUTPUT0"].tolist() == [[2]]


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ("sender.send(response, flags=2)", "flag 2 is not supported"),
        ("sender.send()", "needs a response when flags is zero, got none"),
        ("sender.send('x')", "needs an InferenceResponse, got str"),
        ("sender.send(flags=1)", "must be sent before the final flag"),
        ("sender.send(response); sender.send(response)", "only one response is allowed"),
        ("sender.send(response, 1); sender.send(response)", "the response sender is closed"),
        ("sender.send(response); sender.send(flags=1); sender.send(flags=1)", "sender is closed"),
    ],
)
def test_misuse_of_a_sender_is_an_exception_in_the_model(
    tmp_path: Path, calls: str, text: str
) -> None:
    body = f"{SENDS}    {calls}\nreturn responses"
    request = request_of(floats(1))
    batch = Batch([request, request_of(floats(2))])
    model(tmp_path, body).execute(batch)
    first, second = batch.responses
    assert first is not None
    assert second is not None
    sent_before = calls.startswith(("sender.send(response)", "sender.send(response, 1)"))
    assert text in error_of(second)
    if sent_before:
        assert outputs_of(first)["OUTPUT0"].tolist() == [[1]]
    else:
        assert text in error_of(first)


def test_a_send_that_fails_leaves_the_request_answerable(tmp_path: Path) -> None:
    body = """
sender = requests[0].get_response_sender()
class Unlucky(str):
    def __hash__(self):
        raise LookupError("no luck")
try:
    sender.send(pb_utils.InferenceResponse(
        [pb_utils.Tensor(Unlucky("OUTPUT0"), np.ones((1, 1), np.float32))]), 1)
except LookupError as error:
    assert str(error) == "no luck"
    sender.send(pb_utils.InferenceResponse(
        [pb_utils.Tensor("OUTPUT0", np.ones((1, 1), np.float32))]), 1)
"""
    (response,) = execute(model(tmp_path, body), request_of(floats(1)))
    assert outputs_of(response)["OUTPUT0"].tolist() == [[1]]


def test_a_sender_used_after_its_request_was_answered_for_raises_in_the_model(
    tmp_path: Path,
) -> None:
    instance = model(tmp_path, "self.kept = [*requests, requests[0].get_response_sender()]")
    (response,) = execute(instance, request_of(floats(1)))
    assert error_of(response) == NO_ANSWER
    request, sender = instance._model.kept  # type: ignore[attr-defined]
    with pytest.raises(TritonModelException, match="sender is closed"):
        sender.send(InferenceResponse())
    instance._model.kept = None  # type: ignore[attr-defined]
    assert request.get_response_sender() is sender


def test_a_sender_made_after_execute_returned_is_told_so(tmp_path: Path) -> None:
    instance = model(tmp_path, f"self.kept = requests\n{DOUBLES}")
    execute(instance, request_of(floats(1)))
    (request,) = instance._model.kept  # type: ignore[attr-defined]
    with pytest.raises(TritonModelException, match="has been answered already"):
        request.get_response_sender().send(InferenceResponse())
