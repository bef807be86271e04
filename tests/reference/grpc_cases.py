"""Cases over gRPC: unary calls."""

from __future__ import annotations

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from .cases import Case, Differs, in_any_order, reasons_are_there, without_counts
from .grpc_exchange import Call
from .grpc_requests import DATA, X, infer, output, raw, repeat, request, tensor, typed
from .http_requests import strings
from .repository import MODELS


def ready(name: str, version: str = "") -> Call:
    return Call("ModelReady", (pb.ModelReadyRequest(name=name, version=version),))


def metadata(name: str, version: str = "") -> Call:
    return Call("ModelMetadata", (pb.ModelMetadataRequest(name=name, version=version),))


def config(name: str, version: str = "") -> Call:
    return Call("ModelConfig", (pb.ModelConfigRequest(name=name, version=version),))


def statistics(name: str = "", version: str = "") -> Call:
    return Call("ModelStatistics", (pb.ModelStatisticsRequest(name=name, version=version),))


def index(**members: object) -> Call:
    return Call("RepositoryIndex", (pb.RepositoryIndexRequest(**members),))


def fault(mode: str) -> Call:
    return infer([tensor("MODE", "BYTES", [1])], [strings(mode.encode())], model="faults")


def facts(**parameters: object) -> Call:
    one = tensor("INPUT0", "INT32", [1], {"int_contents": [7]})
    return infer([one], model="request_facts", name="7", parameters=parameters)


PAIR = [tensor("INPUT0", "INT32", [1, 4]), tensor("INPUT1", "INT32", [1, 4])]
FOUR = np.arange(4, dtype="<i4").tobytes()
HEALTH_CHECK = "/grpc.health.v1.Health/Check"

SERVER = [
    Case("server live", Call("ServerLive", (pb.ServerLiveRequest(),)), "OK"),
    Case("server ready", Call("ServerReady", (pb.ServerReadyRequest(),)), "OK"),
    Case("health check", Call(HEALTH_CHECK, (b"",)), "OK"),
    Case("health check of a service", Call(HEALTH_CHECK, (b"\n\1x",)), "OK"),
    Case("health watch", Call("/grpc.health.v1.Health/Watch", (b"",)), "UNIMPLEMENTED"),
    Case("an unknown method", Call("Nothing", (b"",)), "UNIMPLEMENTED"),
    Case("an unknown service", Call("/a.B/C", (b"",)), "UNIMPLEMENTED"),
    Case(
        "server metadata",
        Call("ServerMetadata", (pb.ServerMetadataRequest(),)),
        Differs(("OK", {"name": "triton"}), ("OK", {"name": "triton"}), "extensions"),
    ),
    Case("a model is ready", ready("identity"), "OK"),
    Case("a version is ready", ready("versions", "3"), "OK"),
    Case("a version nobody has", ready("identity", "9"), "OK"),
    Case("version x", ready("identity", "x"), "INVALID_ARGUMENT"),
    Case("version -1", ready("identity", "-1"), "INVALID_ARGUMENT"),
    Case("an unknown model is ready", ready("nobody"), "OK"),
    Case("no model is ready", ready(""), "OK"),
    Case("a model that failed to load is ready", ready("broken"), "OK"),
    Case("a version that failed to load is ready", ready("broken", "1"), "OK"),
    *(Case(f"metadata of {name}", metadata(name), "OK") for name in MODELS if name != "broken"),
    Case("metadata of a version", metadata("versions", "1"), "OK"),
    Case("metadata of an unknown version", metadata("versions", "2"), "NOT_FOUND"),
    Case("metadata of an unknown model", metadata("nobody"), "NOT_FOUND"),
    Case("metadata of a model that failed", metadata("broken"), "NOT_FOUND"),
    *(
        Case(f"configuration of {name}", config(name), "OK", in_any_order)
        for name in MODELS
        if name != "broken"
    ),
    Case("configuration of an unknown version", config("identity", "2"), "NOT_FOUND"),
    Case("configuration of an unknown model", config("nobody"), "NOT_FOUND"),
    Case("statistics of a model", statistics("identity"), "OK", without_counts),
    Case("statistics of all", statistics(), "OK", without_counts),
    Case("statistics of an unknown model", statistics("nobody"), "INVALID_ARGUMENT"),
    Case("statistics of an unknown version", statistics("identity", "2"), "INVALID_ARGUMENT"),
    Case("index", index(), "OK", reasons_are_there),
    Case("index of ready ones", index(ready=True), "OK", reasons_are_there),
    Case("index of a named repository", index(repository_name="r"), "UNIMPLEMENTED"),
    Case(
        "load",
        Call("RepositoryModelLoad", (pb.RepositoryModelLoadRequest(model_name="identity"),)),
        "UNAVAILABLE",
    ),
    Case(
        "unload",
        Call("RepositoryModelUnload", (pb.RepositoryModelUnloadRequest(model_name="identity"),)),
        "UNAVAILABLE",
    ),
]

