"""Cases for the log settings, over HTTP and gRPC; each leaves them as they were at the start."""

from __future__ import annotations

import json
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from .cases import BAD_JSON, Case, Differs
from .grpc_exchange import Call
from .http_exchange import Http

PATH = "/v2/logging"
RANGE = Differs(200, 400, "integer-range")


def get(name: str) -> Case[Http]:
    return Case(name, Http("GET", PATH, framed=False), 200)


def post(name: str, body: Any, expected: Any = 200) -> Case[Http]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Case(f"log settings: {name}", Http("POST", PATH, content), expected)


RESTORED = {
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}

HTTP: list[Case[Http]] = [
    get("the log settings"),
    post("nothing", {}),
    post("an empty body", b"", BAD_JSON),
    post("broken", b"{", BAD_JSON),
    post("a list", [], Differs(200, 400, "json-faults")),
    post("unknown member", {"unknown": 1}),
    post("a file", {"log_file": "x"}, 501),
    post("an empty file", {"log_file": ""}, 501),
    post("a file that is a number", {"log_file": 3}, 501),
    post("no file", {"log_file": None}),
    *(post(f"null {name}", {name: None}) for name in RESTORED),
    post("info as text", {"log_info": "true"}, BAD_JSON),
    post("info as number", {"log_info": 1}, BAD_JSON),
    post("warning as an object", {"log_warning": {}}, BAD_JSON),
    post("error as text", {"log_error": "off"}, BAD_JSON),
    post("verbose level -1", {"log_verbose_level": -1}, BAD_JSON),
    post("verbose level as text", {"log_verbose_level": "1"}, BAD_JSON),
    post("verbose level true", {"log_verbose_level": True}, BAD_JSON),
    post("verbose level 1.5", {"log_verbose_level": 1.5}, BAD_JSON),
    post("verbose level 2**32", {"log_verbose_level": 2**32}, RANGE),
    post("format unknown", {"log_format": "x"}, 503),
    post("format in small letters", {"log_format": "iso8601"}, 503),
    post("format as number", {"log_format": 3}, BAD_JSON),
    post("format ISO8601", {"log_format": "ISO8601"}),
    post("all off", {"log_info": False, "log_warning": False, "log_error": False}),
    get("the log settings when all is off"),
    post("verbose", {"log_verbose_level": 2, "log_format": "default"}),
    post("all back", RESTORED),
    post(
        "a good one before a bad one",
        {"log_info": False, "log_format": "x"},
        503,
    ),
    Case(
        "log settings: after a good one before a bad one",
        Http("GET", PATH, framed=False),
        Differs((200, {"log_info": False}), (200, {"log_info": True}), "log-settings"),
    ),
    post("back again", RESTORED),
    post("our own format", {"log_format": "json"}, Differs(503, 200, "log-settings")),
    post("back once more", RESTORED),
    Case("log settings: PUT", Http("PUT", PATH), 405),
]


def settings(name: str, expected: Any = "OK", **values: Any) -> Case[Call]:
    """A call with these settings; one that is None has no value."""
    request = pb.LogSettingsRequest()
    for key, value in values.items():
        setting = request.settings[key]
        if isinstance(value, bool):
            setting.bool_param = value
        elif isinstance(value, int):
            setting.uint32_param = value
        elif value is not None:
            setting.string_param = value
    return Case(f"log settings: {name}", Call("LogSettings", (request,)), expected)


GRPC: list[Case[Call]] = [
    settings("none"),
    settings("unknown", unknown="x"),
    settings("a file", "UNIMPLEMENTED", log_file="x"),
    settings("an empty file", "UNIMPLEMENTED", log_file=""),
    settings("a file without a value", "UNIMPLEMENTED", log_file=None),
    settings("a file that is a boolean", "UNIMPLEMENTED", log_file=True),
    *(settings(f"{name} without a value", "INVALID_ARGUMENT", **{name: None}) for name in RESTORED),
    settings("info as text", "INVALID_ARGUMENT", log_info="true"),
    settings("info as number", "INVALID_ARGUMENT", log_info=1),
    settings("error as number", "INVALID_ARGUMENT", log_error=3),
    settings("verbose level as text", "INVALID_ARGUMENT", log_verbose_level="1"),
    settings("verbose level true", "INVALID_ARGUMENT", log_verbose_level=True),
    settings(
        "verbose level 2**32 - 1",
        Differs("OK", "INVALID_ARGUMENT", "integer-range"),
        log_verbose_level=2**32 - 1,
    ),
    settings("format unknown", "INVALID_ARGUMENT", log_format="x"),
    settings("format as number", "INVALID_ARGUMENT", log_format=1),
    settings("format ISO8601", log_format="ISO8601"),
    settings("all off", log_info=False, log_warning=False, log_error=False, log_verbose_level=3),
    settings("read when all is off"),
    settings("all back", **RESTORED),
    settings(
        "our own format", Differs("INVALID_ARGUMENT", "OK", "log-settings"), log_format="json"
    ),
    settings("back once more", **RESTORED),
]
