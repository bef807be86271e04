"""Load, unload and index requests: what they say, and which parameter is at fault."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb.inference import ModelRepositoryParameter as Parameter
from tritrio.protocol.repository_control import (
    parse_index_body,
    parse_load_body,
    parse_load_message,
    parse_unload_body,
    parse_unload_message,
    refuse_repository_name,
)

from .infer_specs import Refused


def body(**parameters: Any) -> bytes:
    return json.dumps({"parameters": parameters}).encode()


def with_files(*paths: str) -> dict[str, Parameter]:
    return {f"file:{path}": Parameter(bytes_param=path.encode()) for path in paths}


def paths_of(*paths: str) -> list[str]:
    return list(parse_load_message(with_files(*paths))[1])


# The index.


@pytest.mark.parametrize(
    ("text", "ready"), [(b"", False), (b"{}", False), (b'{"ready":true}', True)]
)
def test_an_index_request_may_ask_for_ready_models(text: bytes, ready: bool) -> None:
    assert parse_index_body(text) is ready


def test_an_index_request_of_another_kind_is_refused() -> None:
    with Refused("'ready'", "a boolean", "got 1"):
        parse_index_body(b'{"ready":1}')
    with Refused("JSON object"):
        parse_index_body(b"[]")


def test_a_repository_is_not_chosen_by_name() -> None:
    refuse_repository_name("")
    with pytest.raises(RequestError, match="'mine'") as caught:
        refuse_repository_name("mine")
    assert caught.value.code is ErrorCode.UNSUPPORTED


# Loading.


@pytest.mark.parametrize("text", [b"", b"{}", b'{"parameters":{}}', b'{"id":1}'])
def test_a_load_without_parameters_overrides_nothing(text: bytes) -> None:
    assert parse_load_body(text) == (None, {})
    assert parse_load_message({}) == (None, {})


def test_both_protocols_say_the_same_of_a_configuration_and_files() -> None:
    content = bytes(range(256))
    over_http = body(
        config='{"a":1}', **{"file:1/model.py": base64.b64encode(content).decode(), "file:l": ""}
    )
    over_grpc = {
        "config": Parameter(string_param='{"a":1}'),
        "file:1/model.py": Parameter(bytes_param=content),
        "file:l": Parameter(bytes_param=b""),
    }
    expected = ('{"a":1}', {"1/model.py": content, "l": b""})
    assert parse_load_body(over_http) == parse_load_message(over_grpc) == expected


def test_a_configuration_that_is_an_object_gets_a_hint() -> None:
    with Refused("'config'", "must be a string, got an object", "as JSON text into a string"):
        parse_load_body(body(config={"backend": "python"}))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (3, ("'parameters'", "an object", "got 3")),
        (None, ("'parameters'", "got null")),
        ({"config": 3}, ("'config'", "must be a string, got 3")),
        ({"config": None}, ("'config'", "got null")),
        ({"confg": "{}"}, ("takes the parameters 'config' and 'file:", "got 'confg'")),
        ({"file:1/m": 3}, ("'file:1/m'", "a string in base64, got 3")),
        ({"file:1/m": "YWI"}, ("'file:1/m'", "3 characters that are not", "padding")),
        ({"file:1/m": "YW Jj"}, ("'file:1/m'", "base64 without line ends")),
        ({"file:1/m": "YWJj\n"}, ("'file:1/m'", "base64 without line ends")),
        ({"file:1/m": "YW\u00e9j"}, ("'file:1/m'", "ascii")),
        ({"file:1/m": "-_-_"}, ("'file:1/m'",)),
    ],
)
def test_a_fault_over_http_names_its_parameter(parameters: Any, words: tuple[str, ...]) -> None:
    with Refused(*words):
        parse_load_body(json.dumps({"parameters": parameters}).encode())


def test_a_parameter_given_twice_is_refused() -> None:
    with Refused("'config' more than once"):
        parse_load_body(b'{"parameters":{"config":"a","config":"b"}}')


@pytest.mark.parametrize(
    ("key", "parameter", "words"),
    [
        (
            "config",
            Parameter(bytes_param=b"{}"),
            "'config' must be a string_param, got bytes_param",
        ),
        ("config", Parameter(bool_param=False), "'config' must be a string_param, got bool_param"),
        ("config", Parameter(), "'config' must be a string_param, got no value"),
        ("file:1/m", Parameter(string_param=""), "must be a bytes_param, got string_param"),
        ("file:1/m", Parameter(int64_param=0), "must be a bytes_param, got int64_param"),
        ("x", Parameter(string_param=""), "takes the parameters 'config' and"),
    ],
)
def test_a_fault_over_grpc_names_its_parameter(key: str, parameter: Parameter, words: str) -> None:
    with Refused(words):
        parse_load_message({key: parameter})


# Paths.


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("1/model.py", "1/model.py"),
        ("/1//model.py", "1/model.py"),
        ("./1/./model.py", "1/model.py"),
        ("1/a/../model.py", "1/model.py"),
        ("labels.txt", "labels.txt"),
        ("1/...", "1/..."),
        ("1/a\\b", "1/a\\b"),
    ],
)
def test_a_path_loses_its_detours(given: str, path: str) -> None:
    assert paths_of(given) == [path]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("../model.py", "inside of the model's directory"),
        ("1/../../model.py", "inside of the model's directory"),
        ("/../etc/passwd", "inside of the model's directory"),
        ("", "ends in a file"),
        ("1/", "ends in a file"),
        ("1/.", "ends in a file"),
        ("1/a/..", "ends in a file"),
    ],
)
def test_a_path_that_leads_to_no_file_in_the_directory_is_refused(given: str, words: str) -> None:
    with Refused("load parameter 'file:", words):
        paths_of(given)


def test_two_files_have_two_paths() -> None:
    with Refused("'file:1//model.py' is a file that came already"):
        paths_of("1/model.py", "1//model.py")
    assert paths_of("1/a", "1/b", "1a") == ["1/a", "1/b", "1a"]


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(["", ".", "..", "a", "1", "é"]), max_size=8).map("/".join))
def test_no_path_leaves_the_directory(given: str) -> None:
    try:
        (path,) = paths_of(given)
    except RequestError as error:
        assert error.code is ErrorCode.INVALID_ARG  # noqa: PT017 - either outcome is fine
    else:
        assert path.split("/")
        assert not {"", ".", ".."} & set(path.split("/"))


# Unloading.


@pytest.mark.parametrize(
    ("text", "dependents"),
    [
        (b"", False),
        (b"{}", False),
        (body(other="x"), False),
        (body(unload_dependents=False), False),
        (body(unload_dependents=True), True),
    ],
)
def test_unload_dependents_is_off_unless_it_is_said(text: bytes, dependents: bool) -> None:
    assert parse_unload_body(text) is dependents


def test_unload_dependents_over_grpc() -> None:
    assert parse_unload_message({}) is False
    assert parse_unload_message({"other": Parameter(string_param="x")}) is False
    for value in (False, True):
        assert parse_unload_message({"unload_dependents": Parameter(bool_param=value)}) is value


@pytest.mark.parametrize("value", ["true", 1, None, []])
def test_unload_dependents_is_a_boolean(value: object) -> None:
    with Refused("'unload_dependents'", "a boolean"):
        parse_unload_body(body(unload_dependents=value))


@pytest.mark.parametrize(
    "value", [Parameter(string_param="true"), Parameter(int64_param=1), Parameter()]
)
def test_unload_dependents_is_a_boolean_over_grpc(value: Parameter) -> None:
    with Refused("'unload_dependents' must be a bool_param"):
        parse_unload_message({"unload_dependents": value})
