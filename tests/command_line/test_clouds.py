"""The options of SageMaker's and Vertex AI's endpoints, and what the environment adds to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritrio.command_line.assembly import parse_command_line
from tritrio.options import SagemakerOptions, ServerOptions, VertexAiOptions
from tritrio.protocol.sagemaker import SagemakerSettings

ROUTES = {"AIP_PREDICT_ROUTE": "/predict", "AIP_HEALTH_ROUTE": "/health"}
VERTEX = VertexAiOptions(predict_route="/predict", health_route="/health")


def parse(*arguments: str, **environment: str) -> ServerOptions:
    line = parse_command_line(["--model-repository=models", *arguments], environment)
    assert line.warnings == ()
    return line.options


def fault(capsys: pytest.CaptureFixture[str], *arguments: str, **environment: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parse(*arguments, **environment)
    assert caught.value.code == 1
    return capsys.readouterr().err


def test_neither_endpoint_is_served_unless_it_is_asked_for() -> None:
    options = parse("--sagemaker-port=1", "--vertex-ai-port=2", **ROUTES)
    assert (options.sagemaker, options.vertex_ai) == (None, None)


def test_sagemaker_is_told_by_options_and_by_its_environment() -> None:
    assert parse("--allow-sagemaker=true").sagemaker == SagemakerOptions()
    options = parse(
        "--allow-sagemaker=true",
        "--sagemaker-port=81",
        "--http-address=127.0.0.1",
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="m",
        SAGEMAKER_TRITON_INFERENCE_TYPE="generate",
        SAGEMAKER_TRITON_PING_MODE="live",
    )
    settings = SagemakerSettings(default_model="m", inference_type="generate", ping_mode="live")
    assert options.sagemaker == SagemakerOptions(address="127.0.0.1", port=81, settings=settings)
    assert options.http_address == "127.0.0.1"


def test_other_ports_beside_a_unix_socket_are_for_this_machine_alone() -> None:
    options = parse("--allow-sagemaker=true", "--http-address=unix:/a")
    assert options.sagemaker == SagemakerOptions(address="127.0.0.1")
    assert options.metrics_address == "127.0.0.1"
    assert parse("--metrics-address=::", "--http-address=unix:/a").metrics_address == "::"


def test_vertex_ai_needs_its_routes() -> None:
    assert parse("--allow-vertex-ai=true", **ROUTES).vertex_ai == VERTEX
    options = parse(
        "--allow-vertex-ai=true", "--vertex-ai-port=81", "--vertex-ai-default-model=m", **ROUTES
    )
    assert options.vertex_ai == VertexAiOptions(
        predict_route="/predict", health_route="/health", port=81, default_model="m"
    )
    assert options.http_address is not None


def test_in_vertex_ai_its_endpoint_is_on_and_http_and_grpc_are_off() -> None:
    options = parse(AIP_MODE="PREDICTION", AIP_HTTP_PORT="83", **ROUTES)
    assert options.vertex_ai == VertexAiOptions(
        predict_route="/predict", health_route="/health", port=83
    )
    assert (options.http_address, options.grpc_address) == (None, None)
    assert options.metrics_address == "0.0.0.0"
    given = parse(
        "--allow-http=true",
        "--allow-grpc=true",
        "--vertex-ai-port=84",
        AIP_MODE="PREDICTION",
        AIP_HTTP_PORT="83",
        **ROUTES,
    )
    assert given.vertex_ai is not None
    assert given.vertex_ai.port == 84
    assert None not in (given.http_address, given.grpc_address)
    off = parse("--allow-vertex-ai=false", AIP_MODE="PREDICTION")
    assert off.vertex_ai is None
    assert parse(AIP_MODE="TRAINING").http_address is not None


def test_the_repository_is_where_vertex_ai_has_put_the_models() -> None:
    options = parse_command_line([], {"AIP_STORAGE_URI": "/x"}).options
    assert options.model_repositories == (Path("/x"),)
    assert parse(AIP_STORAGE_URI="/x").model_repositories == (Path("models"),)


@pytest.mark.parametrize(
    ("arguments", "environment", "facts"),
    [
        (["--allow-vertex-ai=1"], {}, ["AIP_PREDICT_ROUTE", "got ''"]),
        (["--allow-vertex-ai=1"], {**ROUTES, "AIP_HEALTH_ROUTE": "h"}, ["AIP_HEALTH_ROUTE", "'h'"]),
        (["--allow-vertex-ai=1"], {**ROUTES, "AIP_HTTP_PORT": "x"}, ["AIP_HTTP_PORT", "'x'"]),
        (["--allow-vertex-ai=1"], {**ROUTES, "AIP_HTTP_PORT": "70000"}, ["up to 65535"]),
        (
            ["--allow-sagemaker=1"],
            {"SAGEMAKER_TRITON_PING_MODE": "x"},
            ["SAGEMAKER_TRITON_PING_MODE: expected one of ready, live, got 'x'"],
        ),
        (
            ["--allow-sagemaker=1"],
            {"SAGEMAKER_TRITON_INFERENCE_TYPE": "x"},
            ["SAGEMAKER_TRITON_INFERENCE_TYPE", "infer, generate, generate_stream", "'x'"],
        ),
        (
            ["--allow-sagemaker=1", "--allow-vertex-ai=1"],
            ROUTES,
            ["SageMaker and Vertex AI cannot both be served on 0.0.0.0, port 8080"],
        ),
        (
            ["--allow-sagemaker=1", "--sagemaker-port=8000"],
            {},
            ["HTTP and SageMaker cannot both be served on 0.0.0.0, port 8000"],
        ),
        (
            ["--sagemaker-safe-port-range=8000-8001"],
            {},
            ["metrics cannot be served on port 8002", "allows 8000 to 8001"],
        ),
        (
            ["--allow-vertex-ai=1", "--sagemaker-safe-port-range=8000-8002"],
            ROUTES,
            ["Vertex AI cannot be served on port 8080"],
        ),
        (["--sagemaker-safe-port-range=9-8"], {}, ["the lower one first", "'9-8'"]),
        (["--sagemaker-safe-port-range=9-70000"], {}, ["none above 65535"]),
    ],
)
def test_what_does_not_fit_is_named(
    arguments: list[str],
    environment: dict[str, str],
    facts: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = fault(capsys, *arguments, **environment)
    assert [fact for fact in facts if fact not in line] == []


def test_the_safe_range_is_for_the_other_services() -> None:
    options = parse("--allow-sagemaker=1", "--sagemaker-safe-port-range=8000-8002")
    assert options.sagemaker is not None
    assert options.sagemaker.port == 8080
