"""Python models of sequences: flags, states, another execution, and the end of a sequence."""

from __future__ import annotations

import logging
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from tests.backends.builders import (
    config_of as plain_config_of,
    error_of,
    execute,
    floats,
    loaded,
    outputs_of,
    request_of,
    write_model,
)
from triton_python_backend_utils import InferenceRequest, TritonModelException
from tritrio.backends.base import (
    Batch,
    HearsSequenceEnds,
    InstancePlace,
    ModelInstance,
    SequenceEnd,
    SequenceEndReason,
)
from tritrio.backends.registry import get_backend
from tritrio.protocol.errors import RequestError
from tritrio.protocol.pb.inference import (
    DataType,
    ModelConfig,
    ModelSequenceBatching,
    ModelSequenceBatchingState,
    ModelTransactionPolicy,
)
from tritrio.protocol.requests import InferRequest, InferResponse
from tritrio.protocol.sequence_tensors import SequenceTensors

PYTHON = get_backend("python")
MODEL = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
ALL = pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL
RESCHEDULE = pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
def answer(**values):
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, np.array([value], np.float32)) for name, value in values.items()])
class TritonPythonModel:
    def execute(self, requests):
{body}
"""


def config_of(*, iterative: bool = False, decoupled: bool = False) -> ModelConfig:
    """A model that batches, with outputs OUTPUT0 and BOTH and states NEXT and BOTH."""
    config = plain_config_of(
        [("INPUT0", "FP32", [1])],
        [("OUTPUT0", "FP32", [1]), ("BOTH", "FP32", [1])],
        max_batch_size=4,
    )
    config.sequence_batching = ModelSequenceBatching(
        iterative_sequence=iterative,
        state=[
            ModelSequenceBatchingState(
                input_name=f"OLD_{name}",
                output_name=name,
                data_type=DataType.TYPE_FP32,
                dims=[1],
            )
            for name in ("NEXT", "BOTH")
        ],
    )
    config.model_transaction_policy = ModelTransactionPolicy(decoupled=decoupled)
    return config


def model(directory: Path, body: str, config: ModelConfig | None = None) -> ModelInstance:
    code = MODEL.format(body=indent(body, " " * 8))
    return loaded(PYTHON, write_model(directory, code), config or config_of())


def states_of(response: InferResponse) -> dict[str, Any]:
    assert response.states is not None
    return {name: tensor.array.tolist() for name, tensor in response.states.items()}


COUNTS = """
responses = []
for request in requests:
    old = pb_utils.get_input_tensor_by_name(request, "OLD_NEXT").as_numpy()
    old += pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
    responses.append(answer(OUTPUT0=old[0] * 10, NEXT=old[0]))
return responses
"""


def test_a_state_is_kept_for_the_next_request_and_not_told_to_the_client(tmp_path: Path) -> None:
    instance, tensors = model(tmp_path, COUNTS), SequenceTensors(config_of(), {})
    initial = states = tensors.initial_states()
    told = []
    for value in (1, 2, 3):
        request = request_of(floats(value))
        tensors.complete(request, start=False, end=False, states=states)
        (response,) = execute(instance, request)
        assert list(outputs_of(response)) == ["OUTPUT0"]
        told.append(outputs_of(response)["OUTPUT0"].tolist())
        assert response.states is not None
        states = tensors.next_states(response.states, states)
    assert told == [[[10]], [[30]], [[60]]]
    assert initial["OLD_NEXT"].array.tolist() == [[0]]  # though the model writes into its input


def test_a_state_comes_whatever_the_client_asked_for(tmp_path: Path) -> None:
    instance = model(tmp_path, "return [answer(OUTPUT0=[1], NEXT=[2], BOTH=[3]) for _ in requests]")
    only, everything = execute(
        instance, request_of(floats(0), asked=["OUTPUT0"]), request_of(floats(0))
    )
    assert states_of(only) == states_of(everything) == {"NEXT": [[2]], "BOTH": [[3]]}
    assert list(outputs_of(only)) == ["OUTPUT0"]
    assert list(outputs_of(everything)) == ["OUTPUT0", "BOTH"]


def test_a_state_that_is_left_out_is_not_there(tmp_path: Path) -> None:
    instance = model(tmp_path, "return [answer(OUTPUT0=[1]) for _ in requests]")
    (response,) = execute(instance, request_of(floats(0)))
    assert states_of(response) == {}


def test_a_state_of_another_data_type_or_twice_is_a_fault_of_the_model(tmp_path: Path) -> None:
    body = """