_NUMPY = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
_FIELDS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}

TYPES = [
    *(
        Case(f"raw {kind}", raw(kind, 3, np.array([0, 1, 2], dtype).tobytes()), "OK")
        for kind, dtype in _NUMPY.items()
    ),
    Case("raw BYTES", raw("BYTES", 3, strings(b"", b"\xff\0", b"abc")), "OK"),
    Case("raw BF16", raw("BF16", 2, b"\x80\x3f\x00\x40"), "OK"),
    *(
        Case(f"typed {kind}", typed(kind, [0, 1, 1], field), "OK")
        for kind, field in _FIELDS.items()
    ),
    Case("typed BYTES", typed("BYTES", [b"", b"\xff\0", b"abc"], "bytes_contents"), "OK"),
    Case(
        "typed INT64 at its limits", typed("INT64", [-(2**63), 2**63 - 1], "int64_contents"), "OK"
    ),
    Case("typed UINT64 at its limit", typed("UINT64", [2**64 - 1], "uint64_contents"), "OK"),
    Case("typed INT8 -128", typed("INT8", [-128, 127], "int_contents"), "OK"),
    Case(
        "typed INT8 300",
        typed("INT8", [300], "int_contents"),
        Differs("OK", "INVALID_ARGUMENT", "integer-range"),
    ),
    Case(
        "typed UINT16 65536",
        typed("UINT16", [65536], "uint_contents"),
        Differs("OK", "INVALID_ARGUMENT", "integer-range"),
    ),
    Case("typed FP16", typed("FP16", [1], "fp32_contents"), "INVALID_ARGUMENT"),
    Case("typed BF16", typed("BF16", [1], "fp32_contents"), "INVALID_ARGUMENT"),
    Case("INT64 in int_contents", typed("INT64", [1], "int_contents"), "INVALID_ARGUMENT"),
    Case("INT32 in int64_contents", typed("INT32", [1], "int64_contents"), "INVALID_ARGUMENT"),
    Case("FP32 in fp64_contents", typed("FP32", [1], "fp64_contents"), "INVALID_ARGUMENT"),
    Case("UINT8 in int_contents", typed("UINT8", [1], "int_contents"), "INVALID_ARGUMENT"),
    Case("BYTES in int_contents", typed("BYTES", [1], "int_contents"), "INVALID_ARGUMENT"),
    Case("BOOL in uint_contents", typed("BOOL", [1], "uint_contents"), "INVALID_ARGUMENT"),
    Case(
        "two fields filled",
        infer([tensor("INPUT0", "FP32", [1, 1], {"fp32_contents": [1], "fp64_contents": [1]})]),
        "INVALID_ARGUMENT",
    ),
    Case(
        "too few typed values",
        infer([tensor("INPUT0", "FP32", [1, 2], {"fp32_contents": [1]})]),
        "INVALID_ARGUMENT",
    ),
    Case(
        "too many typed values",
        infer([tensor("INPUT0", "FP32", [1, 1], {"fp32_contents": [1, 2]})]),
        "INVALID_ARGUMENT",
    ),
    Case(
        "too many typed strings",
        infer([tensor("IN_BYTES", "BYTES", [1], {"bytes_contents": [b"a", b"b"]})], model="types"),
        "INVALID_ARGUMENT",
    ),
    Case(
        "no typed values for no elements",
        infer([tensor("INPUT0", "FP32", [1, 0], {"fp32_contents": []})]),
        "OK",
    ),
]

