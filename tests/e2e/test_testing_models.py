"""The official client against the test backends, with the examples of their page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.support.server_process import ServerProcess, running_server
from tests.support.testing_models import EXAMPLES, PAGE, write_examples
from tritrio.backends.registry import BACKENDS
from tritrio.backends.testing_models import DELAY_MAX_S
from tritrio.backends.testing_streams import RESPONDING_MAX

from .raw_http import ask

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PATIENCE_S = 30.0
HOUR_MS = 3_600_000
TEXT = PAGE.read_text()
Next = Callable[[], Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the models of the page; it must end well."""
    place = tmp_path_factory.mktemp("testing-models")
    repository = write_examples(place / "models")
    with running_server(repository, place / "log") as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


def tensors(library: Any, **inputs: Any) -> list[Any]:
    made = []
    for name, values in inputs.items():
        array = np.array(values, np.uint32 if name in {"DELAY", "WAIT"} else np.int32)
        tensor = library.InferInput(name, list(array.shape), array.dtype.name.upper())
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


@contextmanager
def stream(server: ServerProcess) -> Iterator[tuple[Any, Next]]:
    """A client with an open stream, and what waits for its next message: a result or an error."""
    messages: SimpleQueue[Any] = SimpleQueue()
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: messages.put(error or result))
        yield client, lambda: messages.get(timeout=PATIENCE_S)
        client.stop_stream(cancel_requests=True)


def values(result: Any) -> list[int]:
    return [int(result.as_numpy(output.name).item()) for output in result.get_response().outputs]


def is_bare_end(result: Any) -> bool:
    response = result.get_response()
    return len(response.outputs) == 0 and bool(
        response.parameters["triton_final_response"].bool_param
    )


def test_a_stream_gets_each_element_of_repeat_and_the_end(server: ServerProcess) -> None:
    with stream(server) as (client, wait_for_next):
        inputs = tensors(triton_grpc, IN=[4, -2, 0], DELAY=[1, 2, 3], WAIT=[5])
        client.async_stream_infer("repeat_int32", inputs, enable_empty_final_response=True)
        assert [values(wait_for_next()) for _ in range(3)] == [[4, 0], [-2, 1], [0, 2]]
        assert is_bare_end(wait_for_next())
        inputs = tensors(triton_grpc, IN=[1, 2], DELAY=[0], WAIT=[0])
        client.async_stream_infer("repeat_int32", inputs)
        assert "the shapes of IN and DELAY must match, got [2] and [1]" in str(wait_for_next())


def test_a_request_that_takes_hours_holds_nobody_up(server: ServerProcess) -> None:
    with stream(server) as (slow, wait_for_slow), stream(server) as (quick, wait_for_quick):
        inputs = tensors(triton_grpc, IN=[1, 2], DELAY=[0, HOUR_MS], WAIT=[0])
        slow.async_stream_infer("repeat_int32", inputs)
        assert values(wait_for_slow()) == [1, 0]
        inputs = tensors(triton_grpc, IN=[3], DELAY=[0], WAIT=[0])
        quick.async_stream_infer("repeat_int32", inputs)
        assert values(wait_for_quick()) == [3, 0]


def test_a_stream_gets_as_many_answers_of_square_as_it_asks_for(server: ServerProcess) -> None:
    with stream(server) as (client, wait_for_next):
        client.async_stream_infer(
            "square_int32", tensors(triton_grpc, IN=[4]), enable_empty_final_response=True
        )
        assert [values(wait_for_next()) for _ in range(2)] == [[4], [4]]
        assert "CUSTOM_FAIL_COUNT" in str(wait_for_next())
        assert is_bare_end(wait_for_next())
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        found = client.get_inference_statistics("square_int32", as_json=True)
    (entry,) = ask(server.http_port, "GET", "/v2/models/square_int32/stats").json()["model_stats"]
    answered = {"compute_infer": 1, "compute_output": 1}
    for statistics in (entry, found["model_stats"][0]):
        assert {
            index: {name: int(d["count"]) for name, d in response.items() if int(d.get("count", 0))}
            for index, response in statistics["response_stats"].items()
        } == {
            "0": {**answered, "success": 1},
            "1": {**answered, "success": 1},
            "2": {**answered, "fail": 1},
            "3": {"compute_infer": 1, "empty_response": 1},
        }


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_four_sequences_side_by_side_have_their_own_sums(
    server: ServerProcess, protocol: str
) -> None:
    library, url = (
        (triton_http, server.http_url) if protocol == "http" else (triton_grpc, server.grpc_url)
    )
    sequences = range(1, 5)
    sums = dict.fromkeys(sequences, 0)
    with library.InferenceServerClient(url) as client:
        for step in range(5):
            for number in sequences if step % 2 else reversed(sequences):
                value = number * 10 + step
                sums[number] += 2 * value
                result = client.infer(
                    "custom_sequence_int32",
                    tensors(library, INPUT=[[value, value]]),
                    sequence_id=number,
                    sequence_start=step == 0,
                    sequence_end=step == 4,
                )
                assert result.as_numpy("OUTPUT").tolist() == [[sums[number]] * 2]


