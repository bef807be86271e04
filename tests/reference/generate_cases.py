"""Cases for the generate calls."""

from __future__ import annotations

import json
from typing import Any

from .cases import Case, Differs, Json, Status
from .http_exchange import Http

FAULT = Differs(500, 400, "json-faults")
STATUS = "generate-status"
PARAMETERS = "generate-parameters"


def generate(model: str, body: Any, *headers: str, call: str = "generate") -> Http:
    """A generate call, whose answer may be framed either way."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    path = f"/v2/models/{model}/{call}"
    return Http("POST", path, content, headers, framing_counts=False)


def case(
    model: str, body: Any, expected: Status | Differs, *headers: str, call: str = "generate"
) -> Case[Http]:
    text = repr(body) if isinstance(body, bytes) else json.dumps(body)
    name = " ".join([call, model, text, *headers])
    return Case(name, generate(model, body, *headers, call=call), expected, _facts_in_order)


def _facts_in_order(content: Json) -> Json:
    """Leave out what the model `request_facts` says of the order of its parameters."""
    if isinstance(content, dict) and "FACTS" in content:
        content["FACTS"] = json.loads(content["FACTS"])
    return content


MAPPING = [
    case("text", {"INPUT0": "hi"}, 200),
    case("text", {"INPUT0": ["hi"], "id": "an id"}, 200),
    case("text", {"INPUT0": ["hi", "ho"]}, 200),
    case("text", {"INPUT0": []}, 400),
    case("identity", {"INPUT0": 1.5}, 200),
    case("identity", {"INPUT0": [1, 2.25, -3]}, 200),
    case("identity", {"INPUT0": []}, 200),
    case("variable", {"INPUT0": [1, 2, 3]}, 200),
    case("fixed", {"INPUT0": [1, 2, 3, 4, 5, 6]}, 200),
    case("fixed", {"INPUT0": [1, 2, 3]}, 400),
    case("fixed", {"INPUT0": 1}, 400),
    case("fixed", {"INPUT0": [[1, 2, 3], [4, 5, 6]]}, 400),
    case("identity", {"INPUT0": [[1, 2], [3, 4]]}, FAULT),
    case("add_sub", {"INPUT0": [1, 2, 3, 4], "INPUT1": [4, 3, 2, 1]}, 200),
    case("add_sub", {"INPUT0": [1, 2, 3, 4]}, 400),
    case("add_sub", {"INPUT0": [1, 2, 3, 4, 5], "INPUT1": [4, 3, 2, 1]}, 400),
    case("optional", {"INPUT0": 1}, 200),
    case("types", {"IN_BOOL": [True, False], "IN_INT8": -1, "IN_UINT64": 2**64 - 1}, 200),
    case("types", {"IN_FP64": [0.1, 1e300], "IN_BYTES": ["", "\u00fc\u0000"]}, 200),
    case("types", {"IN_BOOL": 1}, FAULT),
    case("types", {"IN_BOOL": "true"}, FAULT),
    case("types", {"IN_INT32": 1.5}, FAULT),
    case("types", {"IN_INT32": "1"}, FAULT),
    case("types", {"IN_BYTES": 5}, FAULT),
    case("types", {"IN_BYTES": None}, FAULT),
    case("types", {"IN_FP16": 1.5}, 400),
    case("versions", {}, 200),
    case("versions/versions/1", {}, 200),
    case("versions/versions/2", {}, 404),
    case("nobody", {}, 404),
    case("text", {}, 400),
]
SAID = [
    case("request_facts", {"INPUT0": 1, "a": 1, "b": "x", "c": True, "d": 0.5}, 200),
    case("request_facts", {"INPUT0": 1, "parameters": {"a": 1}, "b": 2}, 200),
    case("request_facts", {"INPUT0": 1, "id": "r"}, 200),
    case("request_facts", {"INPUT0": 1, "other": -(2**63)}, 200),
    case(
        "request_facts",
        {"INPUT0": 1, "sequence_id": 5, "timeout": 1000000, "priority": 1},
        Differs(200, 200, PARAMETERS),
    ),
    case("request_facts", {"INPUT0": 1, "triton_x": 5}, Differs(200, 400, PARAMETERS)),
    case("request_facts", {"INPUT0": 1, "x": 2**63}, Differs(200, 400, "integer-range")),
    case(
        "request_facts",
        {"INPUT0": 1, "x": 1, "parameters": {"x": 2}},
        Differs(200, 400, PARAMETERS),
    ),
    case("request_facts", {"INPUT0": 1, "x": [1]}, 400),
    case("request_facts", {"INPUT0": 1, "x": {"y": 1}}, 400),
    case("request_facts", {"INPUT0": 1, "x": None}, 400),
    case("request_facts", {"INPUT0": 1, "parameters": 5}, FAULT),
    case("request_facts", {"INPUT0": 1, "parameters": {"INPUT0": 1}}, 400),
    case("request_facts", {"INPUT0": 1, "id": 5}, FAULT),
]
FRAMING = [
    case("text", b"", FAULT),
    case("text", b"{", FAULT),
    case("text", b"[1]", FAULT),
    case("text", b'{"INPUT0":"a","INPUT0":"b"}', 400),
    case("text", {"INPUT0": "hi"}, 400, "Content-Encoding: gzip"),
    case("text", {"INPUT0": "hi"}, 200, "Content-Encoding: identity"),
    case("text", {"INPUT0": "hi"}, 200, "Accept-Encoding: gzip"),
    case("text", {"INPUT0": "hi"}, 200, "Content-Type: text/plain"),
    Case("generate by GET", Http("GET", "/v2/models/text/generate"), 405),
    Case("generate_stream by GET", Http("GET", "/v2/models/text/generate_stream"), 405),
]
FAILURES = [
    case("faults", {"MODE": "ok"}, 200),
    case("faults", {"MODE": "INVALID_ARG"}, 400),
    case("faults", {"MODE": "INTERNAL"}, Differs(400, 500, STATUS)),
    case("faults", {"MODE": "UNAVAILABLE"}, Differs(400, 503, STATUS)),
    case("faults", {"MODE": "raise"}, Differs(400, 500, STATUS)),
    case("repeat", {"IN": [5]}, 200),
    case("repeat", {"IN": [-5]}, 400),
    case("repeat", {"IN": []}, Differs(200, 500, STATUS)),
    case("repeat", {"IN": [1, 2]}, Differs(200, 400, STATUS)),
]
STREAMS = [
    case("repeat", {"IN": [1, 2, 3], "id": "r"}, 200, call="generate_stream"),
    case("repeat", {"IN": []}, 200, call="generate_stream"),
    case("repeat", {"IN": [1, -2, 3]}, 200, call="generate_stream"),
    case("repeat", {"IN": [-1, 2]}, 400, call="generate_stream"),
    case("repeat", {"IN": "x"}, FAULT, call="generate_stream"),
    case("repeat", {}, 400, call="generate_stream"),
    case("repeat", b"", FAULT, call="generate_stream"),
    case("text", {"INPUT0": "hi"}, 200, call="generate_stream"),
    case("nobody", {}, 404, call="generate_stream"),
    case("faults", {"MODE": "INTERNAL"}, Differs(400, 500, STATUS), call="generate_stream"),
]

CASES = [*MAPPING, *SAID, *FRAMING, *FAILURES, *STREAMS]
