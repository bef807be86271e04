"""Cases of shared memory over HTTP; the region "a" is registered before each."""

from __future__ import annotations

import base64
import json
from typing import Any

from .cases import BAD_JSON, Case, Differs, Expected
from .http_exchange import Http
from .http_requests import X, infer
from .regions import (
    CUDA,
    FIFO,
    FLOATS,
    FOLDER,
    INTS,
    KEY,
    LINK,
    PAGE,
    SIZE,
    SYSTEM,
    TARGET,
    TEXT,
    Steps,
    post,
)

HANDLE = base64.b64encode(bytes(64)).decode()
OBJECTS = "region-objects"
PARAMETERS = "region-parameters"


def get(path: str) -> Http:
    return Http("GET", path, framed=False)


def register(name: str = "b", **members: Any) -> Http:
    """A register call; members that are None are left out."""
    given = {"key": KEY, "offset": 0, "byte_size": 64, **members}
    body = {key: value for key, value in given.items() if value is not None}
    return post(f"{SYSTEM}/region/{name}/register", json.dumps(body).encode())


def register_cuda(name: str = "c", **members: Any) -> Http:
    given = {"raw_handle": {"b64": HANDLE}, "device_id": 0, "byte_size": 64, **members}
    body = {key: value for key, value in given.items() if value is not None}
    return post(f"{CUDA}/region/{name}/register", json.dumps(body).encode())


ALL = get(f"{SYSTEM}/status")
ONE = get(f"{SYSTEM}/region/a/status")


def registering(name: str, **members: Any) -> Case[Steps]:
    """Register "b"; the status shows what came of it."""
    return Case(name, (register(**members), ALL), 200)


def refused(name: str, reference: Expected, why: str, **members: Any) -> Case[Steps]:
    """Register "b", which the reference answers otherwise than with our 400."""
    return Case(name, (register(**members),), Differs(reference, 400, why))


REGISTER: list[Case[Steps]] = [
    registering("a part from a page on", offset=PAGE, byte_size=PAGE),
    # The reference answers 400 or 500, not the same every time.
    Case("the same key twice", (register(key=f"/{KEY}"),), Differs(None, 200, OBJECTS)),
    registering("many slashes in front", key=f"///{KEY}"),
    registering("the whole object", byte_size=SIZE),
    Case("a name in use", (register("a"),), 400),
    Case("a name in use, no such object", (register("a", key="nothing"),), 400),
    Case("no such object", (register(key=f"{KEY}_none"), ALL), 200),
    Case("no such object, the answer", (register(key=f"{KEY}_none"),), 500),
    Case("a byte too many", (register(byte_size=SIZE + 1),), 400),
    Case("behind the end", (register(offset=SIZE),), 400),
    Case("an offset that wraps", (register(offset=2**64 - PAGE, byte_size=PAGE),), 400),
    Case("all that is addressable", (register(byte_size=2**64 - 1),), 400),
    Case("no bytes", (register(byte_size=0),), 400),
    Case("within a page", (register(offset=64),), 400),
    refused("an empty key", 500, OBJECTS, key=""),
    refused("a key of slashes", 500, OBJECTS, key="//"),
    refused("a key that climbs", 500, OBJECTS, key="/../x"),
    refused("a key of two names", 500, OBJECTS, key="/a/b"),
    refused("a key of two dots", 500, OBJECTS, key=".."),
    refused("a key with a NUL", 200, OBJECTS, key=f"{KEY}\0b"),
    refused("a long key", 500, OBJECTS, key="x" * 300),
    refused("the reserved prefix", 500, OBJECTS, key="triton_python_backend_shm_region_1"),
    Case("a pipe", (register(key=FIFO),), 400),
    refused("a directory", 500, OBJECTS, key=FOLDER),
    refused("a link", 500, OBJECTS, key=LINK),
    Case("no name", (post(f"{SYSTEM}/register", b'{"key":"k","byte_size":1}'),), 400),
    Case("no key", (register(key=None),), 400),
    Case("no byte size", (register(byte_size=None),), 400),
    Case("an array", (post(f"{SYSTEM}/region/b/register", b"[]"),), 400),
    Case("no body", (post(f"{SYSTEM}/region/b/register"),), BAD_JSON),
    Case("broken JSON", (post(f"{SYSTEM}/region/b/register", b"{"),), BAD_JSON),
    Case("a key that is a number", (register(key=3),), BAD_JSON),
    Case("a negative byte size", (register(byte_size=-1),), BAD_JSON),
    Case("a byte size that is a fraction", (register(byte_size=64.0),), BAD_JSON),
    Case("a byte size that is text", (register(byte_size="64"),), BAD_JSON),
    Case("an offset that is text", (register(offset="0"),), BAD_JSON),
    Case("a negative offset", (register(offset=-1),), BAD_JSON),
    Case("another member", (register(more=1), ALL), 200),
    Case(
        "an escaped name",
        (register("x%20y"), get(f"{SYSTEM}/region/x%20y/status")),
        Differs(
            (200, [{"name": "x%20y", "key": KEY, "offset": 0, "byte_size": 64}]),
            (200, [{"name": "x y", "key": KEY, "offset": 0, "byte_size": 64}]),
            "escapes",
        ),
    ),
]


