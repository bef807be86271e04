"""A client that knows nothing of the protocol learns it from the server, and uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.support.server_process import ServerProcess, running_server
from tritrio.protocol.pb.grpc.reflection.v1 import (
    ServerReflectionRequest,
    ServerReflectionResponse,
)

from .models import copy_example

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HOST = "127.0.0.1"
LIMIT_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("reflection")
    copy_example(directory / "models", "identity")
    with running_server(directory / "models", directory / "log") as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


@pytest.fixture
def channel(server: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"{HOST}:{server.grpc_port}") as opened:
        yield opened


def ask(
    channel: grpc.Channel, questions: list[ServerReflectionRequest], version: str = "v1"
) -> list[ServerReflectionResponse]:
    """The answers to questions on one stream."""
    method = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=bytes,
        response_deserializer=ServerReflectionResponse.parse,
    )
    return list(method(iter(questions), timeout=LIMIT_S))


def learned(channel: grpc.Channel) -> descriptor_pool.DescriptorPool:
    """All that the server says of its services."""
    pool = descriptor_pool.DescriptorPool()
    (listing,) = ask(channel, [ServerReflectionRequest(list_services="*")])
    assert listing.list_services_response is not None
    known: set[str] = set()
    for service in listing.list_services_response.service:
        (answer,) = ask(channel, [ServerReflectionRequest(file_containing_symbol=service.name)])
        assert answer.file_descriptor_response is not None
        for data in reversed(answer.file_descriptor_response.file_descriptor_proto):
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            if file.name not in known:
                known.add(file.name)
                pool.Add(file)
    return pool


def call(channel: grpc.Channel, pool: Any, called: str, /, **members: Any) -> Any:
    """Call a method of the inference service with what was learned of it."""
    method = pool.FindServiceByName("inference.GRPCInferenceService").methods_by_name[called]
    request = message_factory.GetMessageClass(method.input_type)(**members)
    return channel.unary_unary(
        f"/inference.GRPCInferenceService/{called}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )(request, timeout=LIMIT_S)


def test_a_client_can_call_what_it_has_learned(channel: grpc.Channel) -> None:
    pool = learned(channel)
    assert call(channel, pool, "ServerLive").live
    config = call(channel, pool, "ModelConfig", name="identity").config
    assert config.name == "identity"
    one: dict[str, Any] = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2]}
    one["contents"] = {"fp32_contents": [1.5, -2]}
    answer = call(channel, pool, "ModelInfer", model_name="identity", inputs=[one])
    assert answer.outputs[0].shape == [1, 2]
    assert len(answer.raw_output_contents[0]) == 8


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_questions_of_one_stream_are_answered_in_order(channel: grpc.Channel, version: str) -> None:
    names = ["health.proto", "nothing", "model_config.proto"] * 100
    answers = ask(
        channel, [ServerReflectionRequest(file_by_filename=name) for name in names], version
    )
    asked = [answer.original_request for answer in answers]
    assert [request.file_by_filename for request in asked if request is not None] == names
    assert [answer.error_response is not None for answer in answers] == [False, True, False] * 100


@pytest.mark.parametrize(
    ("question", "status"),
    [
        (b"\xff", grpc.StatusCode.INTERNAL),
        (bytes(ServerReflectionRequest(host="x" * 70_000)), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_what_is_no_question_ends_the_stream_and_no_other(
    channel: grpc.Channel, question: bytes, status: grpc.StatusCode
) -> None:
    method = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    with pytest.raises(grpc.RpcError) as caught:
        list(method(iter([question]), timeout=LIMIT_S))
    assert caught.value.code() is status
    assert len(ask(channel, [ServerReflectionRequest(list_services="")])) == 1