INFER = [
    Case("one row", infer([X], [DATA]), "OK"),
    Case("an id", infer([X], [DATA], name="an id"), "OK"),
    Case("a version", infer([], model="versions", version="1"), "OK"),
    Case("the latest version", infer([], model="versions"), "OK"),
    Case("version -1 to infer", infer([X], [DATA], version="-1"), "INVALID_ARGUMENT"),
    Case("version x to infer", infer([X], [DATA], version="x"), "INVALID_ARGUMENT"),
    Case("version 2 to infer", infer([X], [DATA], version="2"), "NOT_FOUND"),
    Case("version 0 to infer", infer([X], [DATA], version="0"), "NOT_FOUND"),
    Case("an unknown model", infer([X], [DATA], model="nobody"), "NOT_FOUND"),
    Case("no model", infer([X], [DATA], model=""), "NOT_FOUND"),
    Case("a model that failed to load", infer([X], [DATA], model="broken"), "NOT_FOUND"),
    Case(
        "a version that failed to load",
        infer([X], [DATA], model="broken", version="1"),
        "UNAVAILABLE",
    ),
    Case("two inputs", infer(PAIR, [FOUR, FOUR], model="add_sub"), "OK"),
    Case(
        "outputs in another order",
        infer(PAIR, [FOUR, FOUR], model="add_sub", outputs=["OUTPUT1", "OUTPUT0"]),
        "OK",
    ),
    Case("one output", infer(PAIR, [FOUR, FOUR], model="add_sub", outputs=["OUTPUT1"]), "OK"),
    Case(
        "an unknown output",
        infer(PAIR, [FOUR, FOUR], model="add_sub", outputs=["X"]),
        "INVALID_ARGUMENT",
    ),
    Case(
        "an output twice",
        infer(PAIR, [FOUR, FOUR], model="add_sub", outputs=["OUTPUT0", "OUTPUT0"]),
        Differs("OK", "INVALID_ARGUMENT", "output-twice"),
    ),
    Case("an unknown input", infer([tensor("X", "FP32", [1, 2])], [DATA]), "INVALID_ARGUMENT"),
    Case("an input twice", infer([X, X], [DATA, DATA]), "INVALID_ARGUMENT"),
    Case("an input too few", infer(PAIR[:1], [FOUR], model="add_sub"), "INVALID_ARGUMENT"),
    Case("no inputs", infer([]), "INVALID_ARGUMENT"),
    Case(
        "a wrong datatype", infer([tensor("INPUT0", "INT32", [1, 2])], [DATA]), "INVALID_ARGUMENT"
    ),
    Case(
        "an unknown datatype", infer([tensor("INPUT0", "fp32", [1, 2])], [DATA]), "INVALID_ARGUMENT"
    ),
    Case("a negative dim", infer([tensor("INPUT0", "FP32", [1, -2])], [DATA]), "INVALID_ARGUMENT"),
    Case("no shape", infer([tensor("INPUT0", "FP32", [])], [DATA]), "INVALID_ARGUMENT"),
    Case("batch 9", infer([tensor("INPUT0", "FP32", [9, 1])], [bytes(36)]), "INVALID_ARGUMENT"),
    Case(
        "batch 0",
        infer([tensor("INPUT0", "FP32", [0, 2])], [b""]),
        "INVALID_ARGUMENT",
    ),
    Case("no elements", infer([tensor("INPUT0", "FP32", [1, 0])], [b""]), "OK"),
    Case("too few bytes", infer([X], [DATA[:4]]), "INVALID_ARGUMENT"),
    Case("too many bytes", infer([X], [DATA + DATA]), "INVALID_ARGUMENT"),
    Case("no data", infer([X]), "INVALID_ARGUMENT"),
    Case(
        "raw and typed",
        infer([tensor("INPUT0", "FP32", [1, 1], {"fp32_contents": [1]})], [DATA[:4]]),
        "INVALID_ARGUMENT",
    ),
    Case("fewer raw entries than inputs", infer(PAIR, [FOUR], model="add_sub"), "INVALID_ARGUMENT"),
    Case("more raw entries than inputs", infer([X], [DATA, DATA]), "OK"),
    Case(
        "a BYTES element cut off",
        infer([tensor("INPUT0", "BYTES", [1, 1])], [b"\2\0\0\0a"], model="text"),
        "INVALID_ARGUMENT",
    ),
    Case(
        "too many BYTES elements",
        infer([tensor("INPUT0", "BYTES", [1, 1])], [strings(b"a", b"b")], model="text"),
        "INVALID_ARGUMENT",
    ),
    Case("a decoupled model", Call("ModelInfer", (repeat([1]),)), "UNIMPLEMENTED"),
    Case(
        "gzip", Call("ModelInfer", (request([X], [DATA]),), compression=grpc.Compression.Gzip), "OK"
    ),
    Case(
        "deflate",
        Call("ModelInfer", (request([X], [DATA]),), compression=grpc.Compression.Deflate),
        "OK",
    ),
    Case("rubbish instead of a message", Call("ModelInfer", (b"\xff\xff\xff",)), "INTERNAL"),
    Case("rubbish for another method", Call("ModelReady", (b"\xff\xff\xff",)), "INTERNAL"),
    Case("invalid UTF-8 in a name", Call("ModelReady", (b"\n\1\xff",)), "INTERNAL"),
    Case("an unknown field", Call("ModelReady", (b"\n\x08identity" + b"\xf2\x01\1x",)), "OK"),
]


