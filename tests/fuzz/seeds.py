"""Good inputs to begin with: what is rubbish is mostly nearly right."""

from __future__ import annotations

import json
from typing import Any, Final

from tritonclient.grpc import service_pb2

from tests.protocol.http2_support import raw_frame, request_frame

_INPUT: Final[dict[str, Any]] = {
    "name": "X",
    "datatype": "INT32",
    "shape": [2],
    "parameters": {"binary_data_size": 8},
}
_REQUEST: Final = {
    "id": "1",
    "parameters": {"sequence_id": 1, "a": 1.5, "b": True},
    "inputs": [{"name": "X", "datatype": "INT32", "shape": [2], "data": [[1], [-2]]}],
    "outputs": [{"name": "Y", "parameters": {"binary_data": True, "classification": 2}}],
}


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _binary(value: Any, data: bytes) -> bytes:
    text = _json(value)
    return len(text).to_bytes(2, "little") + text + data


def _message(**more: Any) -> bytes:
    message: Any = service_pb2.ModelInferRequest(model_name="m", id="7", **more)
    tensor = message.inputs.add(name="X", datatype="INT32", shape=[2])
    tensor.contents.int_contents.extend([1, -2])
    message.parameters["a"].string_param = "b"
    message.outputs.add(name="Y").parameters["classification"].int64_param = 3
    return bytes(message.SerializeToString())


_FUNCTION: Final = {"name": "f", "arguments": '{"a": [1]}'}
_ANSWER: Final = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": _FUNCTION}],
}
_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_UNARY: Final = b"\x00" + len(_message()).to_bytes(4, "big") + _message()
_POST: Final = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"

SEEDS: Final[dict[str, list[bytes]]] = {
    "http1": [
        b"\x05GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n" * 2,
        b"\x02" + _POST + b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\nabc",
        b"\x09" + _POST + b"Transfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nA: b\r\n\r\n",
        b"\x01GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    ],
    "http2": [
        b"\xff" + request_frame(1) + raw_frame(0, 1, 1, b"data") + raw_frame(6, 0, 0, b"12345678"),
        b"\x05" + request_frame(1, end_stream=True) + raw_frame(3, 0, 1, b"\x00\x00\x00\x08"),
        b"\x81" + raw_frame(4, 0, 0, b"\x00\x04\x00\x01\x00\x00") + raw_frame(8, 0, 0, b"\0\0\1\0"),
        b"\x41" + raw_frame(1, 0, 1, b"\x82") + raw_frame(9, 4, 1, b"\x84\x86\x41\x01a"),
    ],
    "grpc": [
        b"\xfd" + request_frame(1) + raw_frame(0, 1, 1, _UNARY),
        b"\xff" + _UNARY * 2,
        b"\x07" + _UNARY,
    ],
    "json_text": [_json(_REQUEST), b'[1e3, -0.5, "\\u00e9\\ud83d\\ude00", null, {"a": {}}]'],
    "json_request": [_json(_REQUEST), _json({"inputs": [_INPUT], "outputs": []})],
    "binary_request": [
        _binary({"inputs": [_INPUT]}, bytes(8)),
        _binary({"inputs": [_INPUT, {**_INPUT, "name": "Z"}]}, bytes(16)),
        b"\x00\x00" + bytes(8),
    ],
    "openai": [
        b"\x00" + _json({"model": "m", "messages": [{"role": "user", "content": "a"}], "n": 2}),
        b"\x00" + _json({"model": "m", "messages": [_ANSWER], "tools": [_TOOL], "top_p": 0.5}),
        b"\x01" + _json({"model": "m", "prompt": [[1, 2]], "stop": ["a"], "logit_bias": {"7": 1}}),
        b"\x02" + _json({"model": "m", "input": ["a", "b"], "encoding_format": "base64"}),
    ],
    "wire": [_message(), _message(raw_input_contents=[bytes(8)]), _message(model_version="3")],
    "text": [
        b'name: "m" max_batch_size: 8 input [ { name: "X" data_type: TYPE_INT32 dims: [ -1, 2 ] }]',
        b"instance_group { kind: KIND_CPU gpus: [ 0, 1 ] } # end",
        b'parameters { key: "a" value { string_value: \'b\\n\\x41\' "c" } }',
        b"dynamic_batching { preferred_batch_size: [4] } ensemble_scheduling: < step { } >",
        b"model_metrics { metric_control { histogram_options { buckets: [ .5, 1e3, inf ] } } }",
    ],
}
"""Target name -> good inputs."""
