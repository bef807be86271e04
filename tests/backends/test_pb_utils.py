"""`triton_python_backend_utils` as a model author sees it, without a server."""

from __future__ import annotations

import logging
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import triton_python_backend_utils
from tritrio.backends.pb_tensor import Tensor
from tritrio.protocol.tensors import Tensor as ServerTensor

pb_utils: Any = triton_python_backend_utils


def received(datatype: str, shape: tuple[int, ...], raw: bytes | bytearray) -> Tensor:
    return Tensor._received(ServerTensor("X", datatype, shape, raw=raw))


def test_every_public_name_is_there() -> None:
    names = {name for name in dir(pb_utils) if not name.startswith(("__", "@"))}  # "@": pytest's
    assert names == {
        "InferenceRequest",
        "InferenceResponse",
        "InferenceResponseSender",
        "InferenceTrace",
        "LogLevel",
        "Logger",
        "MemoryType",
        "Metric",
        "MetricFamily",
        "ModelConfig",
        "PreferredMemory",
        "ResponseIterator",
        "TRITONSERVER_MEMORY_CPU",
        "TRITONSERVER_MEMORY_GPU",
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
        "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
        "TRITONSERVER_REQUEST_RELEASE_ALL",
        "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
        "Tensor",
        "TritonError",
        "TritonModelException",
        "deserialize_bytes_tensor",
        "get_input_config_by_name",
        "get_input_tensor_by_name",
        "get_model_dir",
        "get_output_config_by_name",
        "get_output_tensor_by_name",
        "is_model_ready",
        "load_model",
        "numpy_to_triton_type",
        "serialize_byte_tensor",
        "triton_string_to_numpy",
        "triton_to_numpy_type",
        "unload_model",
        "using_decoupled_model_transaction_policy",
    }


def test_a_tensor_tells_what_it_is() -> None:
    array = np.zeros((2, 3), np.float32)
    tensor = pb_utils.Tensor("X", array)
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype()) == ("X", [2, 3], 11)
    assert tensor.as_numpy() is array
    assert tensor.is_cpu()
    assert repr(tensor) == "<Tensor X [2, 3]>"


def test_received_bytes_are_copied_once_so_that_a_model_may_write() -> None:
    body = bytes(8)
    tensor = received("FP32", (1, 2), body)
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype()) == ("X", [1, 2], 11)
    tensor.as_numpy()[0, 0] = 1
    assert tensor.as_numpy().tolist() == [[1, 0]]
    assert body == bytes(8)


def test_a_received_buffer_that_is_writable_is_not_copied() -> None:
    body = bytearray(8)
    received("FP32", (1, 2), body).as_numpy()[0, 1] = 1
    assert body == bytes(6) + b"\x80\x3f"


def test_received_byte_strings_are_bytes_objects() -> None:
    tensor = received("BYTES", (2,), b"\x03\0\0\0a\0b\0\0\0\0")
    assert tensor.as_numpy().tolist() == [b"a\0b", b""]
    assert tensor.triton_dtype() == 13


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("", np.zeros(1), "a Tensor needs a name, got an empty one"),
        (5, np.zeros(1), "a Tensor needs a name, got int"),
        (["X"], np.zeros(1), "a Tensor needs a name, got list"),
        (None, np.zeros(1), "a Tensor needs a name, got NoneType"),
        ("X", [1, 2], "Tensor 'X' needs a numpy array, got list"),
        ("X", None, "Tensor 'X' needs a numpy array, got NoneType"),
    ],
)
def test_a_tensor_needs_a_name_and_an_array(name: Any, array: Any, message: str) -> None:
    with pytest.raises(pb_utils.TritonModelException) as caught:
        pb_utils.Tensor(name, array)
    assert str(caught.value) == message


def test_dlpack_shares_memory_both_ways() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    tensor = pb_utils.Tensor("X", array)
    assert np.shares_memory(np.from_dlpack(tensor), array)
    assert tensor.__dlpack_device__() == (1, 0)
    for source in (array, tensor, tensor.to_dlpack()):
        other = pb_utils.Tensor.from_dlpack("Y", source)
        assert other.name() == "Y"
        assert other.as_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert np.shares_memory(other.as_numpy(), array)


