"""What requests to the Vertex AI endpoint mean."""

from __future__ import annotations

import pytest

from tests.protocol.cloud_requests import http_request
from tritrio.protocol.cloud_calls import V2Call
from tritrio.protocol.vertex_ai import METRICS, VertexAiFault, VertexAiRoutes

ROUTES = VertexAiRoutes(b"/predict", b"/health", "m")
HEADER = "x-vertex-ai-triton-redirect"


def call(method: str, path: str, redirect: str | None = None, body: bytes = b"") -> object:
    headers = {} if redirect is None else {HEADER: redirect}
    return ROUTES.call(http_request(method, path, headers, body))


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/health", V2Call(b"GET", b"/v2/health/ready")),
        ("GET", "/health?x=1", V2Call(b"GET", b"/v2/health/ready")),
        ("POST", "/health", VertexAiFault.METHOD_NOT_ALLOWED),
        ("HEAD", "/health", VertexAiFault.METHOD_NOT_ALLOWED),
        ("POST", "/predict", V2Call(b"POST", b"/v2/models/m/infer")),
        ("GET", "/predict", VertexAiFault.METHOD_NOT_ALLOWED),
        ("POST", "/predict/", VertexAiFault.NO_ROUTE),
        ("POST", "/v2/models/m/infer", VertexAiFault.NO_ROUTE),
        ("GET", "/", VertexAiFault.NO_ROUTE),
    ],
)
def test_there_are_two_routes(method: str, path: str, expected: object) -> None:
    assert call(method, path) == expected


@pytest.mark.parametrize(
    ("redirect", "method"),
    [
        ("v2", b"GET"),
        ("v2/health/live", b"GET"),
        ("v2/health/ready", b"GET"),
        ("v2/models/stats", b"GET"),
        ("v2/models/m", b"GET"),
        ("v2/models/m/versions/1", b"GET"),
        ("v2/models/m/ready", b"GET"),
        ("v2/models/m/config", b"GET"),
        ("v2/models/m/stats", b"GET"),
        ("v2/models/m/infer", b"POST"),
        ("v2/models/m/versions/1/infer", b"POST"),
        ("v2/repository/index", b"POST"),
        ("v2/systemsharedmemory/status", b"GET"),
        ("v2/systemsharedmemory/region/r/status", b"GET"),
        ("v2/cudasharedmemory/status", b"GET"),
        ("v2/trace/setting", b"GET"),
        ("v2/models/m/trace/setting", b"GET"),
        ("v2/logging", b"GET"),
    ],
)
def test_a_prediction_is_redirected_to_what_the_header_names(redirect: str, method: bytes) -> None:
    assert call("POST", "/predict", redirect) == V2Call(method, b"/" + redirect.encode())


def test_settings_are_read_with_an_empty_body_and_written_with_another() -> None:
    written = V2Call(b"POST", b"/v2/logging")
    assert call("POST", "/predict", "v2/logging", b"{}") == written
    read = V2Call(b"GET", b"/v2/models/m/stats")
    assert call("POST", "/predict", "v2/models/m/stats", b"{}") == read


def test_the_metrics_are_had_by_their_name() -> None:
    assert call("POST", "/predict", "metrics") is METRICS


@pytest.mark.parametrize(
    "redirect",
    [
        "v2/repository/models/m/load",
        "v2/repository/models/m/unload",
        "v2/systemsharedmemory/region/r/register",
        "v2/systemsharedmemory/region/r/unregister",
        "v2/systemsharedmemory/unregister",
        "v2/cudasharedmemory/region/r/register",
        "v2/cudasharedmemory/unregister",
    ],
)
def test_what_changes_models_or_regions_is_forbidden(redirect: str) -> None:
    assert call("POST", "/predict", redirect) is VertexAiFault.FORBIDDEN


@pytest.mark.parametrize(
    "redirect",
    [
        "",
        "/v2",
        "/metrics",
        "v2/nothing",
        "v2?x=1",
        "v2/models/m/generate",
        "v2/models/m/versions/x/infer",
        "v2/models/%zz/infer",
    ],
)
def test_anything_else_is_no_call(redirect: str) -> None:
    assert call("POST", "/predict", redirect) is VertexAiFault.NO_REDIRECT


def test_a_header_redirects_predictions_only() -> None:
    assert call("GET", "/predict", "v2") is VertexAiFault.METHOD_NOT_ALLOWED
    assert call("POST", "/other", "v2") is VertexAiFault.NO_ROUTE