def test_the_last_answer_of_a_sequence_has_its_id(server: ServerProcess) -> None:
    with triton_http.InferenceServerClient(server.http_url) as client:
        for value, end, total in ((1, False, 1), (2, True, 3 + 1000)):
            inputs = tensors(triton_http, INPUT=[[value]])
            result = client.infer(
                "custom_dyna_sequence_int32",
                inputs,
                sequence_id=1000,
                sequence_start=not end,
                sequence_end=end,
            )
            assert result.as_numpy("OUTPUT").tolist() == [[total]]


def test_a_stream_gets_the_count_down_of_an_iterative_request(server: ServerProcess) -> None:
    with stream(server) as (client, wait_for_next):
        client.async_stream_infer("iterative_sequence", tensors(triton_grpc, INPUT=[[3]]))
        results = [wait_for_next() for _ in range(3)]
        assert [values(result) for result in results] == [[2], [1], [0]]
    answer = ask(server.http_port, "GET", "/v2/models/iterative_sequence/stats").json()
    (statistics,) = answer["model_stats"]
    assert (statistics["inference_count"], statistics["execution_count"]) == (1, 3)
    successes = {key: counted["success"] for key, counted in statistics["response_stats"].items()}
    assert {key: success["count"] for key, success in successes.items()} == dict.fromkeys("012", 1)


def test_an_implicit_state_is_kept_between_requests(server: ServerProcess) -> None:
    with triton_http.InferenceServerClient(server.http_url) as client:
        for value, total in ((1, 1), (2, 3), (3, 6)):
            inputs = tensors(triton_http, INPUT=[value], TEST_CASE=[2])
            options = {"sequence_start": value == 1, "sequence_end": value == 3}
            result = client.infer("single_state_buffer", inputs, sequence_id=9, **options)
            assert result.as_numpy("OUTPUT").tolist() == [total]
        inputs = tensors(triton_http, INPUT=[1], TEST_CASE=[0])
        with pytest.raises(triton_http.InferenceServerException, match="'undefined_state'"):
            client.infer("single_state_buffer", inputs, sequence_id=9, sequence_start=True)


def test_identity_leaves_out_what_was_left_out_and_counts_the_bytes(
    server: ServerProcess,
) -> None:
    values = np.zeros((1, 4), np.float32)
    tensor = triton_http.InferInput("INPUT0", [1, 4], "FP32")
    tensor.set_data_from_numpy(values)
    with triton_http.InferenceServerClient(server.http_url) as client:
        results = [client.infer("custom_zero_1_float32", [tensor]) for _ in range(2)]
    for result in results:
        assert [output["name"] for output in result.get_response()["outputs"]] == ["OUTPUT0"]
        assert result.as_numpy("OUTPUT0").tolist() == values.tolist()
    metrics = ask(server.metrics_port, "GET", "/metrics").body.decode()
    counted = 'input_byte_size_counter{model="custom_zero_1_float32",version="1"} 32.0'
    assert counted in metrics.splitlines()


def test_addsub_answers_beside_its_passive_instance(server: ServerProcess) -> None:
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        inputs = tensors(triton_grpc, INPUT0=[list(range(16))], INPUT1=[[2] * 16])
        result = client.infer("distributed_int32", inputs)
        assert result.as_numpy("OUTPUT0").tolist() == [list(range(2, 18))]
        assert result.as_numpy("OUTPUT1").tolist() == [list(range(-2, 14))]


def test_the_page_has_every_test_backend_and_its_numbers() -> None:
    testing = {name for name, (module, _) in BACKENDS.items() if module.startswith(".testing_")}
    testing.add("identity")
    for name in testing:
        assert f"\n| `{name}` |" in TEXT
    assert len(EXAMPLES) == TEXT.count("```text") == len(testing)
    words = " ".join(TEXT.split())
    assert f"{RESPONDING_MAX} requests at most" in words
    assert f"{DELAY_MAX_S} s at most" in words
