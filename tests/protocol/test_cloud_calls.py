"""Where the length of the JSON part stands, and what a call of a cloud becomes."""

from __future__ import annotations

import pytest

from tests.protocol.cloud_requests import http_request
from tritrio.protocol.cloud_calls import BinaryType, V2Call, model_path, readdress
from tritrio.protocol.errors import RequestError
from tritrio.protocol.http_routes import RouteName, find

TYPE = BinaryType("cloud")
NAME = "application/vnd.cloud-triton.binary+json"


def length_of(content_type: str, body_bytes: int | None = 99, **more: str) -> bytes | None:
    request = http_request("POST", "/", {"content-type": content_type, **more})
    return TYPE.length_of(request, body_bytes)


@pytest.mark.parametrize(
    ("content_type", "length"),
    [
        (f"{NAME};json-header-size=12", b"12"),
        (f"{NAME};json-header-size=0", b"0"),
        (f"{NAME};json-header-size=99", b"99"),
        (f"{NAME}; json-header-size=12", b"12"),
        (f' {NAME.upper()} ;JSON-Header-Size="12" ', b"12"),
        ("application/json", None),
        ("application/octet-stream;json-header-size=12", None),
        ("application/vnd.other-triton.binary+json;json-header-size=12", None),
        (f"{NAME}x;json-header-size=12", None),
        (f"{NAME};a=1", None),  # another type, as far as this one goes
        ("", None),
    ],
)
def test_the_content_type_tells_the_length_of_the_json_part(
    content_type: str, length: bytes | None
) -> None:
    assert length_of(content_type) == length


@pytest.mark.parametrize("value", [";json-header-size=x", ";json-header-size=-5", ""])
def test_a_length_that_is_none_is_refused_with_what_was_expected(value: str) -> None:
    with pytest.raises(RequestError, match="json-header-size=<bytes of the JSON part>"):
        length_of(NAME + value)


def test_a_length_beyond_the_body_is_refused() -> None:
    with pytest.raises(RequestError, match="in the range 0 to 11, the content length, got 12"):
        length_of(f"{NAME};json-header-size=12", 11)
    assert length_of(f"{NAME};json-header-size=12", None) == b"12"  # nobody knows yet
    coded = {"content-encoding": "gzip"}
    assert length_of(f"{NAME};json-header-size=12", 11, **coded) == b"12"  # of what it holds


def test_a_response_has_the_length_in_its_content_type() -> None:
    assert TYPE.headers(7) == [(b"Content-Type", f"{NAME};json-header-size=7".encode())]


def test_a_request_becomes_that_of_another_call_and_keeps_what_it_was_sent_with() -> None:
    headers = {
        "k": "v",
        "inference-header-content-length": "5",
        "accept-encoding": "gzip",
        "content-encoding": "gzip",
    }
    request = http_request("PUT", "/x", headers, b"body")
    shared, raw = request.headers, list(request.raw_headers)
    readdress(request, V2Call(b"POST", b"/v2"))
    assert (request.method, request.path, request.target) == (b"POST", b"/v2", b"/x")
    kept = {"host", "content-length", "k", "content-encoding"}
    assert {name.decode() for name in request.headers} == kept
    assert request.raw_headers == raw
    assert b"accept-encoding" in shared  # other requests have it, too
    readdress(request, V2Call(b"POST", b"/v2"), b"3")
    assert request.headers[b"inference-header-content-length"] == b"3"


@pytest.mark.parametrize("name", ["m", "a b", "ü", "a/b", "50%"])
def test_the_path_of_a_model_leads_to_it_whatever_its_name(name: str) -> None:
    route = find(model_path(name, "infer"))
    assert route is not None
    assert (route.name, route.model) == (RouteName.MODEL_INFER, name)
