"""Cases for inference with JSON tensors."""

from __future__ import annotations

import json

from .cases import BAD_JSON, Case, Differs
from .http_exchange import Http
from .http_requests import X, changed, infer, one, tensor, typed, with_x

PAIR = [
    tensor("INPUT0", "INT32", [1, 2, 3, 4], [1, 4]),
    tensor("INPUT1", "INT32", [10, 20, 30, 40], [1, 4]),
]


def versioned(version: str, model: str = "versions") -> Http:
    body = json.dumps({"inputs": [tensor("INPUT0", "INT64", [0])]}).encode()
    return Http("POST", f"/v2/models/{model}/versions/{version}/infer", body)


GOOD = [
    Case("one row", one(), 200),
    Case("three rows", one(shape=[3, 1], data=[1, 2, 3]), 200),
    Case("nested data", one(shape=[2, 2], data=[[1, 2], [3, 4]]), 200),
    Case("an id", with_x(id="an id"), 200),
    Case("an empty id", with_x(id=""), 200),
    Case("two inputs and outputs", infer({"inputs": PAIR}, "add_sub"), 200),
    Case("inputs in another order", infer({"inputs": PAIR[::-1]}, "add_sub"), 200),
    Case("the latest version", infer({"inputs": []}, "versions"), 200),
    Case("a version in the URL", versioned("1"), 200),
    Case(
        "an optional input left out",
        infer({"inputs": [tensor("INPUT0", "INT32", [1])]}, "optional"),
        200,
    ),
    Case(
        "an optional input given",
        infer(
            {"inputs": [tensor("INPUT0", "INT32", [1]), tensor("INPUT1", "INT32", [2])]}, "optional"
        ),
        200,
    ),
    Case(
        "fixed dims",
        infer({"inputs": [tensor("INPUT0", "FP32", [1, 2, 3, 4, 5, 6], [2, 3])]}, "fixed"),
        200,
    ),
    Case(
        "two variable dims",
        infer({"inputs": [tensor("INPUT0", "FP32", [1, 2], [1, 2])]}, "variable"),
        200,
    ),
    Case("no elements", one(shape=[1, 0], data=[]), 200),
    Case("no elements, but data", one(shape=[1, 0], data=[1]), 200),
    Case("unknown members are ignored", with_x(more=[1], and_more={}), 200),
    Case(
        "special floats",
        infer(
            b'{"inputs":[{"name":"INPUT0","shape":[1,3],"datatype":"FP32",'
            b'"data":[NaN,Infinity,-Infinity]}]}'
        ),
        200,
    ),
    Case(
        "a short infinity",
        infer(b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[Inf]}]}'),
        200,
    ),
    Case("odd floats", one(shape=[1, 6], data=[0.1, 1e-45, 3.4e38, -0.0, 16777217, 1e3]), 200),
    Case("a float beyond FP32", one(shape=[1, 1], data=[1e39]), 200),
    Case(
        "blanks in the JSON",
        infer(b' \n\t{"inputs" : [ ' + json.dumps(X, indent=2).encode() + b" ] } \r\n"),
        200,
    ),
]

