"""gRPC by grpcio itself, against a real server: sizes, codings, deadlines, cancelling, metadata."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.server_process import ServerProcess, running_server

from .models import GATE, copy_example, wait_until_exists, write_python_model
from .raw_http import ask

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MESSAGE_BYTES = 64 * 1024**2
LIMIT_S = 30.0
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="module")
def server(gate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("grpc")
    copy_example(directory / "models", "identity")
    write_python_model(directory / "models", "gate", GATE, place=gate)
    with running_server(directory / "models", directory / "log") as running:
        yield running
        (gate / "go").touch()
        assert running.stop() == 0
        assert "Traceback" not in running.log()


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc_url, options=OPTIONS) as opened:
        yield opened


def message(values: np.ndarray[Any, Any], model: str = "identity") -> Any:
    made = service_pb2.ModelInferRequest(model_name=model)
    made.inputs.add(name="INPUT0", datatype="FP32", shape=values.shape)
    made.raw_input_contents.append(values.tobytes())
    return made


def refused(call: Any, *arguments: Any, **options: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **options)
    return caught.value


VALUES = np.arange(1000, dtype=np.float32).reshape(1, 1000)


@pytest.mark.parametrize(
    "compression",
    [grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate],
)
def test_compressed_request_is_answered_as_a_plain_one(
    channel: grpc.Channel, compression: grpc.Compression
) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    answer = stub.ModelInfer(message(VALUES), timeout=LIMIT_S, compression=compression)
    assert answer.raw_output_contents[0] == VALUES.tobytes()
    answers = stub.ModelStreamInfer(
        iter([message(VALUES)] * 3), timeout=LIMIT_S, compression=compression
    )
    received = [each.infer_response.raw_output_contents[0] for each in answers]
    assert received == [VALUES.tobytes()] * 3


def test_message_of_64_mib_goes_there_and_back(channel: grpc.Channel) -> None:
    values = np.arange(MESSAGE_BYTES // 4, dtype=np.float32).reshape(1, -1)
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    answer = stub.ModelInfer(message(values), timeout=LIMIT_S)
    assert answer.raw_output_contents[0] == values.tobytes()


def test_metadata_of_any_kind_does_no_harm(channel: grpc.Channel) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    metadata = [("x-text", "text"), ("x-data-bin", bytes(range(256))), ("x-long", "x" * 4000)]
    answer = stub.ServerReady(service_pb2.ServerReadyRequest(), metadata=metadata, timeout=LIMIT_S)
    assert answer.ready


def test_errors_have_their_code_and_one_sentence(channel: grpc.Channel) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    error = refused(stub.ModelInfer, message(VALUES, "nothing"), timeout=LIMIT_S)
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "nothing" in error.details()
    wrong = message(VALUES)
    wrong.inputs[0].datatype = "INT32"
    error = refused(stub.ModelInfer, wrong, timeout=LIMIT_S)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "INT32" in error.details()
    unknown = channel.unary_unary("/inference.GRPCInferenceService/NoSuchMethod")
    error = refused(unknown, b"", timeout=LIMIT_S)
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def failures(server: ServerProcess) -> tuple[int, int]:
    """Successes and failures of the model `gate` so far."""
    (stats,) = ask(server.http_port, "GET", "/v2/models/gate/stats").json()["model_stats"]
    counts = stats["inference_stats"]
    return counts["success"]["count"], counts["fail"]["count"]


def test_deadline_and_cancel_free_what_waits(
    channel: grpc.Channel, server: ServerProcess, gate: Path
) -> None:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    values = np.array([1, 2], np.float32)
    running = stub.ModelInfer.future(message(values, "gate"), timeout=LIMIT_S)
    wait_until_exists(gate / "started", server)  # it now occupies the only instance
    error = refused(stub.ModelInfer, message(values, "gate"), timeout=0.05)
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    waiting = stub.ModelInfer.future(message(values, "gate"), timeout=LIMIT_S)
    waiting.cancel()
    assert waiting.code() is grpc.StatusCode.CANCELLED
    (gate / "go").touch()
    assert running.result().raw_output_contents[0] == values.tobytes()
    answer = stub.ModelInfer(message(values, "gate"), timeout=LIMIT_S)
    assert answer.raw_output_contents[0] == values.tobytes()
    successes, _ = failures(server)
    assert successes == 2  # what nobody waited for any more was not executed
