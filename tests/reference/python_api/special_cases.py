"""The requests that need more than the name of a method."""

from __future__ import annotations

import json
from typing import Any

from ..cases import Case, Differs, Json, Status, in_any_order, reasons_are_there
from ..grpc_exchange import Call
from ..grpc_requests import request, tensor as grpc_tensor
from ..http_api_cases import get
from ..http_exchange import Http
from ..http_requests import LENGTH, infer, tensor
from .cases import (
    MODELS,
    ONLY_OURS,
    ask,
    name_of,
    saw,
    stream_request,
    what_was_seen,
    what_was_streamed,
)
from .outcomes import HANGS, raised, returned

CODES = [
    *("UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG"),
    *("UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"),
]
STATUSES = dict(zip(CODES, (400, 500, 404, 400, 503, 501, 400, 400), strict=True))
GRPC_STATUSES = {
    "INVALID_ARG": "INVALID_ARGUMENT",
    "UNSUPPORTED": "UNIMPLEMENTED",
}
ODD_FLOATS = [0.5, -2, 1e30]
INPUTS: dict[str, Json] = {
    "floats": tensor("F", "FP32", ODD_FLOATS),
    "texts": tensor("B", "BYTES", ["a", "", "größe"]),
    "integers": tensor("I", "INT64", [1, -(2**63), 2**63 - 1, 0], [2, 2]),
    "bools": tensor("L", "BOOL", [True, False]),
    "halves": tensor("H", "FP16", []),
    "no floats": tensor("F", "FP32", [], [0]),
}


def received(method: str, *inputs: str) -> Case[Http]:
    name = f"{name_of('received', method)} of {', '.join(inputs) or 'nothing'}"
    request_ = ask("received", method, *(INPUTS[one] for one in inputs))
    return Case(name, request_, 200, what_was_seen)


RECEIVED = [
    *(received("with_elements", one) for one in INPUTS if one != "halves"),
    received("with_elements", "floats", "texts", "integers", "bools"),
    received("with_writing", "floats"),
    received("with_layout", "floats", "integers", "bools"),
    received("with_element_types", "texts"),
    received("with_is_cpu", "floats", "texts"),
]


BF16_DIFFERENCES = {
    "with_numpy": saw(
        raised("TritonModelException", "bf16", "dlpack"),
        returned(["bfloat16", [2], [["bfloat16", "1.0"], ["bfloat16", "-2.0"]]]),
        "python-types",
    )
}


def bf16(method: str) -> Case[Http]:
    """A request whose input X has two BF16 elements: 1 and -2."""
    mode = method.encode()
    data = len(mode).to_bytes(4, "little") + mode + b"\x80\x3f\x00\xc0"
    inputs = [
        {
            "name": "MODE",
            "shape": [1],
            "datatype": "BYTES",
            "parameters": {"binary_data_size": len(mode) + 4},
        },
        {"name": "X", "shape": [2], "datatype": "BF16", "parameters": {"binary_data_size": 4}},
    ]
    outputs = [{"name": "SEEN"}, {"name": "Y", "parameters": {"binary_data": True}}]
    return Case(
        name_of("bf16", method),
        _binary({"inputs": inputs, "outputs": outputs}, data, "bf16"),
        BF16_DIFFERENCES.get(method, 200),
        what_was_seen,
    )


def _binary(body: Json, data: bytes, model: str) -> Http:
    text = json.dumps(body).encode()
    return infer(text + data, model, f"{LENGTH}: {len(text)}")


def fields(name: str, mode: str, **members: Any) -> Case[Http]:
    one = ask("request_fields", mode, **members)
    return Case(f"request fields: {name}", one, 200, what_was_seen)


def output(name: str) -> Json:
    return {"name": name}


FIELDS = [
    fields("an id", "see_request_id", id="the id"),
    fields("parameters", "see_parameters", parameters={"b": True, "i": -3, "t": "x"}),
    fields("a parameter of a fraction", "see_parameters", parameters={"f": 1.5}),
    fields("a timeout", "see_timeout", parameters={"timeout": 5}),
    fields("no timeout in the parameters", "see_parameters", parameters={"timeout": 5}),
    fields("a priority among the parameters", "see_parameters", parameters={"priority": 1}),
    fields("a sequence", "see_flags", parameters={"sequence_id": 3, "sequence_start": True}),
    fields(
        "a sequence's id", "see_correlation_id", parameters={"sequence_id": 3, "sequence_end": True}
    ),
    fields("a sequence's text id", "see_correlation_id", parameters={"sequence_id": "three"}),
    fields("no sequence in the parameters", "see_parameters", parameters={"sequence_id": 3}),
    fields("one output", "see_outputs", outputs=[output("SEEN")]),
    fields("two outputs", "see_outputs", outputs=[output("SECOND"), output("SEEN")]),
    fields("outputs in another order", "see_outputs", outputs=[output("SEEN"), output("FIRST")]),
]


def rows(count: int, model: str, mode: str, *more: Json, **members: Any) -> Http:
    one = tensor("MODE", "BYTES", [mode] * count, [count, 1])
    return infer({"inputs": [one, *more], **members}, model)


