"""Server reflection: the answers describe exactly what is served, to google's own reader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from grpclib.const import Status
from tritonclient.grpc import service_pb2

from tritrio.protocol.grpc_reflection import served_descriptors
from tritrio.protocol.pb.grpc.reflection.v1 import (
    ExtensionRequest,
    ServerReflectionRequest,
    ServerReflectionResponse,
)
from tritrio.protocol.restricted_apis import GRPC_APIS

ROOT = Path(__file__).resolve().parents[2]
SERVICES = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "inference.GRPCInferenceService",
]


def ask(**question: Any) -> ServerReflectionResponse:
    request = ServerReflectionRequest(host="h", **question)
    response = served_descriptors().answer(request)
    assert response.valid_host == "h"
    assert response.original_request == request
    return ServerReflectionResponse.parse(bytes(response))


def files(**question: Any) -> list[descriptor_pb2.FileDescriptorProto]:
    found = ask(**question).file_descriptor_response
    assert found is not None
    return [
        descriptor_pb2.FileDescriptorProto.FromString(data) for data in found.file_descriptor_proto
    ]


def listed() -> list[str]:
    found = ask(list_services="").list_services_response
    assert found is not None
    return [service.name for service in found.service]


def pool() -> DescriptorPool:
    """Google's reader, filled with all that the answers hold."""
    result = DescriptorPool()
    known: set[str] = set()
    for service in listed():
        for file in reversed(files(file_containing_symbol=service)):
            if file.name not in known:
                known.add(file.name)
                result.Add(file)
    return result


def test_the_services_are_listed() -> None:
    assert listed() == SERVICES


def test_what_is_described_is_what_is_served() -> None:
    described = {
        f"/{service}/{method.name}"
        for service in SERVICES
        for method in pool().FindServiceByName(service).methods
    }
    assert described == set(GRPC_APIS)


def test_the_messages_are_those_of_the_clients() -> None:
    ours = pool()
    for name, message in service_pb2.DESCRIPTOR.message_types_by_name.items():
        described = ours.FindMessageTypeByName(f"inference.{name}")
        assert [(field.name, field.number, field.type) for field in described.fields] == [
            (field.name, field.number, field.type) for field in message.fields
        ], name


def test_a_file_comes_with_those_it_needs_each_once() -> None:
    names = [file.name for file in files(file_by_filename="grpc_service.proto")]
    assert names == ["grpc_service.proto", "model_config.proto"]
    assert [file.name for file in files(file_by_filename="health.proto")] == ["health.proto"]


@pytest.mark.parametrize(
    ("symbol", "file"),
    [
        ("inference.GRPCInferenceService", "grpc_service.proto"),
        ("inference.GRPCInferenceService.ModelInfer", "grpc_service.proto"),
        ("inference.ModelInferRequest", "grpc_service.proto"),
        ("inference.ModelInferRequest.InferInputTensor", "grpc_service.proto"),
        ("inference.ModelInferRequest.InferInputTensor.shape", "grpc_service.proto"),
        ("inference.InferParameter.parameter_choice", "grpc_service.proto"),
        ("inference.ModelConfig", "model_config.proto"),
        ("inference.DataType", "model_config.proto"),
        ("inference.TYPE_FP32", "model_config.proto"),
        ("inference.ModelInstanceGroup.KIND_CPU", "model_config.proto"),
        ("grpc.health.v1.HealthCheckResponse.ServingStatus", "health.proto"),
        ("grpc.health.v1.HealthCheckResponse.SERVING", "health.proto"),
        ("grpc.reflection.v1.ErrorResponse", "reflection.proto"),
        ("grpc.reflection.v1alpha.ErrorResponse", "reflection_v1alpha.proto"),
    ],
)
def test_a_symbol_has_its_file(symbol: str, file: str) -> None:
    assert files(file_containing_symbol=symbol)[0].name == file


@pytest.mark.parametrize(
    ("question", "status"),
    [
        ({"file_by_filename": "nothing.proto"}, Status.NOT_FOUND),
        ({"file_by_filename": ""}, Status.NOT_FOUND),
        ({"file_containing_symbol": "inference.Nothing"}, Status.NOT_FOUND),
        ({"file_containing_symbol": ""}, Status.NOT_FOUND),
        ({"file_containing_symbol": "x" * 10_000}, Status.NOT_FOUND),
        ({"all_extension_numbers_of_type": "inference.Nothing"}, Status.NOT_FOUND),
        (
            {"file_containing_extension": ExtensionRequest("inference.ModelConfig", 1)},
            Status.NOT_FOUND,
        ),
        ({}, Status.INVALID_ARGUMENT),
    ],
)
def test_a_question_without_an_answer_is_answered_with_an_error(
    question: dict[str, Any], status: Status
) -> None:
    error = ask(**question).error_response
    assert error is not None
    assert error.error_code == status.value
    assert 0 < len(error.error_message) < 300


def test_messages_have_no_extensions() -> None:
    found = ask(all_extension_numbers_of_type="inference.ModelConfig")
    numbers = found.all_extension_numbers_response
    assert numbers is not None
    assert (numbers.base_type_name, numbers.extension_number) == ("inference.ModelConfig", [])


def test_no_protobuf_library_is_needed() -> None:
    code = (
        "import sys; from tritrio.protocol.grpc_reflection import served_descriptors;"
        "served_descriptors(); print([m for m in sys.modules if m.startswith('google.protobuf')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert run.stdout == "[]\n"
