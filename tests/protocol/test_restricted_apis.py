"""Calls that need a key: how groups are read, which call belongs to which, and what shows a key."""

from __future__ import annotations

import pytest

from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.http_routes import RouteName
from tritrio.protocol.http_session import HttpLimits, HttpRequest, HttpSession
from tritrio.protocol.restricted_apis import (
    API_NAMES,
    DROPPED_BODY_BYTES_MAX,
    GRPC_APIS,
    HTTP_APIS,
    RestrictedMethods,
    RestrictedRoutes,
    restricted_methods,
    restricted_routes,
)

from .http_bytes import HOST, request_of

GROUPS = ("statistics,metadata:Admin-Key=Pass=Word", " health , logging:other=v:1")
METHODS = RestrictedMethods(GROUPS)
STATISTICS = "/inference.GRPCInferenceService/ModelStatistics"
LIVE = "/inference.GRPCInferenceService/ServerLive"
KEY = "triton-grpc-protocol-admin-key"


def refusal(path: str, *headers: str, method: str = "GET") -> str | None:
    lines = "".join(f"{line}\r\n" for line in headers).encode("latin-1")
    data = f"{method} {path} HTTP/1.1\r\n".encode() + HOST + lines + b"\r\n"
    return RestrictedRoutes(GROUPS).refusal(request_of(data))


def test_every_route_and_every_method_belongs_to_an_api() -> None:
    assert set(HTTP_APIS) == set(RouteName)
    assert set(HTTP_APIS.values()) == set(GRPC_APIS.values()) == set(API_NAMES)


def test_the_apis_are_those_of_triton() -> None:
    assert set(API_NAMES) == {
        "health",
        "metadata",
        "inference",
        "shared-memory",
        "model-config",
        "model-repository",
        "statistics",
        "trace",
        "logging",
    }


def test_without_groups_there_is_nothing_to_ask() -> None:
    assert restricted_routes(()) is None
    assert restricted_methods(()) is None


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ((), False),
        (("admin-key: Pass=Word",), True),
        (("ADMIN-KEY: Pass=Word",), True),
        (("Admin-Key:Pass=Word \t",), True),  # blanks around a value are not part of it
        (("admin-key: pass=word",), False),
        (("admin-key: Pass=Wor",), False),
        (("admin-key: Pass=Word2",), False),
        (("admin-key:",), False),
        (("admin-keys: Pass=Word",), False),
        (("other: Pass=Word",), False),
        (("admin-key: Pass=Word", "Admin-Key: Pass=Word"), True),
        (("admin-key: Pass=Word", "admin-key: wrong"), False),
        (("admin-key: wrong", "admin-key: Pass=Word"), False),
        (("admin-key: Pass=Word, Pass=Word",), False),
        (("admin-key: Pass=W\xf6rd",), False),
    ],
)
def test_a_header_shows_the_key_if_each_of_its_values_does(
    headers: tuple[str, ...], *, allowed: bool
) -> None:
    text = refusal("/v2/models/stats", *headers)
    assert (text is None) is allowed
    if text is not None:
        assert "'admin-key'" in text
        assert "Pass" not in text


@pytest.mark.parametrize(
    ("path", "restricted"),
    [
        ("/v2", True),
        ("/v2?x=1", True),
        ("/v2/models/m", True),
        ("/v2/models/m%20n/versions/7", True),
        ("/v2/models/m/stats", True),
        ("/v2/models/m/batching", True),
        ("/v2/health/live", True),
        ("/v2/logging", True),
        ("/v2/models/m/config", False),
        ("/v2/models/m/infer", False),
        ("/v2/systemsharedmemory/status", False),
        ("/v2/nothing", False),
        ("/v2/models/m%/stats", False),  # no call: it is told so
        ("/v2/models/m/versions/x/stats", False),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS"])
def test_a_path_is_restricted_whatever_the_verb(
    path: str, method: str, *, restricted: bool
) -> None:
    assert (refusal(path, method=method) is not None) is restricted


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        (f"Content-Length: {DROPPED_BODY_BYTES_MAX}", False),
        (f"Content-Length: {DROPPED_BODY_BYTES_MAX + 1}", True),
        (f"Content-Length: {DROPPED_BODY_BYTES_MAX + 1}\r\nAdmin-Key: Pass=Word", False),
        ("Transfer-Encoding: chunked", True),
        ("Accept: a", False),
    ],
)
def test_large_bodies_are_refused_before_they_are_sent(line: str, *, refused: bool) -> None:
    routes = RestrictedRoutes(GROUPS)
    seen: list[str | None] = []

    def admit(request: HttpRequest) -> None:
        seen.append(routes.refusal_of_body(request))

    session = HttpSession(HttpLimits(), admit=admit)
    session.receive_data(b"POST /v2 HTTP/1.1\r\n" + HOST + line.encode() + b"\r\n\r\n")
    assert [text is not None for text in seen] == [refused]


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({}, False),
        ({KEY: ["Pass=Word"]}, True),
        ({KEY: ["Pass=Word", "Pass=Word"]}, True),
        ({KEY: ["Pass=Word", "x"]}, False),
        ({KEY: ["x", "Pass=Word"]}, False),
        ({KEY: ["pass=word"]}, False),
        ({KEY: ["Pass=Word\udcff"]}, False),
        ({"admin-key": ["Pass=Word"]}, False),
    ],
)
def test_metadata_show_the_key_if_each_of_its_values_does(
    given: dict[str, list[str | bytes]], *, allowed: bool
) -> None:
    text = METHODS.refusal(STATISTICS, given)
    assert (text is None) is allowed
    if text is not None:
        assert f"'{KEY}'" in text
        assert "Pass" not in text


def test_each_group_has_its_own_key() -> None:
    right = {"triton-grpc-protocol-other": ["v:1"]}
    assert METHODS.refusal(LIVE, right) is None
    assert METHODS.refusal("/grpc.health.v1.Health/Check", right) is None
    assert METHODS.refusal(STATISTICS, right) is not None
    assert METHODS.refusal(LIVE, {KEY: ["Pass=Word"]}) is not None


def test_methods_of_other_apis_and_unknown_ones_need_no_key() -> None:
    assert METHODS.refusal("/inference.GRPCInferenceService/ModelInfer", {}) is None
    assert METHODS.refusal("/a.B/C", {}) is None


@pytest.mark.parametrize("restrict", [RestrictedRoutes, RestrictedMethods])
@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (["health"], "<key>=<value>"),
        (["health:key"], "'health'"),
        (["health:key="], "'health'"),
        (["health=key:value"], "'health=key'"),
        ([":key=value"], "''"),
        (["health,:key=value"], "''"),
        (["helth:key=value"], "'helth'"),
        (["Health:key=value"], "'Health'"),
        (["health:=value"], "name of a header"),
        (["health:two words=value"], "two words'"),
        (["health:ke\xfd=value"], "ke\xfd"),
        (["health,health:key=value"], "'health' more than once"),
        (["health:a=b", "metadata,health:c=d"], "'health' more than once"),
    ],
)
def test_a_faulty_group_is_refused_with_what_is_wrong(
    restrict: type[RestrictedRoutes | RestrictedMethods], groups: list[str], text: str
) -> None:
    with pytest.raises(RequestError) as caught:
        restrict(groups)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert text.lower() in caught.value.message.lower()
    option = "--http-restricted-api" if restrict is RestrictedRoutes else "--grpc-restricted-pro"
    assert caught.value.message.startswith(option)
    assert "value'" not in caught.value.message
