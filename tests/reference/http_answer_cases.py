"""Cases for requested outputs, parameters, and what models answer."""

from __future__ import annotations

from typing import Any

from .cases import BAD_JSON, Case, Differs
from .http_exchange import Http
from .http_json_cases import PAIR
from .http_requests import X, changed, infer, tensor, with_x


def facts(**members: object) -> Http:
    return infer({**members, "inputs": [tensor("INPUT0", "INT32", [7])]}, "request_facts")


def outputs(*wanted: object) -> Http:
    return infer({"inputs": PAIR, "outputs": list(wanted)}, "add_sub")


OUTPUTS = [
    Case("no outputs listed means all", outputs(), 200),
    Case("one output", outputs({"name": "OUTPUT1"}), 200),
    Case("outputs in another order", outputs({"name": "OUTPUT1"}, {"name": "OUTPUT0"}), 200),
    Case(
        "an output twice",
        outputs({"name": "OUTPUT0"}, {"name": "OUTPUT0"}),
        Differs(200, 400, "output-twice"),
    ),
    Case("an unknown output", outputs({"name": "OUTPUT9"}), 400),
    Case("an output without a name", outputs({}), BAD_JSON),
    Case("an output as text", outputs("OUTPUT0"), BAD_JSON),
    Case("outputs as an object", infer({"inputs": PAIR, "outputs": {}}, "add_sub"), BAD_JSON),
    Case("outputs null", infer({"inputs": PAIR, "outputs": None}, "add_sub"), BAD_JSON),
    Case(
        "an output in binary",
        outputs({"name": "OUTPUT1", "parameters": {"binary_data": True}}),
        200,
    ),
    Case(
        "one in binary, one not",
        outputs({"name": "OUTPUT0"}, {"name": "OUTPUT1", "parameters": {"binary_data": True}}),
        200,
    ),
    Case(
        "binary_data false", outputs({"name": "OUTPUT0", "parameters": {"binary_data": False}}), 200
    ),
    Case(
        "binary_data as text",
        outputs({"name": "OUTPUT0", "parameters": {"binary_data": "1"}}),
        BAD_JSON,
    ),
    Case(
        "FP16 output as JSON",
        infer(
            {
                "inputs": [{"name": "IN_FP32", "shape": [1], "datatype": "FP32", "data": [1]}],
                "outputs": [{"name": "OUT_FP32", "parameters": {}}],
            },
            "types",
        ),
        200,
    ),
]


def classified(count: object, *, rows: int = 1, **parameters: Any) -> Http:
    one = tensor("INPUT0", "FP32", [1, 4.5, 3, -2] * rows, [rows, 4])
    wanted = {"name": "OUTPUT0", "parameters": {"classification": count, **parameters}}
    return infer({"inputs": [one], "outputs": [wanted]}, "scores")


REGION: dict[str, Any] = {"shared_memory_region": "r", "shared_memory_byte_size": 16}

