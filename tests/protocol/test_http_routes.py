from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tritrio.protocol import http_routes
from tritrio.protocol.errors import RequestError
from tritrio.protocol.http_routes import CACHED_PATHS_MAX, Route, RouteFault, RouteName, match

from .infer_specs import PROPERTY, Refused


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/v2", (RouteName.SERVER_METADATA, "", "", "")),
        ("GET", "/v2/health/live", (RouteName.SERVER_LIVE, "", "", "")),
        ("GET", "/v2/health/ready", (RouteName.SERVER_READY, "", "", "")),
        ("GET", "/v2/models/stats", (RouteName.MODEL_STATISTICS, "", "", "")),
        ("GET", "/v2/models/m/stats", (RouteName.MODEL_STATISTICS, "m", "", "")),
        ("GET", "/v2/models/m/versions/2/stats", (RouteName.MODEL_STATISTICS, "m", "2", "")),
        ("GET", "/v2/models/stats/ready", (RouteName.MODEL_READY, "stats", "", "")),
        ("GET", "/v2/models/m", (RouteName.MODEL_METADATA, "m", "", "")),
        ("GET", "/v2/models/m/versions/007", (RouteName.MODEL_METADATA, "m", "7", "")),
        ("GET", "/v2/models/m/ready", (RouteName.MODEL_READY, "m", "", "")),
        ("GET", "/v2/models/m/versions/1/ready", (RouteName.MODEL_READY, "m", "1", "")),
        ("GET", "/v2/models/m/config", (RouteName.MODEL_CONFIG, "m", "", "")),
        ("GET", "/v2/models/m/versions/1/config", (RouteName.MODEL_CONFIG, "m", "1", "")),
        ("POST", "/v2/models/m/infer", (RouteName.MODEL_INFER, "m", "", "")),
        ("POST", "/v2/models/m/infer?x=1", (RouteName.MODEL_INFER, "m", "", "")),
        ("POST", "/v2/models/m/versions/1/infer", (RouteName.MODEL_INFER, "m", "1", "")),
        ("POST", "/v2/models/a%20b%2Fc%C3%A9%25/infer", (RouteName.MODEL_INFER, "a b/cé%", "", "")),
        ("POST", "/v2/models/a+b/infer", (RouteName.MODEL_INFER, "a+b", "", "")),
        ("POST", "/v2/models/%2541/infer", (RouteName.MODEL_INFER, "%41", "", "")),
        ("POST", "/v2/repository/index", (RouteName.REPOSITORY_INDEX, "", "", "")),
        ("POST", "/v2/repository/r/index", (RouteName.REPOSITORY_INDEX, "", "", "r")),
        ("POST", "/v2/repository/models/m/load", (RouteName.MODEL_LOAD, "m", "", "")),
        ("POST", "/v2/repository/r/models/m/load", (RouteName.MODEL_LOAD, "m", "", "r")),
        ("POST", "/v2/repository/models/m/unload", (RouteName.MODEL_UNLOAD, "m", "", "")),
        ("POST", "/v2/repository/r/models/m/unload", (RouteName.MODEL_UNLOAD, "m", "", "r")),
    ],
)
def test_each_call_has_its_path(method: Any, path: Any, expected: Any) -> None:
    for _ in range(2):
        route = match(method.encode(), path.encode())
        assert isinstance(route, Route)
        assert (route.name, route.model, route.version, route.repository) == expected
    wrong = {"GET": b"POST", "POST": b"GET"}[method]
    for verb in (wrong, b"PUT", b"HEAD", b"OPTIONS", b"DELETE"):
        assert match(verb, path.encode()) is RouteFault.METHOD_NOT_ALLOWED


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "*",
        "/v1",
        "/v2/",
        "/v2/models",
        "/v2/models/",
        "/v2/models//infer",
        "/v2/models/m/",
        "/v2/models/m/nope",
        "/v2/models/m/infer/",
        "/v2/models/m/versions",
        "/v2/models/m/versions//infer",
        "/v2/models/a/b/infer",
        "/v2/repository",
        "/v2/repository/models/m",
        "/V2",
        "/v2\n",
        "x/v2",
    ],
)
def test_other_paths_are_not_found(path: Any) -> None:
    assert match(b"GET", path.encode()) is RouteFault.NOT_FOUND
    assert match(b"POST", path.encode()) is RouteFault.NOT_FOUND


@pytest.mark.parametrize("version", ["abc", "-1", "1.5", "1_0", "%D9%A3", "9223372036854775808"])
def test_a_version_that_is_no_positive_integer_is_named(version: Any) -> None:
    shown = {"%D9%A3": "٣"}.get(version, version)
    for _ in range(2):
        with Refused(f"'{shown}'", "integer > 0"):
            match(b"POST", f"/v2/models/m/versions/{version}/infer".encode())


def test_the_highest_version_is_taken() -> None:
    route = match(b"GET", b"/v2/models/m/versions/9223372036854775807")
    assert isinstance(route, Route)
    assert route.version == "9223372036854775807"


@pytest.mark.parametrize("name", [b"%", b"%4", b"%zz", b"a%g0", b"%ff", b"\xff", b"%C3"])
def test_bad_escapes_and_bad_utf8_are_refused(name: Any) -> None:
    with Refused("model name"):
        match(b"GET", b"/v2/models/%b" % name)


def test_kept_paths_are_bounded() -> None:
    for number in range(CACHED_PATHS_MAX + 10):
        match(b"GET", b"/v2/models/m%d" % number)
        assert len(http_routes._routes) <= CACHED_PATHS_MAX
    match(b"GET", b"/v2/models/" + b"x" * 5000)
    assert all(len(path) < 5000 for path in http_routes._routes)


@PROPERTY
@given(st.lists(st.sampled_from([b"v2", b"models", b"%", b"versions", b"\xff", b"1", b"index"])))
def test_random_paths_never_raise_anything_but_request_errors(segments: Any) -> None:
    with suppress(RequestError):
        match(b"GET", b"/" + b"/".join(segments))
