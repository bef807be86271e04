"""Requests and responses on their way to the process of a model and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tritrio.backends.base import ModelSource
from tritrio.backends.process_link import LinkError
from tritrio.backends.process_wire import (
    ResponseReader,
    request_from,
    request_header,
    response_header,
    source_from,
    source_header,
)
from tritrio.protocol.errors import ErrorCode, FailureReason, RequestError
from tritrio.protocol.requests import InferRequest, InferResponse, RequestedOutput
from tritrio.protocol.tensors import Buffer, Tensor

PARAMETERS = st.dictionaries(
    st.text(), st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
)
REQUEST = InferRequest("m", "3")
REQUEST.id = "id"


def tensors() -> list[Tensor]:
    words = np.array([b"a", b"", b"long" * 9], np.object_)
    return [
        Tensor("F", "FP32", (2, 2), array=np.arange(4, dtype=np.float32).reshape(2, 2)),
        Tensor("W", "BYTES", (3,), array=words),
        Tensor("NONE", "INT64", (0, 5), raw=b""),
    ]


def shown(found: list[Tensor]) -> list[tuple[Any, ...]]:
    return [(t.name, t.datatype, t.shape, t.array.tolist()) for t in found]


@given(PARAMETERS, st.integers() | st.text(), st.booleans())
def test_a_request_arrives_with_all_that_a_model_can_see(
    parameters: dict[str, Any], sequence_id: int | str, flag: bool
) -> None:
    request = InferRequest("m", "2")
    request.id = "an id"
    request.parameters = parameters
    request.inputs = {tensor.name: tensor for tensor in tensors()}
    request.outputs = (RequestedOutput("A"), RequestedOutput("B"))
    request.sequence_id, request.sequence_start, request.sequence_end = sequence_id, flag, not flag
    request.priority, request.timeout_us, request.batch_size = 3, 5_000_000, 2
    request.cancelled = flag
    buffers: list[Buffer] = [b"of another request"]
    header = request_header(request, buffers)
    found = request_from(header, [memoryview(buffer) for buffer in buffers], 1)
    assert shown(list(found.inputs.values())) == shown(tensors())
    assert [output.name for output in found.outputs] == ["A", "B"]
    same = [name for name in InferRequest.__slots__ if name not in {"inputs", "outputs"}]
    assert [getattr(found, name) for name in same] == [getattr(request, name) for name in same]


def there_and_back(response: InferResponse) -> InferResponse:
    buffers: list[Buffer] = []
    header = json.loads(json.dumps(response_header(response, buffers)))
    return ResponseReader([memoryview(buffer) for buffer in buffers]).response(header, REQUEST)


@given(PARAMETERS, st.booleans(), st.booleans())
def test_a_response_comes_back_whole(parameters: dict[str, Any], final: bool, empty: bool) -> None:
    response = InferResponse("m", "3", "id", tensors(), final=final)
    response.parameters = parameters
    response.empty = empty
    response.states = {"S": Tensor("S", "INT32", (1,), raw=b"\1\0\0\0")}
    found = there_and_back(response)
    assert (found.model_name, found.model_version, found.id) == ("m", "3", "id")
    assert (found.final, found.empty, found.parameters) == (final, empty, parameters)
    assert shown(found.outputs) == shown(tensors())
    assert found.states is not None
    assert shown(list(found.states.values())) == [("S", "INT32", (1,), [1])]


def test_an_error_comes_back_with_code_and_reason() -> None:
    error = RequestError(ErrorCode.NOT_FOUND, "no such thing", reason=FailureReason.BACKEND)
    found = there_and_back(InferResponse("m", "3", error=error)).error
    assert found is not None
    assert (found.code, found.message, found.reason) == (error.code, error.message, error.reason)


@pytest.mark.parametrize(
    "header",
    [
        None,
        {},
        {"version": "1", "final": 1, "outputs": []},
        {"version": 1, "final": True, "outputs": []},
        {"version": "1", "final": True},
        {"version": "1", "final": True, "error": ["NO_SUCH", "text", "BACKEND"]},
        {"version": "1", "final": True, "error": ["INTERNAL", 1, "BACKEND"]},
        {"version": "1", "final": True, "outputs": [], "parameters": []},
        {"version": "1", "final": True, "outputs": [], "parameters": {"a": None}},
        {"version": "1", "final": True, "outputs": [], "states": None},
    ],
)
def test_what_is_no_response_is_refused(header: Any) -> None:
    with pytest.raises(LinkError):
        ResponseReader([]).response(header, REQUEST)


@pytest.mark.parametrize(
    "tensor",
    [
        ["A", "FP32", [2]],
        ["A", "FP32", [-1, -1]],
        ["A", "FP32", [True]],
        ["A", "FP32", ["1"]],
        ["A", "FP33", [1]],
        ["A", "FP32"],
        [1, "FP32", [1]],
        ["A", "FP32", [1] * 65],
        ["A", "BYTES", [1]],
        ["A", "FP64", [2**62, 8]],
    ],
)
def test_a_tensor_whose_bytes_do_not_fit_is_refused(tensor: Any) -> None:
    header = {"version": "1", "final": True, "outputs": [tensor]}
    with pytest.raises(LinkError):
        ResponseReader([memoryview(b"1234")]).response(header, REQUEST)


def test_a_tensor_without_a_buffer_is_refused() -> None:
    header = {"version": "1", "final": True, "outputs": [["A", "FP32", [1]]]}
    with pytest.raises(LinkError, match="a buffer for each tensor"):
        ResponseReader([]).response(header, REQUEST)


def test_the_place_of_a_model_arrives_absolute(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    source = ModelSource("m", 2, Path("r/m"), Path("r/m/2"), {"key": "value"})
    found = source_from(source_header(source))
    assert found == ModelSource("m", 2, tmp_path / "r/m", tmp_path / "r/m/2", {"key": "value"})
