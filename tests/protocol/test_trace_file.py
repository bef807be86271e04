"""Trace files, object by object."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support.traces import SPEC, Traces, request, setting, tensor
from tritrio.protocol.requests import InferResponse
from tritrio.protocol.tensors import Array
from tritrio.protocol.trace_file import trace_objects

X = '{"name":"X","data":"1,2","shape":"1,2","dtype":"INT32"}'


def test_a_trace_is_the_objects_that_tools_read() -> None:
    traces = Traces(setting("level=TENSORS"))
    trace = traces.new()
    trace.stamp("HTTP_RECV_START", 5)
    trace.begin(request(), SPEC, 10)
    child = traces.new(trace)
    anonymous = request()
    anonymous.id = ""
    child.begin(anonymous, SPEC, 11)
    child.respond(InferResponse("model", "3"), 12)
    assert trace_objects([trace, child]).decode() == ",".join(
        [
            '{"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":5}]}',
            '{"id":1,"model_name":"model","model_version":3,"request_id":"a"}',
            '{"id":1,"timestamps":[{"name":"REQUEST_START","ns":10}]}',
            '{"id":1,"timestamps":[{"name":"QUEUE_START","ns":10}]}',
            f'{{"id":1,"activity":"TENSOR_QUEUE_INPUT","tensor":{X}}}',
            '{"id":2,"model_name":"model","model_version":3,"parent_id":1}',
            '{"id":2,"timestamps":[{"name":"REQUEST_START","ns":11}]}',
            '{"id":2,"timestamps":[{"name":"QUEUE_START","ns":11}]}',
            f'{{"id":2,"activity":"TENSOR_QUEUE_INPUT","tensor":{X}}}',
            '{"id":2,"timestamps":[{"name":"REQUEST_END","ns":12}]}',
        ]
    )


@pytest.mark.parametrize(
    ("datatype", "array", "data"),
    [
        ("BOOL", np.array([True, False]), "1,0"),
        ("INT8", np.array([65, -3], np.int8), "65,-3"),
        ("UINT64", np.array([2**64 - 1], np.uint64), "18446744073709551615"),
        ("FP16", np.array([0.5], np.float16), "0.5"),
        ("FP32", np.array([0.1, 1234567, 1e-10, 2], np.float32), "0.1,1.23457e+06,1e-10,2"),
        ("FP64", np.array([0.123456789, np.inf]), "0.123457,inf"),
        ("BYTES", np.array([b"ab", 'c"é'.encode(), b"\xff"], object), r'"ab","c\"é","\\xff"'),
        ("FP32", np.zeros((0, 2), np.float32), ""),
    ],
)
def test_the_elements_of_a_tensor_are_text(datatype: str, array: Array, data: str) -> None:
    trace = Traces(setting("level=TENSORS")).new()
    trace.begin(request(X=tensor("X", array, datatype)), SPEC, 10)
    objects: list[dict[str, Any]] = json.loads(b"[%s]" % trace_objects([trace]))
    assert objects[-1]["tensor"] == {
        "name": "X",
        "data": data,
        "shape": ",".join(map(str, array.shape)),
        "dtype": datatype,
    }