TYPES = [
    Case("BOOL", typed("BOOL", [True, False]), 200),
    Case("UINT8", typed("UINT8", [0, 255]), 200),
    Case("UINT16", typed("UINT16", [0, 65535]), 200),
    Case("UINT32", typed("UINT32", [0, 2**32 - 1]), 200),
    Case("UINT64", typed("UINT64", [0, 2**64 - 1]), 200),
    Case("INT8", typed("INT8", [-128, 127]), 200),
    Case("INT16", typed("INT16", [-(2**15), 2**15 - 1]), 200),
    Case("INT32", typed("INT32", [-(2**31), 2**31 - 1]), 200),
    Case("INT64", typed("INT64", [-(2**63), 2**63 - 1]), 200),
    Case("FP32", typed("FP32", [0.1, 2, -1e-10, 3.4028234663852886e38]), 200),
    Case("FP64", typed("FP64", [0.1, 5e-324, 1.7976931348623157e308, 2]), 200),
    Case("BYTES", typed("BYTES", ["", "a", "\u00fc\u20ac\U0001f600", "a\0b", '"\\\n\x1f/']), 200),
    Case("FP16 as JSON", typed("FP16", [1]), 400),
    Case("BF16 as JSON", typed("BF16", [1]), 400),
    Case("BOOL as numbers", typed("BOOL", [1, 0]), BAD_JSON),
    Case("BOOL as text", typed("BOOL", ["true"]), BAD_JSON),
    Case("INT8 300", typed("INT8", [300]), Differs(200, 400, "integer-range")),
    Case("UINT8 256", typed("UINT8", [256]), Differs(200, 400, "integer-range")),
    Case("UINT8 -1", typed("UINT8", [-1]), BAD_JSON),
    Case("UINT32 2^32", typed("UINT32", [2**32]), Differs(200, 400, "integer-range")),
    Case("INT32 2^31", typed("INT32", [2**31]), Differs(200, 400, "integer-range")),
    Case("INT64 2^63", typed("INT64", [2**63]), BAD_JSON),
    Case("UINT64 2^64", typed("UINT64", [2**64]), BAD_JSON),
    Case("INT32 1.0", typed("INT32", [1.0]), BAD_JSON),
    Case(
        "INT32 1e3",
        infer(
            b'{"inputs":[{"name":"IN_INT32","shape":[1],"datatype":"INT32","data":[1e3]}]}', "types"
        ),
        BAD_JSON,
    ),
    Case(
        "INT32 -0",
        infer(
            b'{"inputs":[{"name":"IN_INT32","shape":[1],"datatype":"INT32","data":[-0]}]}', "types"
        ),
        200,
    ),
    Case("INT32 as text", typed("INT32", ["1"]), BAD_JSON),
    Case("INT32 null", typed("INT32", [None]), BAD_JSON),
    Case("FP32 as text", typed("FP32", ["1"]), BAD_JSON),
    Case("FP32 bool", typed("FP32", [True]), BAD_JSON),
    Case("BYTES as numbers", typed("BYTES", [1]), BAD_JSON),
    Case(
        "a lone surrogate",
        infer(
            b'{"inputs":[{"name":"IN_BYTES","shape":[1],"datatype":"BYTES","data":["\\ud800"]}]}',
            "types",
        ),
        BAD_JSON,
    ),
    Case(
        "UINT8 as base64",
        infer(
            {"inputs": [{"name": "IN_UINT8", "shape": [3], "datatype": "UINT8", "data": "AAAA"}]},
            "types",
        ),
        BAD_JSON,
    ),
    Case("a wrong datatype", one(datatype="INT32", data=[1, 2]), 400),
    Case("a lower-case datatype", one(datatype="fp32"), 400),
    Case("a configuration's datatype", one(datatype="TYPE_FP32"), 400),
    Case("a datatype nobody has", one(datatype="FP33"), 400),
    Case("datatype as a number", one(datatype=11), BAD_JSON),
]

SHAPES = [
    Case("a negative dim", one(shape=[1, -2]), BAD_JSON),
    Case("a fractional dim", one(shape=[1.5, 2]), BAD_JSON),
    Case("a dim as text", one(shape=["1", "2"]), BAD_JSON),
    Case("a null dim", one(shape=[None]), BAD_JSON),
    Case("shape null", infer({"inputs": [{**X, "shape": None}]}), BAD_JSON),
    Case("shape as a number", one(shape=2), BAD_JSON),
    Case("a nested shape", one(shape=[[1, 2]]), BAD_JSON),
    Case("10,000 dims", one(shape=[1] * 10_000, data=[1]), 400),
    Case(
        "a size that overflows", one(shape=[2**31, 2**31]), Differs(None, 400, "reference-crashes")
    ),
    Case("a shape that overflows", one(shape=[2**40, 2**40]), 400),
    Case("a dim of 2^63", one(shape=[1, 2**63], data=[]), BAD_JSON),
    Case("a dim of 2^64", one(shape=[1, 2**64], data=[]), BAD_JSON),
    Case("too few elements", one(data=[1]), BAD_JSON),
    Case("too many elements", one(data=[1, 2, 3]), BAD_JSON),
    Case("too many strings", typed("BYTES", ["a", "b"], [1]), 400),
    Case("ragged nesting", one(shape=[2, 2], data=[[1, 2, 3], [4]]), 200),
    Case("odd nesting", one(shape=[1, 3], data=[[[1]], 2, [3]]), 200),
    Case("ragged nesting with a wrong count", one(shape=[2, 2], data=[[1, 2], [3]]), BAD_JSON),
    Case("an empty shape", one(shape=[], data=[1]), 400),
    Case("no batch dim", one(shape=[2]), 400),
    Case("one dim too many", one(shape=[1, 1, 2]), 400),
    Case("batch 0", one(shape=[0, 2], data=[]), 400),
    Case("batch 8", one(shape=[8, 1], data=list(range(8))), 200),
    Case("batch 9", one(shape=[9, 1], data=list(range(9))), 400),
    Case(
        "batches that differ",
        infer({"inputs": [PAIR[0], tensor("INPUT1", "INT32", list(range(8)), [2, 4])]}, "add_sub"),
        400,
    ),
    Case(
        "wrong fixed dims",
        infer({"inputs": [tensor("INPUT0", "FP32", [1] * 6, [3, 2])]}, "fixed"),
        400,
    ),
    Case(
        "a batch dim too many",
        infer({"inputs": [tensor("INPUT0", "FP32", [1] * 6, [1, 2, 3])]}, "fixed"),
        400,
    ),
    Case("nesting of 100", one(shape=[1, 1], data=json.loads("[" * 100 + "1" + "]" * 100)), 200),
    Case(
        "nesting of 101",
        one(shape=[1, 1], data=json.loads("[" * 101 + "1" + "]" * 101)),
        Differs(200, 400, "nesting"),
    ),
]

