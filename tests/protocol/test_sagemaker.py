"""What requests to the SageMaker endpoint mean, and what they are answered with."""

from __future__ import annotations

import orjson
import pytest

from tritrio.protocol.cloud_calls import V2Call
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.http_routes import RouteFault, RouteName, find
from tritrio.protocol.sagemaker import (
    SagemakerCall,
    SagemakerName,
    SagemakerSettings,
    check_place,
    failure_status,
    match,
    model_body,
    models_body,
    parse_load_body,
)


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/ping", SagemakerCall(SagemakerName.PING)),
        ("POST", "/ping", RouteFault.METHOD_NOT_ALLOWED),
        ("POST", "/invocations", SagemakerCall(SagemakerName.INVOCATIONS)),
        ("GET", "/invocations", RouteFault.METHOD_NOT_ALLOWED),
        ("GET", "/models", SagemakerCall(SagemakerName.LIST)),
        ("GET", "/models/", SagemakerCall(SagemakerName.LIST)),
        ("POST", "/models", SagemakerCall(SagemakerName.LOAD)),
        ("DELETE", "/models", RouteFault.METHOD_NOT_ALLOWED),
        ("GET", "/models/a", SagemakerCall(SagemakerName.GET, "a")),
        ("GET", "/models/a%20%2fb", SagemakerCall(SagemakerName.GET, "a /b")),
        ("DELETE", "/models/a", SagemakerCall(SagemakerName.UNLOAD, "a")),
        ("PUT", "/models/a", RouteFault.METHOD_NOT_ALLOWED),
        ("POST", "/models/a/invoke", SagemakerCall(SagemakerName.INVOKE, "a")),
        ("GET", "/models/a/invoke", RouteFault.METHOD_NOT_ALLOWED),
        ("GET", "/models/a/b", RouteFault.NOT_FOUND),
        ("POST", "/v2/models/a/infer", RouteFault.NOT_FOUND),
        ("GET", "/", RouteFault.NOT_FOUND),
    ],
)
def test_a_method_and_a_path_mean_one_call(method: str, path: str, expected: object) -> None:
    assert match(method.encode(), path.encode()) == expected


@pytest.mark.parametrize(
    ("call", "method", "path"),
    [
        (SagemakerCall(SagemakerName.PING), b"GET", b"/v2/health/live"),
        (SagemakerCall(SagemakerName.INVOCATIONS), b"POST", b"/v2/models/a%20b/generate"),
        (SagemakerCall(SagemakerName.INVOKE, "c"), b"POST", b"/v2/models/c/infer"),
        (SagemakerCall(SagemakerName.LIST), b"POST", b"/v2/repository/index"),
        (SagemakerCall(SagemakerName.GET, "c"), b"POST", b"/v2/repository/index"),
        (
            SagemakerCall(SagemakerName.UNLOAD, "c/d"),
            b"POST",
            b"/v2/repository/models/c%2Fd/unload",
        ),
    ],
)
def test_each_call_is_one_of_the_v2_protocol(
    call: SagemakerCall, method: bytes, path: bytes
) -> None:
    settings = SagemakerSettings("a b", "generate", "live")
    assert settings.v2_call(call) == V2Call(method, path)


def test_a_request_to_load_is_a_load_whatever_its_model() -> None:
    call = SagemakerSettings().v2_call(SagemakerCall(SagemakerName.LOAD))
    route = find(call.path)
    assert route is not None
    assert route.name is RouteName.MODEL_LOAD


def test_an_invocation_may_be_for_a_step_of_its_model() -> None:
    call = SagemakerCall(SagemakerName.INVOKE, "c")
    assert SagemakerSettings().v2_call(call, b"x/y").path == b"/v2/models/x%2Fy/infer"


def test_a_name_with_a_bad_escape_is_refused() -> None:
    with pytest.raises(RequestError, match="two hexadecimal digits"):
        match(b"GET", b"/models/%zz")


def test_a_request_to_load_names_a_model_and_a_directory() -> None:
    body = orjson.dumps({"model_name": "a", "url": "/opt/x", "more": 1})
    assert parse_load_body(body) == ("a", "/opt/x")


@pytest.mark.parametrize(
    ("document", "fact"),
    [
        (b"", "expected a JSON object with model_name and url"),
        (b"x", "expected a JSON object with model_name and url"),
        (b"[]", "got an array of 0"),
        (b"{}", "expected model_name to be text that is not empty, got null"),
        (b'{"model_name":"a"}', "expected url to be text that is not empty, got null"),
        (b'{"model_name":1,"url":"/x"}', "expected model_name .* got 1"),
        (b'{"model_name":"","url":"/x"}', "expected model_name .* got ''"),
        (b'{"model_name":"a","url":"x"}', "absolute path without '..', got 'x'"),
        (b'{"model_name":"a","url":"/a/../dev/x"}', "absolute path without '..'"),
        (b'{"model_name":"a","url":"/a\\u0000b"}', "absolute path without '..'"),
        (b'{"model_name":"a","url":"/dev"}', "outside /dev, /proc, /sys, got '/dev'"),
        (b'{"model_name":"a","url":"/proc/self"}', "outside /dev, /proc, /sys"),
        (b'{"model_name":"a","url":"//sys/x"}', "outside /dev, /proc, /sys"),
    ],
)
def test_what_is_wrong_with_a_request_to_load_is_said(document: bytes, fact: str) -> None:
    with pytest.raises(RequestError, match=fact) as caught:
        parse_load_body(document)
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_a_directory_that_only_begins_like_a_forbidden_one_may_hold_models() -> None:
    check_place("/devices/x", "/devices/x")
    check_place("/opt/dev", "/opt/dev")


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("CUDA out of memory. Tried to allocate 2 GiB", 507),
        ("CUDA_ERROR_OUT_OF_MEMORY", 507),
        ("Failed to allocate memory for requested buffer", 507),
        ("CUBLAS_STATUS_ALLOC_FAILED", 507),
        ("initialize raised MemoryError", 507),
        ("No space left on device", 507),
        ("expected an input", 400),
        ("the model ran out of patience", 400),
    ],
)
def test_a_failure_that_looks_like_lack_of_memory_has_a_status_of_its_own(
    message: str, status: int
) -> None:
    assert failure_status(message) == status


def test_models_are_listed_as_the_platform_reads_them() -> None:
    assert model_body("a", "/x") == b'{"modelName":"a","modelUrl":"/x"}'
    assert models_body({}) == b'{"models":[]}'
    assert models_body({"a": "/x"}) == b'{"models":[{"modelName":"a","modelUrl":"/x"}]}'