UNSET = pb.InferParameter()
LARGE = pb.InferParameter(uint64_param=5)

PARAMETERS = [
    Case("no parameters", facts(), "OK"),
    Case("parameters of every kind", facts(a=1, b="x", c=True, d=1.5), "OK"),
    Case("a uint64 parameter", facts(a=LARGE), "INVALID_ARGUMENT"),
    Case("an unset parameter", facts(a=UNSET), "INVALID_ARGUMENT"),
    Case("a reserved parameter", facts(triton_x=1), "INVALID_ARGUMENT"),
    Case("the one reserved parameter", facts(triton_enable_empty_final_response=True), "OK"),
    Case("timeout", facts(timeout=5_000_000), "OK"),
    Case("timeout as text", facts(timeout="x"), "INVALID_ARGUMENT"),
    Case("priority", facts(priority=1), "OK"),
    Case("priority as uint64", facts(priority=LARGE), "OK"),
    Case("a negative priority", facts(priority=-1), "INVALID_ARGUMENT"),
    Case("priority as text", facts(priority="x"), "INVALID_ARGUMENT"),
    Case("sequence fields", facts(sequence_id=5, sequence_start=True, sequence_end=True), "OK"),
    Case("a sequence id as text", facts(sequence_id="abc"), "OK"),
    Case("a sequence id as bool", facts(sequence_id=True), "INVALID_ARGUMENT"),
    Case("sequence_start as a number", facts(sequence_start=1), "INVALID_ARGUMENT"),
]


def wanted(*outputs: object) -> Call:
    one = tensor("INPUT0", "FP32", [1, 4], {"fp32_contents": [1, 4.5, 3, -2]})
    return infer([one], model="scores", outputs=outputs)


OUTPUTS = [
    Case("the best two classes", wanted(output("OUTPUT0", classification=2)), "OK"),
    Case("more classes than there are", wanted(output("OUTPUT0", classification=9)), "OK"),
    Case("classification 0", wanted(output("OUTPUT0", classification=0)), "INVALID_ARGUMENT"),
    Case("classification -1", wanted(output("OUTPUT0", classification=-1)), "INVALID_ARGUMENT"),
    Case(
        "classification as text", wanted(output("OUTPUT0", classification="1")), "INVALID_ARGUMENT"
    ),
    Case("an unknown output parameter", wanted(output("OUTPUT0", more=1)), "OK"),
    Case(
        "a region nobody registered",
        wanted(output("OUTPUT0", shared_memory_region="r", shared_memory_byte_size=16)),
        "NOT_FOUND",
    ),
    Case(
        "a region as a number",
        wanted(output("OUTPUT0", shared_memory_region=1)),
        "INVALID_ARGUMENT",
    ),
    Case(
        "a region's size without a region",
        wanted(output("OUTPUT0", shared_memory_byte_size=16)),
        "INVALID_ARGUMENT",
    ),
    Case(
        "a region and classes",
        wanted(
            output(
                "OUTPUT0", shared_memory_region="r", shared_memory_byte_size=16, classification=1
            )
        ),
        "INVALID_ARGUMENT",
    ),
]

FAULTS = [
    Case("a model that raises", fault("raise"), "INTERNAL"),
    Case("an error with the default code", fault("default"), "INTERNAL"),
    Case("UNKNOWN of a model", fault("UNKNOWN"), "UNKNOWN"),
    Case("INTERNAL of a model", fault("INTERNAL"), "INTERNAL"),
    Case("NOT_FOUND of a model", fault("NOT_FOUND"), "NOT_FOUND"),
    Case("INVALID_ARG of a model", fault("INVALID_ARG"), "INVALID_ARGUMENT"),
    Case("UNAVAILABLE of a model", fault("UNAVAILABLE"), "UNAVAILABLE"),
    Case("UNSUPPORTED of a model", fault("UNSUPPORTED"), "UNIMPLEMENTED"),
    Case("ALREADY_EXISTS of a model", fault("ALREADY_EXISTS"), "ALREADY_EXISTS"),
    Case("CANCELLED of a model", fault("CANCELLED"), "CANCELLED"),
    Case("too few responses", fault("too few"), "INTERNAL"),
    Case(
        "an output of another datatype",
        fault("wrong dtype"),
        Differs("OK", "INTERNAL", "model-outputs"),
    ),
    Case("no outputs", fault("no outputs"), "OK"),
]

CASES: list[Case[Call]] = [*SERVER, *TYPES, *INFER, *PARAMETERS, *OUTPUTS, *FAULTS]