CLASSIFICATION = [
    Case("classes in a region", classified(1, **REGION), 400),
    Case(
        "a region nobody registered",
        infer({"inputs": [changed(data=None, parameters=REGION)]}),
        404,
    ),
    Case("a region and data", infer({"inputs": [changed(parameters=REGION)]}), 400),
    Case("a region for an output", outputs({"name": "OUTPUT0", "parameters": REGION}), 404),
    Case(
        "a region for an output in binary",
        outputs({"name": "OUTPUT0", "parameters": {**REGION, "binary_data": True}}),
        400,
    ),
    Case("the best class", classified(1), 200),
    Case("the best two classes", classified(2), 200),
    Case("more classes than there are", classified(9), 200),
    Case("classes of two rows", classified(2, rows=2), 200),
    Case("classes in binary", classified(2, binary_data=True), 200),
    Case("classification 0", classified(0), 200),
    Case("classification -1", classified(-1), BAD_JSON),
    Case("classification as text", classified("1"), BAD_JSON),
    Case(
        "classes without labels",
        infer(
            {"inputs": [X], "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 2}}]}
        ),
        200,
    ),
    Case(
        "classes of integers",
        infer(
            {"inputs": PAIR, "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 2}}]},
            "add_sub",
        ),
        200,
    ),
    Case(
        "classes of strings",
        infer(
            {
                "inputs": [tensor("INPUT0", "BYTES", ["a"], [1, 1])],
                "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}],
            },
            "text",
        ),
        Differs(None, 400, "reference-crashes"),
    ),
]

PARAMETERS = [
    Case("all outputs in binary", with_x(parameters={"binary_data_output": True}), 200),
    Case("binary_data_output false", with_x(parameters={"binary_data_output": False}), 200),
    Case("binary_data_output as text", with_x(parameters={"binary_data_output": "x"}), BAD_JSON),
    Case(
        "custom parameters", facts(id="7", parameters={"a": 1, "b": "x", "c": True, "d": 1.5}), 200
    ),
    Case("no parameters", facts(), 200),
    Case("a request with an output list", facts(outputs=[{"name": "FACTS"}]), 200),
    Case("a parameter of 2^63 - 1", facts(parameters={"a": 2**63 - 1}), 200),
    Case("a parameter of 2^63", facts(parameters={"a": 2**63}), Differs(200, 400, "integer-range")),
    Case("a parameter as an object", facts(parameters={"a": {}}), 400),
    Case("a parameter as an array", facts(parameters={"a": [1]}), 400),
    Case("a null parameter", facts(parameters={"a": None}), 400),
    Case("a reserved parameter", facts(parameters={"triton_x": 1}), 400),
    Case("timeout", facts(parameters={"timeout": 5_000_000}), 200),
    Case("timeout as text", facts(parameters={"timeout": "x"}), BAD_JSON),
    Case("a negative timeout", facts(parameters={"timeout": -1}), BAD_JSON),
    Case("priority", facts(parameters={"priority": 1}), 200),
    Case("a negative priority", facts(parameters={"priority": -1}), BAD_JSON),
    Case(
        "sequence fields",
        facts(parameters={"sequence_id": 5, "sequence_start": True, "sequence_end": True}),
        200,
    ),
    Case("a sequence id as text", facts(parameters={"sequence_id": "abc"}), 200),
    Case("sequence_start as a number", facts(parameters={"sequence_start": 1}), BAD_JSON),
    Case("a negative sequence id", facts(parameters={"sequence_id": -1}), BAD_JSON),
    Case("parameters as an array", facts(parameters=[]), BAD_JSON),
    Case("parameters null", facts(parameters=None), BAD_JSON),
]


def fault(mode: str) -> Http:
    return infer({"inputs": [tensor("MODE", "BYTES", [mode])]}, "faults")


FAULTS = [
    Case("a model without faults", fault("ok"), 200),
    Case("a model that raises", fault("raise"), 500),
    Case("an error with the default code", fault("default"), 500),
    Case("UNKNOWN of a model", fault("UNKNOWN"), 400),
    Case("INTERNAL of a model", fault("INTERNAL"), 500),
    Case("NOT_FOUND of a model", fault("NOT_FOUND"), 404),
    Case("INVALID_ARG of a model", fault("INVALID_ARG"), 400),
    Case("UNAVAILABLE of a model", fault("UNAVAILABLE"), 503),
    Case("UNSUPPORTED of a model", fault("UNSUPPORTED"), 501),
    Case("ALREADY_EXISTS of a model", fault("ALREADY_EXISTS"), 400),
    Case("CANCELLED of a model", fault("CANCELLED"), 400),
    Case("too few responses", fault("too few"), 500),
    Case("too many responses", fault("too many"), 500),
    Case("no list of responses", fault("not a list"), 500),
    Case("a list of something else", fault("not a response"), 500),
    Case("an output of another datatype", fault("wrong dtype"), Differs(200, 500, "model-outputs")),
    Case("an output of another rank", fault("wrong rank"), Differs(200, 500, "model-outputs")),
    Case("an output of other dims", fault("wrong dims"), 200),
    Case(
        "an output nobody configured",
        fault("unknown output"),
        Differs((200, {}), 500, "model-outputs"),
    ),
    Case("no outputs", fault("no outputs"), 200),
]

CASES: list[Case[Http]] = [*OUTPUTS, *CLASSIFICATION, *PARAMETERS, *FAULTS]