OF_OURS = ("no such data type", "policy, no key")
"""What only ours refuses in a configuration."""


def checks() -> Http:
    """A request for what a model found out while its configuration was completed."""
    alone = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    return rows(1, "completes_checks", "any", parameters=alone)


def checks_that_agree(content: Json) -> Json:
    """What both sides refuse or allow."""
    seen = what_was_seen(content)["seen"]
    return {name: found for name, found in seen.items() if name not in OF_OURS}


def checks_of_ours(content: Json) -> Json:
    """What only ours refuses."""
    seen = what_was_seen(content)["seen"]
    return {"seen": [seen[name] for name in OF_OURS]}


X = tensor("X", "FP32", [1, 2, 3, 4], [2, 2])
SEVERAL: list[Case[Http]] = [
    Case("batches: rows", rows(2, "batches", "with_rows", X), 200, what_was_seen),
    Case("batches: texts", rows(3, "batches", "with_text"), 200, what_was_seen),
    Case("batches: too many", rows(9, "batches", "with_text"), 400),
    Case("batches: as completed", rows(4, "completes_batching", "any"), 200, what_was_seen),
    Case("batches: too many as completed", rows(5, "completes_batching", "any"), 400),
    Case("completed input", ask("completes", "see_config_helpers"), 200, what_was_seen),
    Case(
        "completed optional input",
        ask("completes", "see_config_helpers", tensor("X", "FP32", [1, 2], [1, 2])),
        200,
        what_was_seen,
    ),
    Case(
        "completed input of another rank",
        ask("completes", "see_config_helpers", tensor("X", "FP32", [1, 2])),
        400,
    ),
    Case("completed checks", checks(), 200, checks_that_agree),
    Case(
        "completed checks of ours alone",
        checks(),
        saw([returned(None)] * 2, [raised("ValueError")] * 2, "python-faults"),
        checks_of_ours,
    ),
    Case("a decoupled model over HTTP", ask("decoupled", "stream_one"), 501),
    Case("a completed decoupled model over HTTP", ask("completes_decoupled", "any"), 501),
    Case("a model without initialize", ask("without_initialize", "any"), 200, what_was_seen),
]
ERRORS = [Case(f"error code {code}", ask("error_codes", code), STATUSES[code]) for code in CODES]
OVER_GRPC: list[Case[Call]] = [
    Case(
        f"error code {code} over gRPC",
        Call(
            "ModelInfer",
            (
                request(
                    [grpc_tensor("MODE", "BYTES", [1], {"bytes_contents": [code.encode()]})],
                    model="error_codes",
                ),
            ),
        ),
        GRPC_STATUSES.get(code, code),
    )
    for code in CODES
]
STREAMED: list[Case[Call]] = [
    Case(
        "several requests on a stream",
        stream_request("decoupled", "stream_one", "stream_none", "stream_three"),
        "OK",
        what_was_streamed,
    ),
    Case(
        "a stream goes on after a raise",
        stream_request("decoupled", "stream_raise_before", "stream_one"),
        "OK",
        what_was_streamed,
    ),
    Case(
        "a completed decoupled model on a stream",
        stream_request("completes_decoupled", "any"),
        "OK",
        what_was_streamed,
    ),
]

WITHOUT_EXECUTE = Differs(200, 400, "python-faults")
"""The reference loads it, and then fails every request."""
LOADED = sorted(path.name for path in MODELS.iterdir() if path.name not in ONLY_OURS)


def without_the_only_ours(content: Json) -> Json:
    """The index without the models that only one side has."""
    left_out = {*ONLY_OURS, "fails_without_execute"}
    return reasons_are_there([one for one in content if one["name"] not in left_out])


def described(model: str) -> list[Case[Http]]:
    """Readiness, metadata and configuration of a model."""
    fails = model.startswith("fails_") and model != "fails_finalizing"
    if model == "fails_without_execute":
        return [Case(f"{model} ready", get(f"/v2/models/{model}/ready"), WITHOUT_EXECUTE)]
    expected: Status | Differs = 400 if fails else 200
    path = f"/v2/models/{model}"
    if model == "says_ready_no":
        expected = Differs(200, 400, "python-names")
    ready = Case(f"{model} ready", get(f"{path}/ready"), expected)
    if fails:
        return [ready]
    return [
        ready,
        Case(f"{model} metadata", get(path), 200),
        Case(f"{model} config", get(f"{path}/config"), 200, in_any_order),
    ]


DESCRIBED: list[Case[Http]] = [
    Case(
        "the index",
        Http("POST", "/v2/repository/index", b"{}"),
        200,
        without_the_only_ours,
    ),
    *(case for model in LOADED for case in described(model)),
    Case(
        "fails_without_file ready",
        get("/v2/models/fails_without_file/ready"),
        Differs(None, 400, HANGS),
    ),
]
CASES: list[Case[Http]] = [
    *RECEIVED,
    *(bf16(one) for one in ("with_shape", "with_numpy", "with_device", "with_numpy_of_capsule")),
    *FIELDS,
    *SEVERAL,
    *ERRORS,
    *DESCRIBED,
]
