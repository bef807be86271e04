"""Requests over HTTP that are wrong, to a whole server: the status, the reason, and no harm done.

Every fault is followed by a good request on the same connection.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from trio.testing import MockClock

from tests.support.memory_server import memory_server

from .bad_inference import infer, one, raw, typed, write_models

IN = one("IN", "FP32", [2], [1.5, -2])
GOOD = infer("one", IN)
A, B = one("A", "INT32", [1, 2], [1, 2]), one("B", "INT32", [1, 2], [3, 4])


def with_shape(shape: Any) -> bytes:
    return infer("one", {**IN, "shape": shape})


def two(shape: list[int], other: list[int] | None = None) -> bytes:
    """`two` with zeros in these shapes."""
    shapes = (shape, shape if other is None else other)
    return infer(
        "two",
        *(
            one(name, "INT32", dims, [0] * int(np.prod(dims)))
            for name, dims in zip("AB", shapes, strict=True)
        ),
    )


def sized(size: Any, blob: bytes = bytes(8), **more: Any) -> bytes:
    return infer(
        "one", one("IN", "FP32", [2], parameters={"binary_data_size": size}, **more), blob=blob
    )


def given(**parameters: Any) -> bytes:
    return infer("one", IN, parameters=parameters)


FAULTS = {
    # Shapes.
    "a negative dim": (with_shape([2, -5]), ["'shape'", "-5"]),
    "-1 as a dim": (with_shape([-1]), ["'shape'", "-1"]),
    "a fraction as a dim": (with_shape([1.5]), ["'shape'", "1.5"]),
    "text as a dim": (with_shape(["2"]), ["'shape'", "'2'"]),
    "null as a dim": (with_shape([None]), ["'shape'", "null"]),
    "null as the shape": (with_shape(None), ["'shape'", "null"]),
    "a number as the shape": (with_shape(2), ["'shape'", "array", "2"]),
    "10,000 dims": (with_shape([1] * 10_000), ["'shape'", "10000"]),
    # Data.
    "too many elements": (infer("one", one("IN", "FP32", [2], [1, 2, 3])), ["2 elements", "got 3"]),
    "too few elements": (infer("one", one("IN", "FP32", [2], [1])), ["2 elements", "got 1"]),
    "ragged data": (infer("one", one("IN", "FP32", [4], [[1, 2], [3]])), ["4 elements", "got 3"]),
    # Elements.
    "300 as INT8": (infer("types", typed("INT8", [300])), ["INT8", "element 0"]),
    "-1 as UINT8": (infer("types", typed("UINT8", [0, -1])), ["UINT8", "element 1"]),
    "2^32 as UINT32": (infer("types", typed("UINT32", [2**32])), ["UINT32", "element 0"]),
    "2^63 as INT64": (infer("types", typed("INT64", [2**63])), ["INT64", "element 0"]),
    "1e3 as INT32": (
        raw(
            "types", b'{"inputs":[{"name":"IN_INT32","datatype":"INT32","shape":[1],"data":[1e3]}]}'
        ),
        ["INT32", "element 0"],
    ),
    "1.0 as INT32": (infer("types", typed("INT32", [1.0])), ["INT32", "element 0"]),
    "0 as BOOL": (infer("types", typed("BOOL", [0])), ["BOOL", "element 0"]),
    "1 as BOOL": (infer("types", typed("BOOL", [True, 1])), ["BOOL", "element 1"]),
    "2 as BOOL": (infer("types", typed("BOOL", [2])), ["BOOL", "element 0"]),
    "text as BOOL": (infer("types", typed("BOOL", ["true"])), ["BOOL", "element 0"]),
    "FP16 as JSON": (infer("types", typed("FP16", [1.0])), ["FP16", "binary"]),
    "BF16 as JSON": (infer("types", typed("BF16", [1.0])), ["BF16", "binary"]),
    "FP16 asked for as JSON": (
        infer(
            "types",
            one("IN_FP16", "FP16", [1], parameters={"binary_data_size": 2}),
            blob=bytes(2),
        ),
        ["'OUT_FP16'", "binary"],
    ),
    "a lone surrogate": (
        raw(
            "types",
            b'{"inputs":[{"name":"IN_BYTES","datatype":"BYTES","shape":[1],"data":["\\ud800"]}]}',
        ),
        ["surrogate"],
    ),
    "BYTES that are no UTF-8 asked for as JSON": (
        infer(
            "types",
            one("IN_BYTES", "BYTES", [1], parameters={"binary_data_size": 5}),
            blob=b"\1\0\0\0\xff",
        ),
        ["'OUT_BYTES'", "UTF-8", "binary"],
    ),
    # Binary data.
    "a size below the shape": (sized(4, bytes(4)), ["'IN'", "4", "8"]),
    "a size above the shape": (sized(12, bytes(12)), ["'IN'", "12", "8"]),
    "sizes below the body": (sized(8, bytes(12)), ["4 extra"]),
    "sizes above the body": (sized(8, bytes(4)), ["4 bytes of it are missing"]),
    "a negative size": (sized(-1), ["'binary_data_size'", "-1"]),
    "text as a size": (sized("8"), ["'binary_data_size'", "'8'"]),
    "size 0 for elements": (sized(0, b""), ["'IN'", "8"]),
    "a size and data": (sized(8, data=[1, 2]), ["'data'", "'binary_data_size'"]),
    "neither size nor data": (infer("one", one("IN", "FP32", [2])), ["'IN'", "got none"]),
    # Bodies without JSON.
    "raw for two inputs": (raw("two", bytes(8), length=0), ["one input", "2"]),
    "raw with two variable dims": (raw("free", bytes(8), length=0), ["'IN'", "variable"]),
    "raw BYTES of two": (raw("text", b"abc", length=0), ["'IN'", "[1]"]),
    "raw with half an element": (raw("one", bytes(7), length=0), ["'IN'", "7"]),
    "raw and empty": (raw("one", b"", length=0), ["'one'", "no bytes"]),
    # Names.
    "an input twice": (infer("one", IN, IN), ["'IN'", "more than once"]),
    "an output twice": (infer("one", IN, outputs=[{"name": "OUT"}] * 2), ["'OUT'", "more than"]),
    "an unknown input": (infer("one", {**IN, "name": "NO"}), ["'NO'"]),
    "an unknown output": (infer("one", IN, outputs=[{"name": "NO"}]), ["'NO'"]),
    "an output without a name": (infer("one", IN, outputs=[{}]), ["'name'"]),
    # Batches.
    "no dims": (two([]), ["'A'", "batch dimension"]),
    "batch 0": (two([0, 2]), ["batch", "got 0"]),
    "batch 9": (two([9, 2]), ["batch", "got 9"]),
    "batches that differ": (two([1, 2], [2, 2]), ["'B'", "batch size 2", "1"]),
    "no batch dim": (two([2]), ["'A'", "batch dimension"]),
    "a batch dim too many": (with_shape([1, 2]), ["'IN'", "[1,2]", "[-1]"]),
    # Parameters.
    "an object as a parameter": (given(a={}), ["'a'", "an object"]),
    "an array as a parameter": (given(a=[1]), ["'a'", "an array"]),
    "null as a parameter": (given(a=None), ["'a'", "null"]),
    "a reserved parameter": (given(triton_x=1), ["'triton_x'", "reserved"]),
    "2^63 as a parameter": (given(a=2**63), ["'a'", "int64"]),
    "text as sequence_start": (given(sequence_start="x"), ["'sequence_start'", "boolean"]),
    "a number as sequence_end": (given(sequence_end=1), ["'sequence_end'", "boolean"]),
    "a fraction as sequence_id": (given(sequence_id=1.5), ["'sequence_id'", "1.5"]),
    "a negative sequence_id": (given(sequence_id=-1), ["'sequence_id'", "-1"]),
    "a negative priority": (given(priority=-1), ["'priority'", "-1"]),
    "a fraction as timeout": (given(timeout=0.5), ["'timeout'", "0.5"]),
    # Bodies written by hand.
    "base64 as UINT8": (infer("types", one("IN_UINT8", "UINT8", [3], "AAEC")), ["array", "binary"]),
    "a data type in lower case": (infer("one", {**IN, "datatype": "fp32"}), ["write 'FP32'"]),
    "a configuration's data type": (
        infer("one", {**IN, "datatype": "TYPE_FP32"}),
        ["write 'FP32'"],
    ),
    "no data type": (
        infer("one", {"name": "IN", "shape": [2], "data": [1, 2]}),
        ["'datatype'", "'IN'"],
    ),
}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_models(tmp_path / "models")


async def test_what_is_wrong_is_refused_with_its_reason_and_harms_nobody(
    autojump_clock: MockClock, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        for name, (request, texts) in FAULTS.items():
            client.send(request)
            refused = await client.response()
            assert refused.status == 400, (name, refused.body)
            text = refused.json["error"]
            assert [part for part in texts if part not in text] == [], (name, text)
            assert len(text) < 400, name
            client.send(GOOD)
            good = await client.response()
            assert (good.status, good.json["outputs"][0]["data"]) == (200, [1.5, -2.0]), name
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def bf16(values: list[float]) -> bytes:
    """Floats cut to the upper half of their bits."""
    return (np.array(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()


ANSWERS = {
    "odd nesting": (infer("one", one("IN", "FP32", [3], [[[1]], 2, [3]])), [1, 2, 3]),
    "the largest UINT64": (infer("types", typed("UINT64", [2**64 - 1])), [2**64 - 1]),
    "the ends of INT64": (
        infer("types", typed("INT64", [-(2**63), 2**63 - 1])),
        [-(2**63), 2**63 - 1],
    ),
    "-0 as INT32": (
        raw(
            "types", b'{"inputs":[{"name":"IN_INT32","datatype":"INT32","shape":[1],"data":[-0]}]}'
        ),
        [0],
    ),
    "booleans": (infer("types", typed("BOOL", [True, False])), [True, False]),
    "odd strings": (
        infer("types", typed("BYTES", ["a\0b", "", "\U0001f600", "\\u0000"])),
        ["a\0b", "", "\U0001f600", "\\u0000"],
    ),
    "no elements": (infer("one", one("IN", "FP32", [0], [])), []),
    "outputs that name none": (infer("one", IN, outputs=[]), [1.5, -2.0]),
    "scalars as parameters": (given(a=1, b=1.5, c=True, d="x", e=2**63 - 1), [1.5, -2.0]),
    "the largest priority": (given(priority=2**32 - 1), [1.5, -2.0]),
    "a sequence id of text": (given(sequence_id="a" * 128), [1.5, -2.0]),
}


async def test_what_only_looks_wrong_is_answered(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models) as server:
        client = server.http()
        for name, (request, data) in ANSWERS.items():
            client.send(request)
            response = await client.response()
            assert response.status == 200, (name, response.body)
            assert orjson.loads(response.body)["outputs"][0]["data"] == data, name


async def test_half_precision_goes_both_ways_in_binary(
    autojump_clock: MockClock, models: Path
) -> None:
    blobs = {"BF16": bf16([1.0, -2.5]), "FP16": np.array([1.0, -2.5], "<f2").tobytes()}
    async with memory_server(models) as server:
        client = server.http()
        for kind, blob in blobs.items():
            tensor = one(f"IN_{kind}", kind, [2], parameters={"binary_data_size": 4})
            client.send(infer("types", tensor, blob=blob, parameters={"binary_data_output": True}))
            response = await client.response()
            assert response.status == 200, response.body
            assert response.body.endswith(blob)


async def test_a_body_without_json_is_answered_in_binary(
    autojump_clock: MockClock, models: Path
) -> None:
    values = np.array([1, 2, 3], "<f4").tobytes()
    async with memory_server(models) as server:
        client = server.http()
        for model, body, answer in (("one", values, values), ("word", b"abc", b"\3\0\0\0abc")):
            client.send(raw(model, body, length=0))
            response = await client.response()
            assert response.status == 200, response.body
            length = int(response.headers["inference-header-content-length"])
            assert response.body[length:] == answer
