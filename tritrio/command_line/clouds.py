"""The options about the endpoints of SageMaker and of Vertex AI, and their environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..options import SagemakerOptions, VertexAiOptions
from ..protocol.sagemaker import INFERENCE_TYPES, PING_MODES, SagemakerSettings
from . import kinds
from .errors import CommandLineError
from .option import Group, Option

CLOUDS: Final = Group(
    "SageMaker and Vertex AI",
    (
        Option("--allow-sagemaker", kinds.BOOL, "false", "serve the endpoint of SageMaker"),
        Option("--sagemaker-port", kinds.PORT, "8080", "port to listen on; 0 for any free one"),
        Option(
            "--sagemaker-safe-port-range",
            kinds.PORT_RANGE,
            "",
            "ports that the other services may have",
        ),
        Option(
            "--allow-vertex-ai",
            kinds.BOOL,
            "false",
            "serve the endpoint of Vertex AI; by default where AIP_MODE is PREDICTION, which turns "
            "HTTP and gRPC off",
        ),
        Option(
            "--vertex-ai-port",
            kinds.PORT,
            "8080",
            "port to listen on; 0 for any free one; by default AIP_HTTP_PORT, where it is set",
        ),
        Option(
            "--vertex-ai-default-model",
            kinds.NAME,
            "",
            "model of predictions; by default the only one there is",
        ),
    ),
)


def in_vertex_ai(environment: Mapping[str, str]) -> bool:
    """Whether Vertex AI started this process to make predictions."""
    return environment.get("AIP_MODE") == "PREDICTION"


def sagemaker_options(
    given: Mapping[str, Any], environment: Mapping[str, str], address: str
) -> SagemakerOptions | None:
    """Return how SageMaker's endpoint is served; None for not at all."""
    if not given.get("--allow-sagemaker", False):
        return None
    settings = SagemakerSettings(
        default_model=environment.get("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", ""),
        inference_type=_one_of(environment, "SAGEMAKER_TRITON_INFERENCE_TYPE", INFERENCE_TYPES),
        ping_mode=_one_of(environment, "SAGEMAKER_TRITON_PING_MODE", PING_MODES),
    )
    port: int = given.get("--sagemaker-port", 8080)
    return SagemakerOptions(address=address, port=port, settings=settings)


def _one_of(environment: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """Return a variable's value, the first word where it is not set."""
    value = environment.get(name) or words[0]
    if value not in words:
        raise CommandLineError(f"{name}: expected one of {', '.join(words)}, got '{value}'")
    return value


def vertex_ai_options(
    given: Mapping[str, Any], environment: Mapping[str, str], address: str
) -> VertexAiOptions | None:
    """Return how Vertex AI's endpoint is served; None for not at all."""
    if not given.get("--allow-vertex-ai", in_vertex_ai(environment)):
        return None
    routes: dict[str, str] = {}
    for name in ("AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE"):
        routes[name] = environment.get(name, "")
        if not routes[name].startswith("/"):
            raise CommandLineError(
                f"--allow-vertex-ai needs {name} in the environment, a path that begins with '/', "
                f"got '{routes[name]}'"
            )
    return VertexAiOptions(
        predict_route=routes["AIP_PREDICT_ROUTE"],
        health_route=routes["AIP_HEALTH_ROUTE"],
        address=address,
        port=_vertex_ai_port(given, environment),
        default_model=given.get("--vertex-ai-default-model", ""),
    )


def _vertex_ai_port(given: Mapping[str, Any], environment: Mapping[str, str]) -> int:
    if "--vertex-ai-port" in given:
        port: int = given["--vertex-ai-port"]
        return port
    text = environment.get("AIP_HTTP_PORT") or "8080"
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= kinds.PORT_MAX):
        raise CommandLineError(
            f"AIP_HTTP_PORT: expected a port number up to {kinds.PORT_MAX}, got '{text}'"
        )
    return int(text)


def check_safe_ports(ports: range | None, services: Iterable[tuple[str, int]]) -> None:
    """Refuse services on ports that SageMaker does not leave to them.

    Args:
      ports: Those it leaves to them; None for all.
      services: Names and ports of the services but SageMaker's endpoint.
    """
    for name, port in services:
        if ports is not None and port not in ports:
            raise CommandLineError(
                f"{name} cannot be served on port {port}: --sagemaker-safe-port-range allows "
                f"{ports[0]} to {ports[-1]}"
            )