def verb_case(verb: str, path: str, status: int) -> Case[Steps]:
    return Case(f"{verb} {path}", (Http(verb, path),), status)


STATUS: list[Case[Steps]] = [
    Case("one region", (ONE,), 200),
    Case("all regions", (register("0"), register("b", key=f"//{KEY}", offset=PAGE), ALL), 200),
    Case("an unknown region", (get(f"{SYSTEM}/region/x/status"),), 404),
    Case("a region of the other kind", (get(f"{CUDA}/region/a/status"),), 404),
    Case("an unknown CUDA region", (get(f"{CUDA}/region/x/status"),), 404),
    Case("CUDA regions", (get(f"{CUDA}/status"),), 200),
    Case("no regions", (post(f"{SYSTEM}/unregister"), ALL), 200),
    *(
        verb_case(verb, path, status)
        for verb, path, status in (
            ("POST", f"{SYSTEM}/status", 405),
            ("GET", f"{SYSTEM}/unregister", 405),
            ("GET", f"{SYSTEM}/region/a/register", 405),
            ("POST", f"{CUDA}/status", 405),
            ("GET", SYSTEM, 404),
            ("GET", f"{SYSTEM}/region/a", 404),
        )
    ),
]

UNREGISTER: list[Case[Steps]] = [
    Case("unregister", (post(f"{SYSTEM}/region/a/unregister"), ALL), 200),
    Case("unregister an unknown one", (post(f"{SYSTEM}/region/x/unregister"), ALL), 200),
    Case("unregister as CUDA", (post(f"{CUDA}/region/a/unregister"), ALL), 200),
    Case("unregister all CUDA regions", (post(f"{CUDA}/unregister"), ALL), 200),
    Case("unregister all", (register(), post(f"{SYSTEM}/unregister"), ALL), 200),
    Case("unregister with a body", (post(f"{SYSTEM}/region/a/unregister", b"{"), ALL), 200),
    Case("register again", (post(f"{SYSTEM}/region/a/unregister"), register("a"), ONE), 200),
]

CUDA_REGISTER: list[Case[Steps]] = [
    Case("a CUDA region", (register_cuda(),), 400),
    Case("a CUDA region without a handle", (register_cuda(raw_handle=None),), 400),
    Case("a short handle", (register_cuda(raw_handle={"b64": "AAAA"}),), 400),
    Case("a handle that is no base64", (register_cuda(raw_handle={"b64": "%%%"}),), 400),
    Case("a handle that is text", (register_cuda(raw_handle=HANDLE),), BAD_JSON),
    Case("a handle without base64", (register_cuda(raw_handle={}),), BAD_JSON),
    Case("no device", (register_cuda(device_id=None),), BAD_JSON),
    Case("no CUDA byte size", (register_cuda(byte_size=None),), BAD_JSON),
    Case("a CUDA region of a name in use", (register_cuda("a"),), 400),
    Case("a CUDA region without a name", (post(f"{CUDA}/register", b"{}"),), 400),
]


