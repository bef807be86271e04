"""The log settings as clients read and change them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.log_settings import (
    LogSettings,
    changed_by_json,
    changed_by_message,
    settings_body,
    settings_message,
)
from tritrio.protocol.pb import inference as pb

START = LogSettings(file="f", verbose_level=3)
Value = pb.LogSettingsRequestSettingValue


def test_the_json_has_every_setting_in_the_order_of_triton() -> None:
    assert settings_body(START) == (
        b'{"log_file":"f","log_info":true,"log_warning":true,"log_error":true,'
        b'"log_verbose_level":3,"log_format":"default"}'
    )


def test_json_changes_what_it_names_and_nothing_else() -> None:
    body = b'{"log_file":null,"log_error":false,"log_verbose_level":0,"log_format":"json","x":1}'
    expected = replace(START, error=False, verbose_level=0, format="json")
    assert changed_by_json(START, body) == expected
    assert changed_by_json(START, b'{"log_info":null}') == START


def test_a_message_changes_what_it_names_and_nothing_else() -> None:
    message = pb.LogSettingsRequest(
        settings={
            "log_info": Value(bool_param=False),
            "log_verbose_level": Value(uint32_param=0),
            "log_format": Value(string_param="ISO8601"),
            "x": Value(),
        }
    )
    assert changed_by_message(START, message) == replace(
        START, info=False, verbose_level=0, format="ISO8601"
    )


def test_the_message_of_the_settings_has_their_types() -> None:
    settings = settings_message(replace(START, info=False)).settings
    assert settings["log_info"].bool_param is False
    assert settings["log_verbose_level"].uint32_param == 3
    assert settings["log_verbose_level"].bool_param is None
    assert settings["log_file"].string_param == "f"


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"", ErrorCode.INVALID_ARG, None),
        (
            b'{"log_file":""}',
            ErrorCode.UNSUPPORTED,
            "the place of the log file cannot be changed over the network; leave log_file out",
        ),
        (
            b'{"log_format":"xml"}',
            ErrorCode.UNAVAILABLE,
            "log_format must be default, ISO8601 or json, got 'xml'",
        ),
        (b'{"log_format":5}', ErrorCode.INVALID_ARG, "log_format must be a string, got 5"),
        (b'{"log_info":1}', ErrorCode.INVALID_ARG, "log_info must be a boolean, got 1"),
        (
            b'{"log_verbose_level":true}',
            ErrorCode.INVALID_ARG,
            "log_verbose_level must be an integer from 0 to 2147483647, got true",
        ),
    ],
)
def test_a_fault_of_json_has_its_code(body: bytes, code: ErrorCode, text: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        changed_by_json(START, body)
    assert caught.value.code is code
    assert text in (None, caught.value.message)


@pytest.mark.parametrize(
    ("name", "value", "code", "text"),
    [
        ("log_file", Value(), ErrorCode.UNSUPPORTED, None),
        (
            "log_format",
            Value(string_param="xml"),
            ErrorCode.INVALID_ARG,
            "log_format must be default, ISO8601 or json, got 'xml'",
        ),
        ("log_error", Value(), ErrorCode.INVALID_ARG, "log_error must be a boolean, got no value"),
        (
            "log_verbose_level",
            Value(uint32_param=2**31),
            ErrorCode.INVALID_ARG,
            "log_verbose_level must be an integer from 0 to 2147483647, got 2147483648",
        ),
    ],
)
def test_a_fault_of_a_message_has_its_code(
    name: str, value: Value, code: ErrorCode, text: str | None
) -> None:
    with pytest.raises(RequestError) as caught:
        changed_by_message(START, pb.LogSettingsRequest(settings={name: value}))
    assert caught.value.code is code
    assert text in (None, caught.value.message)
