"""Cases for binary tensors, compression and the framing of bodies."""

from __future__ import annotations

import gzip
import json
import zlib

import numpy as np

from .cases import BAD_JSON, Case, Differs
from .http_exchange import Http
from .http_requests import LENGTH, X, binary, blob, fp32, infer, raw, strings

ONE = {"inputs": [blob("INPUT0", "FP32", [1, 2], 8)]}
BINARY_OUT = {**ONE, "parameters": {"binary_data_output": True}}
DATA = fp32(1.5, -2)
JSON = json.dumps({"inputs": [X]}).encode()
MIXED = json.dumps(ONE).encode() + DATA
MIXED_LENGTH = f"{LENGTH}: {len(MIXED) - len(DATA)}"


def sized(size: object, data: bytes = DATA) -> Http:
    return binary({"inputs": [blob("INPUT0", "FP32", [1, 2], size)]}, data)


def elements(kind: str, count: int, data: bytes) -> Http:
    body = {
        "inputs": [blob(f"IN_{kind}", kind, [count], len(data))],
        "parameters": {"binary_data_output": True},
    }
    return binary(body, data, "types")


def header_length(value: str, body: bytes = JSON) -> Http:
    return infer(body, "identity", f"{LENGTH}: {value}")


def encoded(coding: str, body: bytes, *headers: str) -> Http:
    return infer(body, "identity", f"Content-Encoding: {coding}", *headers)


def accepting(value: str) -> Http:
    return infer(JSON, "identity", f"Accept-Encoding: {value}")


def content_type(value: str) -> Http:
    return infer(JSON, "identity", f"Content-Type: {value}")