def place(region: Any = "a", offset: Any = 0, byte_size: Any = 8) -> dict[str, Any]:
    """Parameters of a tensor; those that are None are left out."""
    given = {
        "shared_memory_region": region,
        "shared_memory_offset": offset,
        "shared_memory_byte_size": byte_size,
    }
    return {key: value for key, value in given.items() if value is not None}


def source(model: str = "identity", *, outputs: Any = None, **members: Any) -> tuple[Http]:
    """A request whose input is in the region."""
    tensor = {"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "parameters": place()}
    body: dict[str, Any] = {"inputs": [{**tensor, **members}]}
    if outputs is not None:
        body["outputs"] = outputs
    return (infer(body, model),)


def target(**parameters: Any) -> Steps:
    """A request whose output goes into the region."""
    return source(outputs=[{"name": "OUTPUT0", "parameters": parameters}])


INPUTS: list[Case[Steps]] = [
    Case("an input", source(), 200),
    Case("an input within a page", source(parameters=place(offset=3)), 200),
    Case("an input without an offset", source(parameters=place(offset=None)), 200),
    Case("an input too short", source(parameters=place(byte_size=4)), 400),
    Case("an input too long", source(parameters=place(byte_size=12)), 400),
    Case("an input of no bytes", source(parameters=place(byte_size=0)), 400),
    Case("an input without a byte size", source(parameters=place(byte_size=None)), 400),
    Case("an input of an unknown region", source(parameters=place("x")), 404),
    Case("an input of a region without a name", source(parameters=place("")), 404),
    Case(
        "an input of an unknown region without a byte size",
        source(parameters=place("x", byte_size=None)),
        Differs(404, 400, PARAMETERS),
    ),
    Case("an input at the end", source(parameters=place(offset=SIZE)), 400),
    Case("an input behind the end", source(parameters=place(offset=SIZE + 99)), 400),
    Case("an input across the end", source(parameters=place(offset=SIZE - 4)), 400),
    Case("an input that wraps", source(parameters=place(offset=8, byte_size=2**64 - 1)), 400),
    Case("a region as a number", source(parameters=place(3)), BAD_JSON),
    Case("an offset as text", source(parameters=place(offset="0")), BAD_JSON),
    Case("a byte size as text", source(parameters=place(byte_size="8")), BAD_JSON),
    Case("a negative size", source(parameters=place(byte_size=-1)), BAD_JSON),
    Case("a region and data", source(data=[1, 2]), 400),
    Case("a region and a blob", source(parameters={**place(), "binary_data_size": 8}), 400),
    Case("an offset alone", source(parameters=place(None, byte_size=None)), 400),
    Case(
        "an offset beside data",
        source(parameters=place(None, byte_size=None), data=[1, 2]),
        Differs(200, 400, PARAMETERS),
    ),
    Case(
        "no elements",
        source(shape=[1, 0], parameters=place(byte_size=0)),
        Differs(400, 200, "empty-slices"),
    ),
    Case("no elements of 8 bytes", source(shape=[1, 0]), 400),
    Case("of another model", source("nobody"), 404),
    Case("of an unknown model and region", source("nobody", parameters=place("x")), 404),
    Case("of an unknown name", source(name="OTHER"), 400),
    Case("of another datatype", source(datatype="INT32"), 400),
    Case("of another shape", source(shape=[2, 1]), 200),
    Case(
        "text",
        source("text", shape=[1, 1], datatype="BYTES", parameters=place("a", TEXT, 7)),
        200,
    ),
    Case(
        "text cut off",
        source("text", shape=[1, 1], datatype="BYTES", parameters=place("a", TEXT, 6)),
        400,
    ),
    Case("after it is unregistered", (post(f"{SYSTEM}/unregister"), *source()), 404),
    Case(
        "both inputs in one region",
        (
            infer(
                {
                    "inputs": [
                        {
                            "name": f"INPUT{i}",
                            "shape": [1, 4],
                            "datatype": "INT32",
                            "parameters": place("a", INTS, 16),
                        }
                        for i in (0, 1)
                    ]
                },
                "add_sub",
            ),
        ),
        200,
    ),
    Case(
        "one input in a region, one in the message",
        (
            infer(
                {
                    "inputs": [
                        {
                            "name": "INPUT0",
                            "shape": [1, 4],
                            "datatype": "INT32",
                            "parameters": place("a", INTS, 16),
                        },
                        {
                            "name": "INPUT1",
                            "shape": [1, 4],
                            "datatype": "INT32",
                            "data": [1] * 4,
                        },
                    ]
                },
                "add_sub",
            ),
        ),
        200,
    ),
]

OUTPUTS: list[Case[Steps]] = [
    Case("an output", target(**place(offset=TARGET)), 200),
    Case("an output with room", target(**place(offset=TARGET, byte_size=32)), 200),
    Case("an output where the input is", target(**place(offset=FLOATS)), 200),
    Case("an output too small for it", target(**place(offset=TARGET, byte_size=4)), 500),
    Case(
        "an output without a byte size",
        target(**place(offset=TARGET, byte_size=None)),
        Differs(500, 400, PARAMETERS),
    ),
    Case("an output across the end", target(**place(offset=SIZE - 4)), 400),
    Case("an output of an unknown region", target(**place("x")), 404),
    Case("an output and classes", target(**place(offset=TARGET), classification=1), 400),
    Case("an output and no classes", target(**place(offset=TARGET), classification=0), 400),
    Case("an output in binary", target(**place(offset=TARGET), binary_data=True), 400),
    Case("an output not in binary", target(**place(offset=TARGET), binary_data=False), 200),
    Case("an output region as a number", target(**place(3)), BAD_JSON),
    Case(
        "an output offset alone",
        target(**place(None, byte_size=None)),
        Differs(200, 400, PARAMETERS),
    ),
    Case(
        "an output without elements",
        source(
            shape=[1, 0],
            parameters=place(byte_size=0),
            outputs=[{"name": "OUTPUT0", "parameters": place(byte_size=0)}],
        ),
        Differs(400, 200, "empty-slices"),
    ),
    Case(
        "an unknown output in a region",
        source(outputs=[{"name": "OTHER", "parameters": place()}]),
        400,
    ),
    Case(
        "data sent, output in a region",
        (
            infer(
                {
                    "inputs": [X],
                    "outputs": [{"name": "OUTPUT0", "parameters": place(offset=TARGET)}],
                }
            ),
        ),
        200,
    ),
    Case(
        "one output in a region, one in binary",
        (
            infer(
                {
                    "inputs": [
                        {"name": f"INPUT{i}", "shape": [1, 4], "datatype": "INT32", "data": [i] * 4}
                        for i in (0, 1)
                    ],
                    "outputs": [
                        {"name": "OUTPUT1", "parameters": place("a", TARGET, 16)},
                        {"name": "OUTPUT0", "parameters": {"binary_data": True}},
                    ],
                },
                "add_sub",
            ),
        ),
        200,
    ),
    Case(
        "one of two outputs too small",
        (
            infer(
                {
                    "inputs": [
                        {"name": f"INPUT{i}", "shape": [1, 4], "datatype": "INT32", "data": [i] * 4}
                        for i in (0, 1)
                    ],
                    "outputs": [
                        {"name": f"OUTPUT{i}", "parameters": place("a", TARGET + 16 * i, 16 - i)}
                        for i in (0, 1)
                    ],
                },
                "add_sub",
            ),
        ),
        Differs(500, 500, "response-places"),
    ),
    Case(
        "text into a region",
        source(
            "text",
            shape=[1, 1],
            datatype="BYTES",
            parameters=place("a", TEXT, 7),
            outputs=[{"name": "OUTPUT0", "parameters": place("a", TARGET, 64)}],
        ),
        200,
    ),
]

CASES: list[Case[Steps]] = [
    *REGISTER,
    *STATUS,
    *UNREGISTER,
    *CUDA_REGISTER,
    *INPUTS,
    *OUTPUTS,
]
