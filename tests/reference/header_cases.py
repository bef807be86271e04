"""Cases for calls that need a key, and for headers that reach the model."""

from __future__ import annotations

import base64
import json
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from .cases import Case, Differs, in_any_order
from .grpc_cases import HEALTH_CHECK
from .grpc_exchange import Call
from .grpc_requests import request, tensor
from .http_api_cases import get
from .http_exchange import Http
from .http_requests import infer
from .raw_grpc import RawCall, framed

FLAGS = (
    "--http-restricted-api=statistics,metadata:x-key=secret",
    "--http-restricted-api=shared-memory,logging,model-config:Other=pass=word:1",
    "--grpc-restricted-protocol=statistics,metadata,inference:x-key=secret",
    "--grpc-restricted-protocol=health:Admin=secret",
    "--http-header-forward-pattern=(x_.*)|sequence_id|(triton_.*)",
    "--grpc-header-forward-pattern=(x_.*)|(x-raw.*)|sequence_id|(triton_.*)",
    "--grpc-infer-response-compression-level=medium",
)
ENSEMBLE = """
platform: "ensemble"
input { name: "INPUT0" data_type: TYPE_INT32 dims: [1] }
output { name: "FACTS" data_type: TYPE_STRING dims: [1] }
ensemble_scheduling { step {
  model_name: "request_facts" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "FACTS" value: "FACTS" }
} }
"""
MODELS = ("identity", "request_facts")
"""The models of the repository that are served here, and the ensemble `chain`."""

KEY = ("triton-grpc-protocol-x-key", "secret")
WRONG = (KEY[0], "wrong")


def keys(reference: Any, ours: Any) -> Differs:
    return Differs(reference, ours, "restricted-keys")


def forwarded(reference: Any, ours: Any) -> Differs:
    return Differs(reference, ours, "forwarded-headers")


# HTTP.


def verb(method: str, *headers: str) -> Http:
    return Http(method, "/v2", headers=headers, framed=False)


RESTRICTED = [
    Case("no key", get("/v2"), 403),
    Case("the key", get("/v2/models/identity", "x-key: secret"), 200),
    Case("the key's name in capitals", get("/v2/models/identity", "X-KEY: secret"), 200),
    Case("the key's value in capitals", get("/v2", "x-key: SECRET"), 403),
    Case("half the value", get("/v2", "x-key: sec"), 403),
    Case("the value and more", get("/v2", "x-key: secrets"), 403),
    Case("an empty value", get("/v2", "x-key: "), 403),
    Case("another group's key", get("/v2", "Other: pass=word:1"), 403),
    Case(
        "a value with separators",
        get("/v2/models/identity/config", "other: pass=word:1"),
        200,
        in_any_order,
    ),
    Case("the key twice", get("/v2/models/identity", "x-key: secret", "x-key: secret"), 200),
    Case("wrong, then right", get("/v2", "x-key: wrong", "x-key: secret"), 403),
    Case(
        "right, then wrong",
        get("/v2/models/identity", "x-key: secret", "x-key: wrong"),
        keys(200, 403),
    ),
    Case("blanks behind the value", get("/v2/models/identity", "x-key: secret "), keys(403, 200)),
    *(Case(f"{method} without a key", verb(method), 403) for method in ("POST", "HEAD", "OPTIONS")),
    Case("a wrong verb with the key", verb("POST", "x-key: secret"), 405),
    Case("an unknown model without a key", get("/v2/models/nobody"), 403),
    Case("an unknown model with the key", get("/v2/models/nobody", "x-key: secret"), 404),
    Case("statistics of all without a key", get("/v2/models/stats"), 403),
    Case("shared memory without a key", get("/v2/systemsharedmemory/status"), 403),
    Case("CUDA shared memory without a key", get("/v2/cudasharedmemory/status"), 403),
    Case("logging without a key", get("/v2/logging"), 403),
    Case("an unknown path without a key", get("/v2/nothing"), 404),
    Case("health needs no key", get("/v2/health/live"), 200),
    Case("a model's health needs no key", get("/v2/models/identity/ready"), 200),
]

SEEN = {
    "correlation": 0,
    "flags": 0,
    "id": "",
    "inputs": {"INPUT0": [1]},
    "outputs": ["FACTS"],
    "timeout": 0,
}


def seen(**more: Any) -> str:
    """What the model `request_facts` answers."""
    return json.dumps({**SEEN, **more}, sort_keys=True)


def facts(*headers: str, model: str = "request_facts", **members: Any) -> Http:
    one = {"name": "INPUT0", "shape": [1], "datatype": "INT32", "data": [7]}
    return infer({"inputs": [one], **members}, model, *headers)


def generate(*headers: str) -> Http:
    body = json.dumps({"INPUT0": [7]}).encode()
    return Http("POST", "/v2/models/request_facts/generate", body, headers)


def output(parameters: dict[str, Any]) -> dict[str, Any]:
    data = [seen(parameters=parameters)]
    return {"outputs": [{"name": "FACTS", "datatype": "BYTES", "shape": [1], "data": data}]}