BINARY = [
    Case("binary in, JSON out", binary(ONE, DATA), 200),
    Case("binary in and out", binary(BINARY_OUT, DATA), 200),
    Case(
        "one input binary, one JSON",
        binary(
            {
                "inputs": [
                    blob("INPUT0", "INT32", [1, 4], 16),
                    {"name": "INPUT1", "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]},
                ]
            },
            np.arange(4, dtype="<i4").tobytes(),
            "add_sub",
        ),
        200,
    ),
    *(
        Case(f"{kind} in binary", elements(kind, 3, np.array([0, 1, 2], dtype).tobytes()), 200)
        for kind, dtype in {
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
        }.items()
    ),
    Case("BYTES in binary", elements("BYTES", 3, strings(b"", b"\xff\0", b"abc")), 200),
    Case("BF16 in binary", elements("BF16", 2, b"\x80\x3f\x00\x40"), 200),
    Case("a header length without a binary part", header_length(str(len(JSON))), 200),
    Case(
        "no elements in binary", binary({"inputs": [blob("INPUT0", "FP32", [1, 0], 0)]}, b""), 200
    ),
    Case(
        "FP16 in binary, out as JSON",
        binary({"inputs": [blob("IN_FP16", "FP16", [1], 2)]}, b"\0\0", "types"),
        400,
    ),
    Case(
        "BF16 in binary, out as JSON",
        binary({"inputs": [blob("IN_BF16", "BF16", [1], 2)]}, b"\0\0", "types"),
        400,
    ),
    Case(
        "invalid UTF-8 out as JSON",
        binary({"inputs": [blob("IN_BYTES", "BYTES", [1], 5)]}, strings(b"\xff"), "types"),
        Differs(200, 400, "json-text"),
    ),
    Case("a size below the shape", sized(4, fp32(1)), 400),
    Case("a size above the shape", sized(12, fp32(1, 2, 3)), 400),
    Case("a size above the body", sized(8, fp32(1)), 400),
    Case("bytes left over", sized(8, fp32(1, 2, 3)), 400),
    Case("a negative size", sized(-1), BAD_JSON),
    Case("a size as text", sized("8"), BAD_JSON),
    Case("a size of 0", sized(0, b""), 400),
    Case("a size of 2^40", sized(2**40), 400),
    Case(
        "data and a size",
        binary({"inputs": [{**X, "parameters": {"binary_data_size": 8}}]}, DATA),
        400,
    ),
    Case(
        "a BYTES prefix cut off",
        binary({"inputs": [blob("INPUT0", "BYTES", [1, 1], 3)]}, b"\1\0\0", "text"),
        400,
    ),
    Case(
        "a BYTES element cut off",
        binary({"inputs": [blob("INPUT0", "BYTES", [1, 1], 5)]}, b"\2\0\0\0a", "text"),
        400,
    ),
    Case(
        "a BYTES element of 4 GiB",
        binary({"inputs": [blob("INPUT0", "BYTES", [1, 1], 5)]}, b"\xff\xff\xff\xffa", "text"),
        400,
    ),
    Case(
        "too many BYTES elements",
        binary({"inputs": [blob("INPUT0", "BYTES", [1, 1], 10)]}, strings(b"a", b"b"), "text"),
        400,
    ),
    Case(
        "too few BYTES elements",
        binary({"inputs": [blob("INPUT0", "BYTES", [2, 1], 5)]}, strings(b"a"), "text"),
        400,
    ),
]

RAW = [
    Case("raw FP32", raw(fp32(1, 2, 3)), 200),
    Case("raw BYTES", raw(b"any text", "text"), 200),
    Case("raw with two inputs", raw(bytes(16), "add_sub"), 400),
    Case("raw with two variable dims", raw(fp32(1), "variable"), 400),
    Case("raw with fixed dims", raw(bytes(24), "fixed"), 200),
    Case("raw with too little for fixed dims", raw(bytes(20), "fixed"), 400),
    Case("raw that is no multiple of the element", raw(b"abc"), 400),
    Case("raw BYTES that may have any length", raw(b"abc", "types"), 400),
    Case("raw and empty", raw(b""), Differs(200, 400, "empty-body")),
    Case("an empty body", infer(b""), Differs(200, 400, "empty-body")),
    Case(
        "an empty body without a length",
        Http("POST", "/v2/models/identity/infer", framed=False),
        Differs(200, 400, "empty-body"),
    ),
]

LENGTHS = [
    Case("header length -1", header_length("-1"), 400),
    Case("header length abc", header_length("abc"), Differs(200, 400, "header-length")),
    Case("header length 1e2", header_length("1e2"), Differs(500, 400, "header-length")),
    Case("header length empty", header_length(""), Differs(200, 400, "header-length")),
    Case("header length above the body", header_length("100000"), 400),
    Case("header length 2^31", header_length(str(2**31)), 400),
    Case("header length 2^40", header_length(str(2**40)), Differs(200, 400, "header-length")),
    Case("header length below the JSON", header_length("10"), BAD_JSON),
    Case("header length +5", header_length(f"+{len(JSON)}"), Differs(200, 400, "header-length")),
    Case("one chunk", infer(JSON, chunks=(len(JSON),)), 200),
    Case("one-byte chunks", infer(JSON, chunks=(1,) * len(JSON)), 200),
    Case(
        "binary in chunks",
        binary(BINARY_OUT, DATA, chunks=(len(json.dumps(BINARY_OUT)) + 3, 5)),
        200,
    ),
]

COMPRESSION = [
    Case("gzip", encoded("gzip", gzip.compress(JSON)), 200),
    Case("deflate", encoded("deflate", zlib.compress(JSON)), 200),
    Case("deflate under the name gzip", encoded("gzip", zlib.compress(JSON)), 200),
    Case("gzip under the name deflate", encoded("deflate", gzip.compress(JSON)), 200),
    Case(
        "gzip in chunks",
        infer(
            gzip.compress(JSON),
            "identity",
            "Content-Encoding: gzip",
            chunks=(10, len(gzip.compress(JSON)) - 10),
        ),
        200,
    ),
    Case(
        "gzip with the decompressed length",
        encoded("gzip", gzip.compress(MIXED), MIXED_LENGTH),
        200,
    ),
    Case(
        "gzip with the compressed length",
        encoded("gzip", gzip.compress(MIXED), f"{LENGTH}: {len(gzip.compress(MIXED))}"),
        400,
    ),
    Case("identity", encoded("identity", JSON), 200),
    Case("br", encoded("br", JSON), 501),
    Case("two codings", encoded("gzip, deflate", gzip.compress(zlib.compress(JSON))), 501),
    Case("GZIP", encoded("GZIP", gzip.compress(JSON)), Differs(501, 200, "codings")),
    Case("an empty coding", encoded("", JSON), Differs(501, 200, "codings")),
    Case("gzip cut off", encoded("gzip", gzip.compress(JSON)[:-12]), Differs(500, 400, "codings")),
    Case("gzip of rubbish", encoded("gzip", b"rubbish" * 9), Differs(200, 400, "codings")),
    Case("accepting gzip", accepting("gzip"), 200),
    Case("accepting deflate", accepting("deflate"), 200),
    Case("accepting gzip or deflate", accepting("gzip, deflate"), 200),
    Case("preferring deflate", accepting("gzip;q=0.5, deflate;q=0.8"), 200),
    Case("preferring identity", accepting("identity, gzip;q=0.5"), 200),
    Case("accepting br", accepting("br"), 200),
    Case("accepting anything", accepting("*"), 200),
    Case("accepting no gzip", accepting("gzip;q=0"), 200),
    Case("accepting nonsense", accepting(";;q=,gzip;q=x"), 200),
    Case("accepting gzip for an error", infer(b"{", "identity", "Accept-Encoding: gzip"), BAD_JSON),
    Case(
        "binary and gzip back", binary(BINARY_OUT, DATA, "identity", "Accept-Encoding: gzip"), 200
    ),
]

CONTENT_TYPES = [
    Case("a form's content type", content_type("application/x-www-form-urlencoded"), 200),
    Case("plain text's content type", content_type("text/plain"), 200),
    Case("JSON's content type", content_type("application/json; charset=utf-8"), 200),
    Case("a content type of nonsense", content_type("?"), 200),
]

CASES: list[Case[Http]] = [*BINARY, *RAW, *LENGTHS, *COMPRESSION, *CONTENT_TYPES]