texts = pb_utils.Tensor("NEXT", np.array([["a"]], object))
fine = pb_utils.Tensor("NEXT", np.array([[1]], np.float32))
return [pb_utils.InferenceResponse([texts]), pb_utils.InferenceResponse([fine, fine])]
"""
    wrong, twice = execute(model(tmp_path, body), request_of(floats(0)), request_of(floats(0)))
    assert error_of(wrong) == "INTERNAL: model 'm': output 'NEXT' must be FP32, got BYTES"
    assert error_of(twice) == "INTERNAL: model 'm': output 'NEXT' came twice"


class Run:
    """One execution and all its responses, by request."""

    def __init__(
        self, instance: ModelInstance, *requests: InferRequest, decoupled: bool = False
    ) -> None:
        self.posted: list[list[InferResponse]] = [[] for _ in requests]
        self.batch = Batch(requests, self.post if decoupled else None)
        instance.execute(self.batch)

    def post(self, index: int, response: InferResponse) -> None:
        self.posted[index].append(response)


def test_the_last_response_of_a_decoupled_model_has_the_states_of_all(tmp_path: Path) -> None:
    body = """
for request in requests:
    sender = request.get_response_sender()
    sender.send(answer(OUTPUT0=[1], NEXT=[1], BOTH=[1]))
    sender.send(answer(OUTPUT0=[2], NEXT=[2]))
    sender.send(flags=FINAL)
"""
    instance = model(tmp_path, body, config_of(decoupled=True))
    ((first, second, last),) = Run(instance, request_of(floats(0)), decoupled=True).posted
    assert (first.states, second.states) == (None, None)
    assert states_of(last) == {"NEXT": [[2]], "BOTH": [[1]]}
    assert (last.final, last.empty) == (True, True)


def test_a_model_sees_the_flags_and_the_correlation_id(tmp_path: Path) -> None:
    body = """
ids.extend((request.correlation_id(), request.flags()) for request in requests)
return [answer(OUTPUT0=[1]) for _ in requests]
"""
    source = write_model(tmp_path, "ids = []\n" + MODEL.format(body=indent(body, " " * 8)))
    instance = loaded(PYTHON, source, config_of())
    tensors = SequenceTensors(config_of(), {})
    number, text = request_of(floats(0)), request_of(floats(0))
    number.sequence_id, text.sequence_id = 2**64 - 1, "grün"
    tensors.complete(number, start=True, end=False, states={})
    tensors.complete(text, start=True, end=True, states={})
    execute(instance, number, text)
    tensors.complete(number, start=False, end=False, states={})
    execute(instance, number)
    ids = instance._model.execute.__globals__["ids"]  # type: ignore[attr-defined]
    assert ids == [(2**64 - 1, 1), ("grün", 3), (2**64 - 1, 0)]


ONE_MORE_TIME = """
responses = []
for request in requests:
    again = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0, 0] > 0
    request.set_release_flags(RESCHEDULE if again else ALL)
    responses.append(None if again else answer(OUTPUT0=[7]))
return responses
"""


def test_an_iterative_model_may_ask_for_another_execution(tmp_path: Path) -> None:
    instance = model(tmp_path, ONE_MORE_TIME, config_of(iterative=True))
    run = Run(instance, request_of(floats(1)), request_of(floats(0)), request_of(floats(2)))
    assert run.batch.rescheduled == {0, 2}
    first, second, third = run.batch.responses
    assert (first, third) == (None, None)
    assert second is not None
    assert outputs_of(second)["OUTPUT0"].tolist() == [[7]]


def test_no_list_at_all_will_do_if_every_request_is_rescheduled(tmp_path: Path) -> None:
    body = "for request in requests:\n    request.set_release_flags(RESCHEDULE)"
    run = Run(model(tmp_path, body, config_of(iterative=True)), request_of(floats(1)))
    assert run.batch.rescheduled == {0}
    assert run.batch.responses == [None]


def test_only_an_iterative_model_may_ask_for_another_execution(tmp_path: Path) -> None:
    refused, answered = execute(
        model(tmp_path, ONE_MORE_TIME), request_of(floats(1)), request_of(floats(0))
    )
    assert error_of(refused) == (
        "INVALID_ARG: model 'm': the release flag TRITONSERVER_REQUEST_RELEASE_RESCHEDULE is for "
        "models with iterative_sequence only, and it has none"
    )
    assert outputs_of(answered)["OUTPUT0"].tolist() == [[7]]


def test_a_response_to_a_request_that_is_rescheduled_fails_the_batch(tmp_path: Path) -> None:
    body = """
for request in requests:
    request.set_release_flags(RESCHEDULE)
