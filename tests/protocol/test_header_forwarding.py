"""Headers that become parameters: which names match, what values become, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.header_forwarding import (
    RESERVED_NAMES,
    HeaderForwarding,
    header_forwarding,
)

from .http_bytes import HOST, request_of

OPTION = "--http-header-forward-pattern"


def http(pattern: str, *headers: tuple[str, bytes]) -> dict[str, Any]:
    lines = b"".join(b"%b: %b\r\n" % (name.encode(), value) for name, value in headers)
    request = request_of(b"GET / HTTP/1.1\r\n" + HOST + lines + b"\r\n")
    return HeaderForwarding(pattern, OPTION).http_parameters(request)


def grpc(pattern: str, metadata: dict[str, list[str | bytes]]) -> dict[str, Any]:
    return HeaderForwarding(pattern, OPTION).grpc_parameters(metadata)


def test_no_pattern_forwards_nothing() -> None:
    assert header_forwarding("", OPTION) is None


@pytest.mark.parametrize(
    ("pattern", "name", "forwarded"),
    [
        ("(x_.*)", "x_user", True),
        ("(x_.*)", "X_User", True),
        ("(x_.*)", "pre_x_user", True),  # found anywhere in the name
        ("^x_", "pre_x_user", False),
        ("(x_.*)", "y_user", False),
        ("(?-i)x_", "x_user", True),
        ("(?-i)x_", "X_User", False),
        ("(?i)x_", "X_User", True),
        ("y.*g", "anything", True),
        (r"\Qx.y\E", "x.y", True),
        (r"\pL-[[:digit:]]", "a-1", True),
        ("x", "X" * 4096, True),
    ],
)
def test_names_match_as_triton_matches_them(pattern: str, name: str, *, forwarded: bool) -> None:
    assert http(pattern, (name, b"v")) == ({name: "v"} if forwarded else {})


def test_names_keep_the_case_they_were_sent_in() -> None:
    assert http("x_", ("X_a", b"1"), ("x_A", b"2"), ("x_A", b"3")) == {"X_a": "1", "x_A": "3"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"", ""),
        ("Ω 漢字".encode(), "Ω 漢字"),
        (b"caf\xe9", "café"),  # Latin-1, which HTTP headers once were
        (b"y" * 60_000, "y" * 60_000),
    ],
)
def test_a_value_is_text_whatever_it_is_made_of(value: bytes, text: str) -> None:
    assert http("x", ("x", value)) == {"x": text}


def test_metadata_are_forwarded_with_the_last_of_their_values() -> None:
    assert grpc("x", {"x": ["1", "2"], "y": ["3"]}) == {"x": "2"}


def test_a_pattern_in_capitals_matches_metadata_too() -> None:
    assert grpc("X_", {"x_a": ["1"]}) == {"x_a": "1"}
    assert grpc("(?-i)X_", {"x_a": ["1"]}) == {}


def test_binary_metadata_are_forwarded_in_base64() -> None:
    assert grpc("x", {"x-bin": [b"\0\xff\1"]}) == {"x-bin": "AP8B"}


@pytest.mark.parametrize("name", [*RESERVED_NAMES, "triton_x", "triton_"])
def test_reserved_names_are_refused_if_they_match(name: str) -> None:
    for given in (name, name.upper()):
        with pytest.raises(RequestError) as caught:
            http(f"(?-i)^{given}$", (given, b"1"))
        assert caught.value.code is ErrorCode.INVALID_ARG
        assert f"'{given}'" in caught.value.message
    with pytest.raises(RequestError, match=name):
        grpc(".", {name: ["1"]})
    assert http("other", (name, b"1")) == grpc("other", {name: ["1"]}) == {}


def test_the_wish_for_grpc_errors_is_neither_forwarded_nor_refused() -> None:
    assert grpc(".", {"triton_grpc_error": ["true"], "x": ["1"]}) == {"x": "1"}


@pytest.mark.parametrize("pattern", ["(", "*", "a{2,1}", "(?=x)", r"(x)\1", "[b-a]", "a{5000}"])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(RequestError) as caught:
        HeaderForwarding(pattern, OPTION)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert OPTION in caught.value.message
    assert f"'{pattern}'" in caught.value.message


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|aa)+$", "(a?){50}a{50}", ".*.*.*.*.*.*=", "((a*)*)*="]
)
def test_no_pattern_and_no_name_take_for_ever(pattern: str) -> None:
    names: dict[str, list[str | bytes]] = {f"{'a' * 100}{n}!": ["v"] for n in range(256)}
    assert grpc(pattern, names).keys() <= names.keys()
