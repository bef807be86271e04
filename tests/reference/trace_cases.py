"""Cases for the trace settings: each is one update of settings that are as at the start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from .cases import BAD_JSON, Case, Differs, Expected, Json
from .grpc_exchange import Call
from .http_exchange import Http

GLOBAL = "/v2/trace/setting"
OF_MODEL = "/v2/models/echo/trace/setting"

_PYTHON = """
backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
_ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each)]) for each in arrays]
"""
_STEP = """{ model_name: "echo" model_version: -1
  input_map { key: "IN" value: "%s" } output_map { key: "OUT" value: "%s" } }"""
_STEPS = f"""
platform: "ensemble"
max_batch_size: 4
input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }} ]
ensemble_scheduling {{ step [ {_STEP % ("IN", "M")}, {_STEP % ("M", "OUT")} ] }}
"""


def write_models(repository: Path) -> None:
    """Write a model, one that cannot be loaded, and an ensemble of the first, twice."""
    for name, config, code in [
        ("echo", _PYTHON, _ECHO),
        ("broken", _PYTHON, "raise ValueError"),
        ("steps", _STEPS, ""),
    ]:
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        if code:
            (repository / name / "1" / "model.py").write_text(code)


def flags(file: Path) -> list[str]:
    """The flags of both servers."""
    settings = ["level=TIMESTAMPS", "rate=1", "count=1000", f"triton,file={file}"]
    return [f"--trace-config={setting}" for setting in settings]


def without_file(content: Json) -> Json:
    """Settings whose file, of which each server has its own, is just there."""
    if isinstance(content, dict) and content.get("trace_file"):
        content["trace_file"] = "a file"
    return content


def post(document: Any, path: str = GLOBAL) -> Http:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return Http("POST", path, body)


LOOSE_NUMBERS = Differs(200, 400, "trace-numbers")

_UPDATES: list[tuple[dict[str, Any], Expected | Differs]] = [
    ({}, 200),
    ({"trace_level": ["OFF"]}, 200),
    ({"trace_level": ["TENSORS"]}, 200),
    ({"trace_level": ["TENSORS", "TIMESTAMPS"]}, 200),
    ({"trace_level": ["TIMESTAMPS", "TIMESTAMPS"]}, 200),
    ({"trace_level": ["TENSORS", "bogus"]}, 200),
    ({"trace_level": ["bogus"]}, 200),
    ({"trace_level": ["timestamps"]}, 200),
    ({"trace_level": ["MAX"]}, 200),
    ({"trace_level": []}, 200),
    ({"trace_level": None}, 200),
    ({"trace_level": ["OFF", "TIMESTAMPS"]}, 400),
    ({"trace_level": ["OFF", "bogus"]}, 400),
    ({"trace_rate": "7"}, 200),
    ({"trace_rate": "007"}, 200),
    ({"trace_rate": "2147483647"}, 200),
    ({"trace_rate": None}, 200),
    ({"trace_rate": "2147483648"}, 400),
    ({"log_frequency": "2147483648"}, 400),
    ({"trace_rate": "99999999999999999999"}, 400),
    ({"trace_rate": "x"}, 400),
    ({"trace_rate": ""}, 400),
    ({"trace_rate": "0"}, 400),
    ({"trace_rate": "-1"}, LOOSE_NUMBERS),
    ({"trace_rate": "1.5"}, LOOSE_NUMBERS),
    ({"trace_rate": "7x"}, LOOSE_NUMBERS),
    ({"trace_rate": " 7"}, LOOSE_NUMBERS),
    ({"trace_rate": "+7"}, LOOSE_NUMBERS),
    ({"trace_count": "7"}, 200),
    ({"trace_count": "-1"}, 200),
    ({"trace_count": "2147483647"}, 200),
    ({"trace_count": None}, 200),
    ({"trace_count": "0"}, 400),
    ({"trace_count": "-2"}, 400),
    ({"trace_count": "2147483648"}, 400),
    ({"trace_count": "x"}, 400),
    ({"log_frequency": "5"}, 200),
    ({"log_frequency": "0"}, 200),
    ({"log_frequency": None}, 200),
    ({"log_frequency": "x"}, 400),
    ({"log_frequency": "-1"}, LOOSE_NUMBERS),
    ({"trace_file": "/tmp/x"}, 501),
    ({"trace_file": "/tmp/x", "trace_rate": "x"}, 501),
    ({"trace_rate": "5", "trace_count": "x"}, 400),
    ({"trace_rate": "5", "trace_count": "6", "log_frequency": "7"}, 200),
    ({"trace_level": ["OFF"], "trace_rate": "0", "trace_count": "0"}, 200),
    ({"trace_mode": "opentelemetry"}, 200),
    ({"unknown": "x"}, 200),
]
_TYPES: list[dict[str, Any]] = [
    {"trace_level": "OFF"},
    {"trace_level": {}},
    {"trace_level": [1]},
    {"trace_level": [None]},
    {"trace_rate": 7},
    {"trace_rate": ["7"]},
    {"trace_rate": True},
    {"trace_count": 3},
    {"log_frequency": 5},
]
_BODIES: list[tuple[bytes, Differs]] = [
    (b"", BAD_JSON),
    (b"{", BAD_JSON),
    (b"[]", Differs(200, 400, "trace-bodies")),
    (b"null", Differs(200, 400, "trace-bodies")),
    (b'"x"', Differs(200, 400, "trace-bodies")),
]


def _case(name: str, request: Http, expected: Expected | Differs) -> Case[Http]:
    assert not isinstance(expected, tuple)
    return Case(name, request, expected, without_file)


HTTP: list[Case[Http]] = [
    *(_case(f"update {json.dumps(each)}", post(each), expected) for each, expected in _UPDATES),
    *(
        _case(f"of a model {json.dumps(each)}", post(each, OF_MODEL), expected)
        for each, expected in _UPDATES
    ),
    *(_case(f"type {json.dumps(each)}", post(each), BAD_JSON) for each in _TYPES),
    *(_case(f"body {body!r}", post(body), expected) for body, expected in _BODIES),
    _case("get", Http("GET", GLOBAL, framed=False), 200),
    _case("get of a model", Http("GET", OF_MODEL, framed=False), 200),
    _case("put", Http("PUT", GLOBAL, b"{}"), 405),
    _case("of a version", post({}, "/v2/models/echo/versions/1/trace/setting"), 404),
    _case("of nobody", post({}, "/v2/models/nobody/trace/setting"), 400),
    _case("faulty of nobody", post({"trace_rate": "x"}, "/v2/models/nobody/trace/setting"), 400),
    _case("of a broken model", post({}, "/v2/models/broken/trace/setting"), 400),
]


def update(document: dict[str, Any], model: str = "") -> Call:
    """The call that asks for what a JSON document asks for."""
    request = pb.TraceSettingRequest(model_name=model)
    for name, value in document.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        request.settings[name].value.extend(values)
    return Call("TraceSetting", (request,))


_STATUSES = {200: "OK", 400: "INVALID_ARGUMENT", 501: "UNIMPLEMENTED"}


def _status(expected: Expected | Differs) -> str | Differs:
    if isinstance(expected, Differs):
        return Differs("OK", "INVALID_ARGUMENT", expected.why)
    assert isinstance(expected, int)
    return _STATUSES[expected]


def settings_without_file(content: Json) -> Json:
    """As `without_file`, for a reply."""
    if isinstance(content, dict) and "trace_file" in content.get("settings", {}):
        content["settings"]["trace_file"] = "a file"
    return content


GRPC: list[Case[Call]] = [
    *(
        Case(json.dumps(each), update(each), _status(expected), settings_without_file)
        for each, expected in _UPDATES
    ),
    Case(
        "two rates",
        update({"trace_rate": ["1", "2"]}),
        "INVALID_ARGUMENT",
        settings_without_file,
    ),
    Case("of a model", update({"trace_rate": "3"}, "echo"), "OK", settings_without_file),
    Case("of nobody", update({}, "nobody"), "INVALID_ARGUMENT", settings_without_file),
    Case("of a broken model", update({}, "broken"), "INVALID_ARGUMENT", settings_without_file),
]

RESET = {"trace_level": None, "trace_rate": None, "trace_count": None, "log_frequency": None}
"""Puts a setting back to what it was at the start."""