DOCUMENTS = [
    Case("an open brace", infer(b"{"), BAD_JSON),
    Case("rubbish", infer(b"nonsense"), BAD_JSON),
    Case("much rubbish", infer(b"x" * 1_000_000), BAD_JSON),
    Case("null", infer(b"null"), BAD_JSON),
    Case("an array", infer(b"[]"), BAD_JSON),
    Case("a number", infer(b"3"), BAD_JSON),
    Case("a trailing comma", infer(b'{"inputs":[],}'), BAD_JSON),
    Case("two documents", infer(b"{}{}"), BAD_JSON),
    Case("a byte order mark", infer(b"\xef\xbb\xbf{}"), BAD_JSON),
    Case("UTF-16", infer("{}".encode("utf-16")), BAD_JSON),
    Case("invalid UTF-8", infer(b'{"id":"\xff"}'), BAD_JSON),
    Case(
        "a NUL at the end",
        infer(json.dumps({"inputs": [X]}).encode() + b"\0"),
        Differs(200, 400, "json-faults"),
    ),
    Case("an empty object", infer(b"{}"), BAD_JSON),
    Case("inputs null", infer({"inputs": None}), BAD_JSON),
    Case("inputs as an object", infer({"inputs": {}}), BAD_JSON),
    Case("inputs of numbers", infer({"inputs": [1]}), 400),
    Case("no inputs at all", infer({"inputs": []}), 400),
    Case(
        "a key twice",
        infer(b'{"id":"a","id":"b","inputs":[' + json.dumps(X).encode() + b"]}"),
        Differs(200, 400, "json-faults"),
    ),
    Case("id as a number", with_x(id=1), BAD_JSON),
    Case("id null", with_x(id=None), BAD_JSON),
]

MEMBERS = [
    Case("no name", one(name=None), BAD_JSON),
    Case("no datatype", one(datatype=None), BAD_JSON),
    Case("no shape", one(shape=None), BAD_JSON),
    Case("no data", one(data=None), 400),
    Case("data null", infer({"inputs": [{**X, "data": None}]}), BAD_JSON),
    Case("data as a number", one(data=1), BAD_JSON),
    Case("name as a number", one(name=1), BAD_JSON),
    Case("an unknown input", one(name="INPUT9"), 400),
    Case("an input too many", infer({"inputs": [X, changed(name="INPUT9")]}), 400),
    Case("an input too few", infer({"inputs": PAIR[:1]}, "add_sub"), 400),
    Case("an input twice", infer({"inputs": [X, X]}), 400),
    Case("an input twice of two", infer({"inputs": [PAIR[0], PAIR[0]]}, "add_sub"), 400),
    Case(
        "only the optional input",
        infer({"inputs": [tensor("INPUT1", "INT32", [1])]}, "optional"),
        Differs(200, 400, "required-inputs"),
    ),
    Case("an unknown model", infer({"inputs": [X]}, "nobody"), 404),
    Case("a model that failed to load to infer", infer({"inputs": [X]}, "broken"), 404),
    Case("a version nobody has", versioned("7"), 404),
    Case("a version that is not selected to infer", versioned("2"), 404),
    Case("a version that failed to load to infer", versioned("1", "broken"), 503),
    Case("version x to infer", versioned("x"), Differs(404, 400, "version-text")),
    Case("version 0 to infer", versioned("0"), 404),
    Case("version -1 to infer", versioned("-1"), Differs(404, 400, "version-text")),
    Case("a decoupled model", infer({"inputs": [tensor("IN", "INT32", [1])]}, "repeat"), 501),
]

CASES: list[Case[Http]] = [*GOOD, *TYPES, *SHAPES, *DOCUMENTS, *MEMBERS]
