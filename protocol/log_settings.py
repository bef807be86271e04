"""The log settings: what they are, and how clients read and change them.

A change with a fault changes nothing. Source: the logging extension as served by Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import orjson

from .errors import ErrorCode, RequestError, invalid_argument
from .json_text import parse_object
from .pb import inference as pb
from .wording import quoted, shown

LOG_FORMATS: Final = ("default", "ISO8601", "json")
"""The formats of log lines; the last is ours."""

LOG_FIELDS: Final = ("request_id", "model", "version", "reason")
"""What a log record about a request has in `extra`, as far as it is known; the reason is that of
one that was refused, failed or was left."""

VERBOSE_LEVEL_MAX: Final = 2**31 - 1
"""Triton's levels are 32 bits with a sign."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is logged, and how.

    Attributes:
      file: Where lines go; "" for standard error.
      info: Whether informational lines are logged.
      warning: Whether warnings are.
      error: Whether errors are.
      verbose_level: From 1 on, lines for people who search a fault are logged too.
      format: "default", "ISO8601" or "json".
    """

    file: str = ""
    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    format: str = "default"


_MEMBERS: Final = {
    "log_file": "file",
    "log_info": "info",
    "log_warning": "warning",
    "log_error": "error",
    "log_verbose_level": "verbose_level",
    "log_format": "format",
}
"""Name in the protocol -> attribute, in the order of answers."""

assert set(_MEMBERS.values()) == {field.name for field in fields(LogSettings)}


def settings_body(settings: LogSettings) -> bytes:
    """Return the settings as the JSON that clients see."""
    return orjson.dumps({name: getattr(settings, field) for name, field in _MEMBERS.items()})


def changed_by_json(settings: LogSettings, body: bytes) -> LogSettings:
    """Return the settings as a JSON request changes them; null and unknown members change nothing.

    Raises:
      RequestError: UNSUPPORTED for a file, UNAVAILABLE for an unknown format, as Triton has them;
        INVALID_ARG for a value of another type.
    """
    document = parse_object(body, "the request")
    changes = {name: value for name, value in document.items() if value is not None}
    return _changed(settings, changes, bad_format=ErrorCode.UNAVAILABLE, show=shown)


def settings_message(settings: LogSettings) -> pb.LogSettingsResponse:
    """Return the settings as the message that clients see."""
    value = pb.LogSettingsResponseSettingValue
    answer = {}
    for name, field in _MEMBERS.items():
        setting = getattr(settings, field)
        if isinstance(setting, bool):
            answer[name] = value(bool_param=setting)
        elif isinstance(setting, int):
            answer[name] = value(uint32_param=setting)
        else:
            answer[name] = value(string_param=setting)
    return pb.LogSettingsResponse(settings=answer)


def changed_by_message(settings: LogSettings, message: pb.LogSettingsRequest) -> LogSettings:
    """Return the settings as a gRPC request changes them.

    Raises:
      RequestError: UNSUPPORTED if a file is there at all, INVALID_ARG for an unknown format, for
        a value of another type and for none.
    """
    changes = {
        name: next(
            (
                one
                for one in (value.bool_param, value.uint32_param, value.string_param)
                if one is not None
            ),
            None,
        )
        for name, value in message.settings.items()
    }
    return _changed(
        settings,
        changes,
        bad_format=ErrorCode.INVALID_ARG,
        show=lambda value: "no value" if value is None else shown(value),
    )


def _changed(
    settings: LogSettings,
    changes: Mapping[str, Any],
    *,
    bad_format: ErrorCode,
    show: Callable[[Any], str],
) -> LogSettings:
    if "log_file" in changes:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            "the place of the log file cannot be changed over the network; leave log_file out",
        )
    checked: dict[str, Any] = {}
    for name, value in changes.items():
        field = _MEMBERS.get(name)
        if field is None:
            continue
        if field == "format":
            if not isinstance(value, str):
                raise invalid_argument(f"{name} must be a string, got {show(value)}")
            if value not in LOG_FORMATS:
                expected = f"{', '.join(LOG_FORMATS[:-1])} or {LOG_FORMATS[-1]}"
                raise RequestError(bad_format, f"{name} must be {expected}, got {quoted(value)}")
        elif field == "verbose_level":
            if type(value) is not int or not 0 <= value <= VERBOSE_LEVEL_MAX:
                raise invalid_argument(
                    f"{name} must be an integer from 0 to {VERBOSE_LEVEL_MAX}, got {show(value)}"
                )
        elif type(value) is not bool:
            raise invalid_argument(f"{name} must be a boolean, got {show(value)}")
        checked[field] = value
    return replace(settings, **checked)