FORWARDED = [
    Case("a header", facts("x_user: Ann"), 200),
    Case("headers in another case", facts("X_User: Ann", "x_USER: Bob"), 200),
    Case("a name that holds a match", facts("my_x_user: Ann"), 200),
    Case("a header that does not match", facts("y_user: Ann"), 200),
    Case("a header twice", facts("x_user: Ann", "x_user: Bob"), 200),
    Case("text in UTF-8", facts("x_user: \u00c3\u00a9"), 200),
    Case("a long value", facts("x_user: " + "y" * 4000), 200),
    Case("a header and a parameter of its name", facts("x_a: 1", parameters={"x_a": "p"}), 200),
    Case("a header over a number", facts("x_a: 1", parameters={"x_a": 5, "b": 6}), 200),
    Case(
        "a header for an ensemble",
        facts("x_user: Ann", model="chain"),
        Differs(
            (200, output({"x_user": "Ann"})),
            (200, output({"x_user": "Ann"})),
            "ensemble-parameters",
        ),
    ),
    Case("text in Latin-1", facts("x_user: caf\u00e9"), forwarded(500, 200)),
    Case("a reserved name", facts("sequence_id: 5"), forwarded(200, 400)),
    Case("a reserved name in capitals", facts("Sequence_ID: 5"), forwarded(200, 400)),
    Case("a reserved prefix", facts("triton_x: 5"), forwarded(200, 400)),
    Case(
        "a header for generate",
        generate("x_user: Ann"),
        forwarded(
            (200, {"FACTS": seen(parameters={})}),
            (200, {"FACTS": seen(parameters={"x_user": "Ann"})}),
        ),
    ),
]

HTTP_CASES: list[Case[Http]] = [*RESTRICTED, *FORWARDED]

# gRPC.

Metadata = tuple[str, str]


def metadata(*pairs: Metadata) -> Call:
    return Call("ModelMetadata", (pb.ModelMetadataRequest(name="identity"),), pairs)


def message() -> Any:
    one = tensor("INPUT0", "INT32", [1], {"int_contents": [7]})
    return request([one], model="request_facts")


def ask(*pairs: Metadata) -> Call:
    return Call("ModelInfer", (message(),), (KEY, *pairs))


def stream(*pairs: Metadata) -> Call:
    return Call("ModelStreamInfer", (message(), message()), pairs)


def live(*pairs: Metadata) -> Call:
    return Call("ServerLive", (pb.ServerLiveRequest(),), pairs)


def raw(parameters: dict[str, Any]) -> dict[str, Any]:
    text = seen(parameters=parameters).encode()
    data = len(text).to_bytes(4, "little") + text
    return {"raw_output_contents": [base64.b64encode(data).decode()]}


ADMIN = ("triton-grpc-protocol-admin", "secret")

GRPC_CASES: list[Case[Call]] = [
    Case("no key", metadata(), "UNAVAILABLE"),
    Case("the key", metadata(KEY), "OK"),
    Case("the key's value in capitals", metadata((KEY[0], "SECRET")), "UNAVAILABLE"),
    Case("the key without its prefix", metadata(("x-key", "secret")), "UNAVAILABLE"),
    Case("the key twice", metadata(KEY, KEY), "OK"),
    Case("wrong, then right", metadata(WRONG, KEY), "UNAVAILABLE"),
    Case("right, then wrong", metadata(KEY, WRONG), keys("OK", "UNAVAILABLE")),
    Case("a key that was given with a capital", live(ADMIN), keys("UNAVAILABLE", "OK")),
    Case("health without a key", live(), "UNAVAILABLE"),
    Case("the health service without a key", Call(HEALTH_CHECK, (b"",)), "UNAVAILABLE"),
    Case("inference without a key", Call("ModelInfer", (message(),)), "UNAVAILABLE"),
    Case("a stream without a key", stream(), "UNAVAILABLE"),
    Case("a stream with a wrong key", stream(WRONG), "UNAVAILABLE"),
    Case("a stream with the key", stream(KEY), "OK"),
    Case(
        "the configuration needs no key",
        Call("ModelConfig", (pb.ModelConfigRequest(name="nobody"),)),
        "NOT_FOUND",
    ),
    Case("metadata", ask(("x_user", "Ann"), ("x-raw", "1"), ("other", "2")), "OK"),
    Case("metadata twice", ask(("x_user", "Ann"), ("x_user", "Bob")), "OK"),
    Case("metadata of a stream", stream(KEY, ("x_user", "Ann")), "OK"),
    Case("an empty value", ask(("x_user", "")), "OK"),
    Case("reserved metadata", ask(("sequence_id", "5")), forwarded("OK", "INVALID_ARGUMENT")),
    Case(
        "metadata with a reserved prefix",
        ask(("triton_x", "5")),
        forwarded("OK", "INVALID_ARGUMENT"),
    ),
    Case(
        "binary metadata",
        ask(("x-raw-bin", b"\0\xff\1")),  # type: ignore[arg-type] # as grpc takes it
        forwarded(("OK", raw({"x-raw-bin": ""})), ("OK", raw({"x-raw-bin": "AP8B"}))),
    ),
]

# Codings of answers, by what the client takes.

ACCEPTED = (None, "identity", "gzip", "deflate", "identity,deflate,gzip", "gzip, deflate", "br")


def coded(accepted: str | None, method: str, count: int) -> RawCall:
    """An inference whose answer has this many elements."""
    one = tensor("INPUT0", "FP32", [1, count])
    body = framed(request([one], [bytes(4 * count)]).SerializeToString())
    path = f"/inference.GRPCInferenceService/{method}"
    return RawCall(body, ((":path", path), KEY, ("grpc-accept-encoding", accepted)))


CODED: list[Case[RawCall]] = [
    Case(f"{accepted} of {method}, {count} elements", coded(accepted, method, count), "OK")
    for accepted in ACCEPTED
    for method in ("ModelInfer", "ModelStreamInfer")
    for count in (1, 1000)
]
