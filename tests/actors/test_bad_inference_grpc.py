"""Requests over gRPC that are wrong, to a whole server: the status, the reason, and no harm done.

Every fault is sent alone and on a stream, each followed by a good request on the same connection.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trio.testing import MockClock
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import INVALID_ARGUMENT, OK
from tests.support.memory_server import memory_server

from .bad_inference import message, write_models

DATA = np.array([1.5, -2], "<f4").tobytes()


def fp32(shape: list[int], values: list[float] | None = None) -> Any:
    """A request of the model `one`; without values its data are raw."""
    contents = None if values is None else {"fp32_contents": values}
    return message("one", ("IN", "FP32", shape, contents), raws=[] if values else [DATA])


GOOD = fp32([2])


def typed(datatype: str, count: int, **contents: Any) -> Any:
    """A request of the model `types` with one input in typed contents."""
    return message("types", (f"IN_{datatype}", datatype, [count], contents))


def raw(datatype: str, count: int, data: bytes) -> Any:
    return message("types", (f"IN_{datatype}", datatype, [count], None), raws=[data])


def two(shape: list[int], other: list[int]) -> Any:
    """A request of the model `two` with zeros in these shapes."""
    inputs = [(name, "INT32", dims, None) for name, dims in (("A", shape), ("B", other))]
    return message("two", *inputs, raws=[bytes(4 * int(np.prod(dims))) for dims in (shape, other)])


def given(**parameters: pb.InferParameter) -> Any:
    return message("one", ("IN", "FP32", [2], None), raws=[DATA], **parameters)


def strings(*elements: bytes) -> bytes:
    return b"".join(len(element).to_bytes(4, "little") + element for element in elements)


Value = pb.InferParameter

FAULTS = {
    "a negative dim": (fp32([2, -5]), ["'IN'", "[2,-5]"]),
    "-1 as a dim": (fp32([-1]), ["'IN'", "[-1]"]),
    "10,000 dims": (fp32([1] * 10_000), ["dimensions"]),
    "a dim beyond all memory": (fp32([2**40, 2**40]), ["'IN'"]),
    "too many elements": (fp32([2], [1, 2, 3]), ["8 bytes", "got 12"]),
    "too few elements": (fp32([2], [1]), ["8 bytes", "got 4"]),
    "raw data too long": (message("one", ("IN", "FP32", [2], None), raws=[DATA * 2]), ["16", "8"]),
    "raw data too short": (message("one", ("IN", "FP32", [2], None), raws=[b"abc"]), ["3", "8"]),
    "300 as INT8": (typed("INT8", 1, int_contents=[300]), ["INT8", "300"]),
    "256 as UINT8": (typed("UINT8", 1, uint_contents=[256]), ["UINT8", "256"]),
    "40000 as INT16": (typed("INT16", 1, int_contents=[40_000]), ["INT16", "40000"]),
    "INT32 in the field of FP32": (typed("INT32", 1, fp32_contents=[1]), ["INT32"]),
    "FP16 in typed contents": (typed("FP16", 1, fp32_contents=[1]), ["FP16"]),
    "BF16 in typed contents": (typed("BF16", 1, fp32_contents=[1]), ["BF16"]),
    "two fields of contents": (
        typed("INT32", 1, int_contents=[1], fp32_contents=[1]),
        ["'IN_INT32'"],
    ),
    "BYTES cut off in a length": (raw("BYTES", 1, b"\1\0"), ["'IN_BYTES'"]),
    "BYTES cut off in an element": (raw("BYTES", 1, b"\5\0\0\0abc"), ["'IN_BYTES'"]),
    "BYTES of one element too many": (raw("BYTES", 1, strings(b"a", b"b")), ["'IN_BYTES'"]),
    "contents and raw data": (
        message("one", ("IN", "FP32", [2], {"fp32_contents": [1, 2]}), raws=[DATA]),
        ["'IN'", "raw_input_contents"],
    ),
    "no data": (message("one", ("IN", "FP32", [2], None)), ["'IN'", "no data"]),
    "an input twice": (
        message("one", *[("IN", "FP32", [2], None)] * 2, raws=[DATA] * 2),
        ["'IN'", "more than once"],
    ),
    "an output twice": (
        message("one", ("IN", "FP32", [2], None), raws=[DATA], outputs=["OUT", "OUT"]),
        ["'OUT'", "more than once"],
    ),
    "an unknown input": (message("one", ("NO", "FP32", [2], None), raws=[DATA]), ["'NO'"]),
    "an unknown output": (
        message("one", ("IN", "FP32", [2], None), raws=[DATA], outputs=["NO"]),
        ["'NO'"],
    ),
    "an output without a name": (
        message("one", ("IN", "FP32", [2], None), raws=[DATA], outputs=[""]),
        ["''"],
    ),
    "no dims": (two([], []), ["'A'", "batch dimension"]),
    "batch 0": (two([0, 2], [0, 2]), ["batch", "got 0"]),
    "batch 9": (two([9, 2], [9, 2]), ["batch", "got 9"]),
    "batches that differ": (two([1, 2], [2, 2]), ["'B'", "batch size 2", "1"]),
    "no batch dim": (two([2], [2]), ["'A'", "batch dimension"]),
    "a batch dim too many": (fp32([1, 2]), ["'IN'", "[1,2]", "[-1]"]),
    "a parameter without a value": (given(a=Value()), ["'a'", "none"]),
    "a uint64 as a parameter": (given(a=Value(uint64_param=1)), ["'a'", "uint64_param"]),
    "a reserved parameter": (given(triton_x=Value(int64_param=1)), ["'triton_x'", "reserved"]),
    "text as sequence_start": (
        given(sequence_start=Value(string_param="x")),
        ["'sequence_start'", "boolean"],
    ),
    "a number as sequence_end": (
        given(sequence_end=Value(int64_param=1)),
        ["'sequence_end'", "boolean"],
    ),
    "a fraction as sequence_id": (
        given(sequence_id=Value(double_param=1.5)),
        ["'sequence_id'", "1.5"],
    ),
    "a negative priority": (given(priority=Value(int64_param=-1)), ["'priority'", "-1"]),
    "text as timeout": (given(timeout=Value(string_param="1")), ["'timeout'", "'1'"]),
    "a data type in lower case": (
        message("one", ("IN", "fp32", [2], None), raws=[DATA]),
        ["'fp32'"],
    ),
    "a configuration's data type": (
        message("one", ("IN", "TYPE_FP32", [2], None), raws=[DATA]),
        ["'TYPE_FP32'"],
    ),
    "no data type": (message("one", ("IN", "", [2], None), raws=[DATA]), ["'IN'"]),
}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_models(tmp_path / "models")


async def test_what_is_wrong_is_refused_with_its_reason_and_harms_nobody(
    autojump_clock: MockClock, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with memory_server(models) as server:
        client = server.grpc()
        for name, (request, texts) in FAULTS.items():
            call = client.call("ModelInfer", request)
            assert await call.done() == INVALID_ARGUMENT, (name, call.status, call.text)
            assert [part for part in texts if part not in call.text] == [], (name, call.text)
            assert len(call.text) < 400, name
            good = client.call("ModelInfer", GOOD)
            assert await good.done() == OK
            assert good.messages[0].raw_output_contents == [DATA]
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_what_is_wrong_on_a_stream_is_a_message_of_it_and_the_stream_goes_on(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        stream = server.grpc().stream()
        for number, (name, (request, texts)) in enumerate(FAULTS.items()):
            request.id = name
            stream.send(request)
            stream.send(GOOD)
            refused, good = (await stream.received(2 * number + 2))[-2:]
            assert [part for part in texts if part not in refused.error_message] == [], name
            assert refused.infer_response.id == name
            assert good.infer_response.raw_output_contents == [DATA], name
        stream.half_close()
        assert await stream.done() == OK


ANSWERS = {
    "the largest UINT64": (typed("UINT64", 1, uint64_contents=[2**64 - 1]), b"\xff" * 8),
    "the ends of INT8": (typed("INT8", 2, int_contents=[-128, 127]), b"\x80\x7f"),
    "booleans": (typed("BOOL", 2, bool_contents=[True, False]), b"\1\0"),
    "BF16": (raw("BF16", 2, b"\x80\x3f\x20\xc0"), b"\x80\x3f\x20\xc0"),
    "FP16": (raw("FP16", 1, b"\0\x3c"), b"\0\x3c"),
    "odd strings": (
        typed("BYTES", 4, bytes_contents=[b"a\0b", b"", b"\xff\xfe", "\U0001f600".encode()]),
        strings(b"a\0b", b"", b"\xff\xfe", "\U0001f600".encode()),
    ),
    "no elements": (raw("FP32", 0, b""), b""),
    "raw data too many": (
        message("one", ("IN", "FP32", [2], None), raws=[DATA, b"more"]),
        DATA,
    ),
    "a double as a parameter": (given(a=Value(double_param=1.5)), DATA),
}


async def test_what_only_looks_wrong_is_answered(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models) as server:
        client = server.grpc()
        for name, (request, data) in ANSWERS.items():
            call = client.call("ModelInfer", request)
            assert await call.done() == OK, (name, call.text)
            assert call.messages[0].raw_output_contents == [data], name