return [None, answer(OUTPUT0=[1])]
"""
    run = Run(
        model(tmp_path, body, config_of(iterative=True)),
        request_of(floats(1)),
        request_of(floats(1)),
    )
    assert run.batch.rescheduled == set()
    for response in run.batch.responses:
        assert response is not None
        assert error_of(response) == (
            "INTERNAL: model instance 'm_0_0': execute must return None for a request with the "
            "release flag TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, got InferenceResponse"
        )


def test_a_request_that_was_answered_is_not_executed_again(tmp_path: Path) -> None:
    body = """
for request in requests:
    request.get_response_sender().send(answer(OUTPUT0=[1]))
    request.set_release_flags(RESCHEDULE)
"""
    run = Run(model(tmp_path, body, config_of(iterative=True)), request_of(floats(1)))
    assert run.batch.rescheduled == set()
    (response,) = run.batch.responses
    assert response is not None
    assert outputs_of(response)["OUTPUT0"].tolist() == [[1]]


COUNTS_DOWN = """
for request in requests:
    count = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()[0, 0]
    sender = request.get_response_sender()
    sender.send(answer(OUTPUT0=[count - 1]), flags=0 if count > 1 else FINAL)
    request.set_release_flags(RESCHEDULE)
    senders.append(sender)
"""


def counting_down(directory: Path, *, iterative: bool) -> tuple[ModelInstance, list[Any]]:
    code = "senders = []\n" + MODEL.format(body=indent(COUNTS_DOWN, " " * 8))
    config = config_of(iterative=iterative, decoupled=True)
    instance = loaded(PYTHON, write_model(directory, code), config)
    return instance, instance._model.execute.__globals__["senders"]  # type: ignore[attr-defined]


def test_a_decoupled_model_answers_at_each_execution_until_it_is_done(tmp_path: Path) -> None:
    instance, senders = counting_down(tmp_path, iterative=True)
    run = Run(instance, request_of(floats(3)), request_of(floats(1)), decoupled=True)
    assert run.batch.rescheduled == {0}  # the other one has had its final response
    (more,), (last,) = run.posted
    assert (outputs_of(more)["OUTPUT0"].tolist(), more.final) == ([[2]], False)
    assert (outputs_of(last)["OUTPUT0"].tolist(), last.final) == ([[0]], True)
    with pytest.raises(TritonModelException, match="closed"):
        senders[0].send(flags=1)  # the next execution has a sender of its own
    senders.clear()
    assert [len(responses) for responses in run.posted] == [1, 1]


def test_a_decoupled_model_that_is_not_iterative_is_told_so(tmp_path: Path) -> None:
    instance, _ = counting_down(tmp_path, iterative=False)
    run = Run(instance, request_of(floats(3)), decoupled=True)
    assert run.batch.rescheduled == set()
    ((_, last),) = run.posted
    assert last.final
    assert error_of(last).startswith("INVALID_ARG: model 'm': the release flag")


def test_release_flags_are_one_of_two() -> None:
    request = InferenceRequest()
    request.set_release_flags(1)
    request.set_release_flags(2)
    with pytest.raises(TritonModelException, match="flag 3 is not supported"):
        request.set_release_flags(3)


ENDS = [
    SequenceEnd(7, SequenceEndReason.END_FLAG),
    SequenceEnd("grün", SequenceEndReason.IDLE),
]
HEARS = """
class TritonPythonModel:
    def __init__(self):
        self.heard = []
    def execute(self, requests):
        return None
    def on_sequence_end(self, correlation_id, reason):
        self.heard.append((correlation_id, reason))
        if reason == "end":
            raise KeyError(correlation_id)
"""


def hears(instance: ModelInstance) -> bool:
    return isinstance(instance, HearsSequenceEnds) and instance.hears_sequence_ends


def test_a_model_is_told_of_the_ends_of_sequences_even_after_a_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    instance = PYTHON.create_instance(
        write_model(tmp_path, HEARS), config_of(), InstancePlace("m_0_0")
    )
    assert not hears(instance)
    instance.load()
    assert hears(instance)
    assert isinstance(instance, HearsSequenceEnds)
    with caplog.at_level(logging.ERROR, "tritrio.model"):
        instance.sequences_ended(ENDS)
    assert instance._model.heard == [(7, "end"), ("grün", "idle")]  # type: ignore[attr-defined]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "model instance 'm_0_0': on_sequence_end raised KeyError: 7"
    )


def test_a_model_without_the_method_hears_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    instance = model(tmp_path, "return None")
    assert isinstance(instance, HearsSequenceEnds)
    assert not hears(instance)
    instance.sequences_ended(ENDS)
    assert not caplog.records


def test_an_async_method_is_refused_at_load(tmp_path: Path) -> None:
    code = HEARS.replace("def on_sequence_end", "async def on_sequence_end")
    with pytest.raises(RequestError, match="expected a method 'on_sequence_end' in TritonPython"):
        loaded(PYTHON, write_model(tmp_path, code), config_of())