def test_dlpack_shares_bf16_which_numpy_does_not_know() -> None:
    array = np.array([[1, 2.5], [-3, 0]], ml_dtypes.bfloat16)
    tensor = pb_utils.Tensor("X", array)
    for source in (tensor, tensor.to_dlpack()):
        other = pb_utils.Tensor.from_dlpack("Y", source)
        assert other.as_numpy().dtype == ml_dtypes.bfloat16
        assert other.as_numpy().tolist() == [[1, 2.5], [-3, 0]]
        assert np.shares_memory(other.as_numpy(), array)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(["a"], object), "Tensor 'X' is BYTES, which numpy cannot share as DLPack"),
        (
            np.zeros((2, 2), np.float32).T,
            (
                "Tensor 'X' can be DLPack only if it is contiguous in C order, "
                "got strides (4, 8) for shape (2, 2)"
            ),
        ),
    ],
)
def test_dlpack_is_for_contiguous_numbers(array: Any, message: str) -> None:
    with pytest.raises(pb_utils.TritonModelException) as caught:
        pb_utils.Tensor("X", array).to_dlpack()
    assert str(caught.value) == message


def test_a_dlpack_that_is_not_contiguous_or_none_at_all_is_refused() -> None:
    with pytest.raises(pb_utils.TritonModelException, match="needs a DLPack that is contiguous"):
        pb_utils.Tensor.from_dlpack("X", np.zeros((2, 2), np.float32).T)
    with pytest.raises(pb_utils.TritonModelException, match="cannot use this DLPack"):
        pb_utils.Tensor.from_dlpack("X", 5)


def test_a_model_can_be_tested_without_a_server() -> None:
    request = pb_utils.InferenceRequest(
        request_id="7",
        correlation_id="s",
        inputs=[pb_utils.Tensor("X", np.ones(2, np.float32))],
        requested_output_names=["Y"],
        model_name="m",
        flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
        timeout=5,
        parameters={"a": 1},
    )
    tensor = pb_utils.get_input_tensor_by_name(request, "X")
    assert tensor is not None
    assert request.inputs() == [tensor]
    assert pb_utils.get_input_tensor_by_name(request, "Z") is None
    assert (request.request_id(), request.correlation_id(), request.flags()) == ("7", "s", 1)
    assert (request.timeout(), request.is_cancelled()) == (5, False)
    assert (request.requested_output_names(), request.parameters()) == (["Y"], '{"a": 1}')
    request.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
    assert request.flags() == 2
    with pytest.raises(pb_utils.TritonModelException, match="have a response sender"):
        request.get_response_sender()

    response = pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.zeros(1))], parameters={"b": 2})
    assert pb_utils.get_output_tensor_by_name(response, "Y") is response.output_tensors()[0]
    assert pb_utils.get_output_tensor_by_name(response, "Z") is None
    assert (response.has_error(), response.error(), response.parameters()) == (
        False,
        None,
        '{"b": 2}',
    )


def test_a_response_may_hold_an_error() -> None:
    error = pb_utils.TritonError("bad", pb_utils.TritonError.NOT_FOUND)
    response = pb_utils.InferenceResponse(error=error)
    assert response.has_error()
    assert response.error() is error
    assert (error.message(), error.code()) == ("bad", pb_utils.TritonError.NOT_FOUND)
    assert pb_utils.TritonError("bad").code() == pb_utils.TritonError.INTERNAL


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: pb_utils.InferenceResponse([np.zeros(1)]),
            "output_tensors must hold Tensor objects, got ndarray",
        ),
        (
            lambda: pb_utils.InferenceResponse(error="bad"),
            "error must be a TritonError, got str",
        ),
        (
            lambda: pb_utils.InferenceResponse(parameters={"a": [1]}),
            "parameter 'a' must be a bool, int, float or str, got list",
        ),
        (
            lambda: pb_utils.InferenceResponse(parameters={1: 2}),
            "the name of a parameter must be a str, got int",
        ),
        (
            lambda: pb_utils.InferenceResponse(parameters={"a": 2**63}),
            "parameter 'a' must fit an int64, got 9223372036854775808",
        ),
        (
            lambda: pb_utils.InferenceResponse(parameters={"a": -(2**20000)}),
            "parameter 'a' must fit an int64, got an integer of 20001 bits",
        ),
        (
            lambda: pb_utils.InferenceResponse(parameters={"a": float("nan")}),
            "parameter 'a' must be a finite number, got nan",
        ),
        (
            lambda: pb_utils.InferenceResponse(parameters={"a": "x\udc80"}),
            "parameter 'a' must be Unicode text, got a lone surrogate at 1",
        ),
        (
            lambda: pb_utils.InferenceResponse(parameters={"\udc80": 1}),
            "parameter '\\udc80' must be Unicode text, got a lone surrogate at 0",
        ),
        (
            lambda: pb_utils.InferenceRequest(parameters={"a": None}),
            "parameter 'a' must be a bool, int, float or str, got NoneType",
        ),
        (
            lambda: pb_utils.TritonError("bad", 3),
            "TritonError needs one of its codes, such as TritonError.INTERNAL, got 3",
        ),
    ],
)
def test_wrong_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(pb_utils.TritonModelException) as caught:
        make()
    assert str(caught.value) == message


