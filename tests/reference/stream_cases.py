"""Cases over ModelStreamInfer; every stream is half-closed after its last request."""

from __future__ import annotations

from .cases import Case, Differs
from .grpc_exchange import Call
from .grpc_requests import DATA, X, repeat, request, stream, tensor

GOOD = request([X], [DATA], name="good")
EMPTY_FINAL = {"triton_enable_empty_final_response": True}

UNKNOWN_MODEL = request([X], [DATA], model="nobody", name="bad")
UNKNOWN_INPUT = request([tensor("INPUT9", "FP32", [1, 2])], [DATA], name="bad")
RESERVED = request([X], [DATA], name="bad", parameters={"triton_x": 1})
NO_DATA = request([X], name="bad")
VARIABLE = request([X], [DATA], model="variable", name="variable")
VERSION_X = request([X], [DATA], name="bad", version="x")


def fault(mode: str, name: str = "bad") -> object:
    one = tensor("MODE", "BYTES", [1], {"bytes_contents": [mode.encode()]})
    return request([one], model="faults", name=name)


def numbered(count: int) -> list[object]:
    return [request([X], [DATA], name=str(number)) for number in range(count)]


def real_errors(name: str, ours: str, message: object) -> Case[Call]:
    """A case of the opt-in to gRPC errors, which the reference does not always survive."""
    call = stream(message, metadata=(("triton_grpc_error", "true"),))
    return Case(f"real errors: {name}", call, Differs(None, ours, "reference-crashes"))


CASES: list[Case[Call]] = [
    Case("no requests", stream(), "OK"),
    Case("one request", stream(GOOD), "OK"),
    Case("five requests in order", stream(*numbered(5)), "OK"),
    Case(
        "an empty final is no news to one response",
        stream(request([X], [DATA], name="a", parameters=EMPTY_FINAL)),
        "OK",
    ),
    Case("an unknown model", stream(UNKNOWN_MODEL), "OK"),
    Case("an unknown model between good ones", stream(GOOD, UNKNOWN_MODEL, GOOD), "OK"),
    Case("an unknown input", stream(UNKNOWN_INPUT), "OK"),
    Case("a reserved parameter", stream(RESERVED), "OK"),
    Case("no data", stream(NO_DATA), "OK"),
    Case("version x", stream(VERSION_X), "OK"),
    Case("a model that raises", stream(fault("raise")), "OK"),
    Case("a model's error between good ones", stream(GOOD, fault("INVALID_ARG"), GOOD), "OK"),
    Case("a model that failed to load", stream(request([X], [DATA], model="broken")), "OK"),
    Case("two models", stream(GOOD, VARIABLE, GOOD), "OK"),
    Case(
        "an ordinary and a decoupled model",
        stream(GOOD, repeat([7])),
        Differs(None, "OK", "reference-crashes"),
    ),
    Case("rubbish", stream(b"\xff\xff\xff"), Differs("OK", "INTERNAL", "rubbish-in-streams")),
    Case(
        "a good one, then rubbish",
        stream(GOOD, b"\xff\xff\xff"),
        Differs("OK", "INTERNAL", "rubbish-in-streams"),
    ),
    Case("0 responses", stream(repeat([], name="a")), "OK"),
    Case(
        "0 responses and the empty final",
        stream(repeat([], name="a", parameters=EMPTY_FINAL)),
        "OK",
    ),
    Case("1 response", stream(repeat([3], name="a")), "OK"),
    Case(
        "1 response and the empty final",
        stream(repeat([3], name="a", parameters=EMPTY_FINAL)),
        "OK",
    ),
    Case("5 responses", stream(repeat(range(5), name="a")), "OK"),
    Case(
        "5 responses and the empty final",
        stream(repeat(range(5), name="a", parameters=EMPTY_FINAL)),
        "OK",
    ),
    Case(
        "an error among responses",
        stream(repeat([1, -1, 2], name="a", parameters=EMPTY_FINAL)),
        "OK",
    ),
    Case("no id", stream(repeat([1], parameters=EMPTY_FINAL)), "OK"),
    Case(
        "a wrong value for real errors",
        stream(fault("INVALID_ARG"), metadata=(("triton_grpc_error", "yes"),)),
        "OK",
    ),
    real_errors("a good one", "OK", GOOD),
    real_errors("a model's error", "INVALID_ARGUMENT", fault("INVALID_ARG")),
    real_errors("a model that raises", "INTERNAL", fault("raise")),
    real_errors("an unknown model", "OK", UNKNOWN_MODEL),
    real_errors("a reserved parameter", "OK", RESERVED),
    real_errors("among decoupled responses", "INVALID_ARGUMENT", repeat([1, -1, 2])),
]
