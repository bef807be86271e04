"""JSON bodies of the shared memory calls."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tritrio.protocol.shared_memory_codec import (
    parse_cuda_registration,
    parse_system_registration,
    system_status,
)

from .infer_specs import Refused

HANDLE = bytes(range(64))
CUDA: dict[str, Any] = {
    "raw_handle": {"b64": base64.b64encode(HANDLE).decode()},
    "device_id": 0,
    "byte_size": 64,
}


class Entry:
    name = 'a "b"'
    key = "/\udcff"
    offset = 4096
    byte_size = 2**63


def test_a_system_registration_has_an_offset_or_starts_at_0() -> None:
    body = b'{"key":"/k","offset":4096,"byte_size":18446744073709551615}'
    assert parse_system_registration(body) == ("/k", 4096, 2**64 - 1)
    assert parse_system_registration(b'{"key":"","byte_size":1,"more":{}}') == ("", 0, 1)


@pytest.mark.parametrize(
    ("body", "fact"),
    [
        (b"", "not valid JSON"),
        (b"[]", "a JSON object"),
        (b'{"byte_size":1}', "lacks the member 'key'"),
        (b'{"key":1,"byte_size":1}', "'key' of the shared memory register request must be a str"),
        (b'{"key":"k"}', "lacks the member 'byte_size'"),
        (b'{"key":"k","byte_size":-1}', "got -1"),
        (b'{"key":"k","byte_size":18446744073709551616}', "to 18446744073709551615"),
        (b'{"key":"k","byte_size":true}', "got true"),
        (b'{"key":"k","byte_size":1,"offset":null}', "'offset'"),
        (b'{"key":"k","byte_size":1.0}', "got 1.0"),
    ],
)
def test_faults_of_a_system_registration_are_named(body: bytes, fact: str) -> None:
    with Refused(fact):
        parse_system_registration(body)


def test_a_cuda_registration_gives_its_handle() -> None:
    assert parse_cuda_registration(json.dumps(CUDA).encode()) == HANDLE


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"raw_handle": None}, ("'raw_handle'", "'b64'")),
        ({"raw_handle": {}}, ("'raw_handle'", "'b64'")),
        ({"raw_handle": {"b64": 1}}, ("'raw_handle'", "'b64'")),
        ({"raw_handle": {"b64": "%%%"}}, ("'raw_handle'", "base64", "'%%%'")),
        ({"raw_handle": {"b64": "\u00e9"}}, ("'raw_handle'", "base64")),
        ({"device_id": "0"}, ("'device_id'", "'0'")),
        ({"byte_size": -1}, ("'byte_size'", "-1")),
    ],
)
def test_faults_of_a_cuda_registration_are_named(
    changes: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with Refused(*facts):
        parse_cuda_registration(json.dumps({**CUDA, **changes}).encode())


@pytest.mark.parametrize("member", list(CUDA))
def test_a_cuda_registration_needs_every_member(member: str) -> None:
    body = {name: value for name, value in CUDA.items() if name != member}
    with Refused(f"lacks the member '{member}'"):
        parse_cuda_registration(json.dumps(body).encode())


def test_the_status_is_an_array_of_regions() -> None:
    assert system_status([]) == b"[]"
    assert json.loads(system_status([Entry()])) == [
        {"name": 'a "b"', "key": "/\udcff", "offset": 4096, "byte_size": 2**63}
    ]