def test_parameters_become_plain_python_objects() -> None:
    given = {
        np.str_("a"): np.float64(0.5),
        "b": pb_utils.LogLevel.ERROR,
        "c": np.str_("x"),
        "d": True,
        "e": 2**63 - 1,
        "f": -(2**63),
    }
    response = pb_utils.InferenceResponse(parameters=given)
    plain = response._parameters
    assert plain == {"a": 0.5, "b": 40, "c": "x", "d": True, "e": 2**63 - 1, "f": -(2**63)}
    assert [type(value) for value in plain.values()] == [float, int, str, bool, int, int]
    assert {type(name) for name in plain} == {str}


def test_output_tensors_may_come_from_a_generator() -> None:
    tensors = [pb_utils.Tensor(name, np.zeros(1)) for name in "XY"]
    response = pb_utils.InferenceResponse(tensor for tensor in tensors)
    assert response.output_tensors() == tensors
    tensors.clear()
    assert len(response.output_tensors()) == 2


def test_configurations_are_searched_by_name() -> None:
    config = {"input": [{"name": "X", "dims": [1]}], "output": [{"name": "Y", "dims": [2]}]}
    assert pb_utils.get_input_config_by_name(config, "X") == {"name": "X", "dims": [1]}
    assert pb_utils.get_output_config_by_name(config, "Y") == {"name": "Y", "dims": [2]}
    assert pb_utils.get_input_config_by_name(config, "Y") is None
    assert pb_utils.get_output_config_by_name({}, "Y") is None


@pytest.mark.parametrize(
    ("config", "decoupled"),
    [
        ({}, False),
        ({"model_transaction_policy": {"decoupled": False}}, False),
        ({"model_transaction_policy": {"decoupled": True}}, True),
    ],
)
def test_the_transaction_policy_is_read(config: dict[str, Any], decoupled: bool) -> None:
    assert pb_utils.using_decoupled_model_transaction_policy(config) is decoupled


@pytest.mark.parametrize(
    ("number", "name", "numpy_type"),
    [
        (1, "TYPE_BOOL", np.bool_),
        (2, "TYPE_UINT8", np.uint8),
        (9, "TYPE_INT64", np.int64),
        (10, "TYPE_FP16", np.float16),
        (11, "TYPE_FP32", np.float32),
        (12, "TYPE_FP64", np.float64),
        (13, "TYPE_STRING", np.object_),
    ],
)
def test_data_types_and_numpy_types_convert(number: int, name: str, numpy_type: type) -> None:
    assert pb_utils.triton_to_numpy_type(number) is numpy_type
    assert pb_utils.numpy_to_triton_type(numpy_type) == number
    assert pb_utils.triton_string_to_numpy(name) is numpy_type


def test_what_plain_numpy_lacks_is_a_key_error() -> None:
    for name in ("TYPE_BF16", "TYPE_BYTES", "FP32"):
        with pytest.raises(KeyError):
            pb_utils.triton_string_to_numpy(name)
    with pytest.raises(KeyError):
        pb_utils.triton_to_numpy_type(0)
    with pytest.raises(KeyError):
        pb_utils.numpy_to_triton_type(np.complex64)


def test_byte_tensors_serialize_and_come_back() -> None:
    encoded = pb_utils.serialize_byte_tensor(np.array([["ü", b"\xff"]], object))
    assert encoded == b"\x02\0\0\0\xc3\xbc\x01\0\0\0\xff"
    decoded = pb_utils.deserialize_bytes_tensor(encoded)
    assert decoded.dtype == np.object_
    assert decoded.tolist() == ["ü".encode(), b"\xff"]
    assert pb_utils.deserialize_bytes_tensor(b"").tolist() == []
    matrix = np.array([["a", "b"]], object).view(np.matrix)
    assert pb_utils.serialize_byte_tensor(matrix) == b"\x01\0\0\0a\x01\0\0\0b"
    with pytest.raises(pb_utils.TritonModelException, match="got one of int64"):
        pb_utils.serialize_byte_tensor(np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="expected an element of 9 bytes, got 1"):
        pb_utils.deserialize_bytes_tensor(b"\x09\0\0\0x")


def test_the_logger_writes_to_the_servers_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tritrio.model")
    logger = pb_utils.Logger
    logger.log("plain 100 %")
    logger.log("loud", pb_utils.LogLevel.ERROR)
    logger.log("louder", logger.WARNING)
    logger.log_info("i")
    logger.log_warn("w")
    logger.log_error("e")
    logger.log_verbose("v")
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "plain 100 %"),
        ("ERROR", "loud"),
        ("WARNING", "louder"),
        ("INFO", "i"),
        ("WARNING", "w"),
        ("ERROR", "e"),
        ("DEBUG", "v"),
    ]
