from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.backends.builders import config_of, error_of, execute, outputs_of, request_of
from tests.backends.onnx_files import (
    FLOAT,
    INT64,
    STRING,
    node,
    write_identity,
    write_onnx,
    write_sum_and_difference,
)
from tritrio.backends.base import InstancePlace, ModelInstance, ModelSource
from tritrio.backends.onnx_model import OnnxBackend
from tritrio.protocol.errors import RequestError
from tritrio.protocol.pb.inference import ModelConfig
from tritrio.protocol.requests import InferRequest
from tritrio.protocol.tensors import Tensor


def completed(source: ModelSource, config: ModelConfig | None = None) -> ModelInstance:
    """A loaded instance with the configuration completed from its file."""
    backend = OnnxBackend()
    config = backend.complete_config(source, config or config_of())
    return loaded(source, config, backend)


def loaded(
    source: ModelSource, config: ModelConfig, backend: OnnxBackend | None = None
) -> ModelInstance:
    instance = (backend or OnnxBackend()).create_instance(source, config, InstancePlace("m_0_0"))
    instance.load()
    return instance


def floats(*rows: list[float]) -> Any:
    return np.array(rows, np.float32)


def test_a_configuration_is_completed_from_the_model(tmp_path: Path) -> None:
    source = write_sum_and_difference(tmp_path)
    config = OnnxBackend().complete_config(source, config_of())
    assert config.max_batch_size == 4
    assert config.dynamic_batching is not None
    assert [(t.name, int(t.data_type), t.dims) for t in config.input] == [
        ("A", 11, [2]),
        ("B", 11, [2]),
    ]
    assert [(t.name, int(t.data_type), t.dims) for t in config.output] == [
        ("SUM", 11, [2]),
        ("DIFFERENCE", 11, [2]),
    ]


def test_the_default_batch_size_comes_from_the_backend_settings(tmp_path: Path) -> None:
    source = write_identity(tmp_path)
    source.backend_settings["default-max-batch-size"] = "16"
    assert OnnxBackend().complete_config(source, config_of()).max_batch_size == 16
    source.backend_settings["default-max-batch-size"] = "many"
    with pytest.raises(RequestError, match="must be a whole number, got 'many'"):
        OnnxBackend().complete_config(source, config_of())


def test_a_batch_is_stacked_run_once_and_split(tmp_path: Path) -> None:
    instance = completed(write_sum_and_difference(tmp_path))
    responses = execute(
        instance,
        request_of(A=floats([1, 2]), B=floats([10, 20]), request_id="a"),
        request_of(A=floats([3, 4], [5, 6]), B=floats([1, 1], [2, 2]), request_id="b"),
    )
    assert [response.id for response in responses] == ["a", "b"]
    first, second = map(outputs_of, responses)
    assert list(first) == ["SUM", "DIFFERENCE"]
    assert first["SUM"].tolist() == [[11, 22]]
    assert second["SUM"].tolist() == [[4, 5], [7, 8]]
    assert second["DIFFERENCE"].tolist() == [[2, 3], [3, 4]]
    assert np.shares_memory(first["SUM"], responses[0].outputs[0].array)
    assert first["SUM"].base is second["SUM"].base
    instance.unload()


class RecordingSession:
    """Remembers what a session was asked for."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.ran: list[list[str]] = []
        self.fed: list[dict[str, Any]] = []

    @classmethod
    def of(cls, instance: Any) -> RecordingSession:
        """Put one in front of an instance's session."""
        instance._session = cls(instance._session)
        session: RecordingSession = instance._session
        return session

    def run(self, names: list[str], feed: dict[str, Any]) -> Any:
        self.ran.append(names)
        self.fed.append(feed)
        return self.session.run(names, feed)


def test_only_outputs_that_somebody_wants_are_computed_and_each_gets_its_own(
    tmp_path: Path,
) -> None:
    instance = completed(write_sum_and_difference(tmp_path))
    session = RecordingSession.of(instance)
    inputs = {"A": floats([1, 2]), "B": floats([1, 1])}
    (only,) = execute(instance, request_of(**inputs, asked=["DIFFERENCE"]))
    assert list(outputs_of(only)) == ["DIFFERENCE"]
    one, other = execute(
        instance,
        request_of(**inputs, asked=["DIFFERENCE"]),
        request_of(**inputs, asked=["SUM"]),
    )
    assert (list(outputs_of(one)), list(outputs_of(other))) == (["DIFFERENCE"], ["SUM"])
    mixed, full = execute(instance, request_of(**inputs, asked=["SUM"]), request_of(**inputs))
    assert (list(outputs_of(mixed)), list(outputs_of(full))) == (["SUM"], ["SUM", "DIFFERENCE"])
    assert session.ran == [["DIFFERENCE"], ["SUM", "DIFFERENCE"], ["SUM", "DIFFERENCE"]]


def test_an_unaligned_view_on_a_body_is_aligned_first(tmp_path: Path) -> None:
    body = b"{" + floats([1.5, 2.5]).tobytes()
    request = InferRequest("m")
    request.inputs["X"] = Tensor("X", "FP32", (1, 2), raw=memoryview(body)[1:])
    assert not request.inputs["X"].array.flags.aligned
    instance = completed(write_identity(tmp_path))
    session = RecordingSession.of(instance)
    (response,) = execute(instance, request)
    assert outputs_of(response)["Y"].tolist() == [[1.5, 2.5]]
    assert session.fed[0]["X"].flags.aligned


def test_a_request_alone_is_fed_without_a_copy(tmp_path: Path) -> None:
    instance = completed(write_identity(tmp_path))
    session = RecordingSession.of(instance)
    request = request_of(X=floats([1, 2]))
    execute(instance, request)
    assert session.fed[0]["X"] is request.inputs["X"].array


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        (TensorProto.BOOL, np.array([[True, False]])),
        (TensorProto.UINT8, np.array([[0, 255]], np.uint8)),
        (TensorProto.INT8, np.array([[-128, 127]], np.int8)),
        (TensorProto.UINT16, np.array([[0, 65535]], np.uint16)),
        (TensorProto.INT16, np.array([[-5, 5]], np.int16)),
        (TensorProto.UINT32, np.array([[0, 2**32 - 1]], np.uint32)),
        (TensorProto.INT32, np.array([[-5, 5]], np.int32)),
        (TensorProto.UINT64, np.array([[0, 2**64 - 1]], np.uint64)),
        (INT64, np.array([[-(2**63), 5]], np.int64)),
        (TensorProto.FLOAT16, np.array([[0.5, -2]], np.float16)),
        (TensorProto.DOUBLE, np.array([[0.1, -2]], np.float64)),
        (TensorProto.BFLOAT16, np.array([[0.5, -2]], ml_dtypes.bfloat16)),
    ],
)
def test_every_number_type_goes_in_and_out_batched(tmp_path: Path, kind: int, array: Any) -> None:
    instance = completed(write_identity(tmp_path, kind))
    responses = execute(instance, request_of(X=array), request_of(X=array[:, ::-1]))
    assert outputs_of(responses[0])["Y"].tolist() == array.tolist()
    assert outputs_of(responses[1])["Y"].tolist() == array[:, ::-1].tolist()


def test_text_goes_in_and_out_and_bad_text_fails_its_request_only(tmp_path: Path) -> None:
    instance = completed(write_identity(tmp_path, STRING))
    good = np.array([[b"a\0b", "grün 😀".encode()]], object)
    bad = np.array([[b"ok", b"no\xff"]], object)
    first, second, third = execute(
        instance, request_of(X=bad), request_of(X=good), request_of(X=good[:, ::-1])
    )
    assert error_of(first) == (
        "INVALID_ARG: model 'm' takes BYTES inputs that are UTF-8 text, got byte 0xff at offset 2"
    )
    assert outputs_of(second)["Y"].tolist() == good.tolist()
    assert outputs_of(third)["Y"].tolist() == good[:, ::-1].tolist()


def test_a_batch_of_bad_text_only_is_answered_without_running(tmp_path: Path) -> None:
    instance = completed(write_identity(tmp_path, STRING))
    (response,) = execute(instance, request_of(X=np.array([[b"\xff", b""]], object)))
    assert error_of(response).startswith("INVALID_ARG: ")


def test_a_model_that_does_not_batch_takes_the_shapes_as_they_are(tmp_path: Path) -> None:
    source = write_identity(tmp_path, FLOAT, (3,))
    array = np.array([1, 2, 3], np.float32)
    (response,) = execute(completed(source), request_of(X=array, batched=False))
    assert outputs_of(response)["Y"].tolist() == [1, 2, 3]


def test_scalars_are_shape_one_for_clients(tmp_path: Path) -> None:
    instance = completed(write_identity(tmp_path, FLOAT, ()))
    (response,) = execute(instance, request_of(X=np.array([7], np.float32), batched=False))
    assert outputs_of(response)["Y"].tolist() == [7]


def test_zero_rows_come_back_as_zero_rows(tmp_path: Path) -> None:
    instance = completed(write_identity(tmp_path))
    empty, full = execute(
        instance, request_of(X=np.zeros((0, 2), np.float32)), request_of(X=floats([1, 2]))
    )
    assert outputs_of(empty)["Y"].shape == (0, 2)
    assert outputs_of(full)["Y"].tolist() == [[1, 2]]


def test_an_output_with_a_reshape_comes_back_in_the_clients_dims(tmp_path: Path) -> None:
    config = config_of(
        [("X", "FP32", [4])],
        [("Y", "FP32", [2, 2])],
        max_batch_size=8,
        output_reshapes={"Y": [4]},
    )
    instance = loaded(write_identity(tmp_path, FLOAT, ("N", 4)), config)
    first, second = execute(
        instance, request_of(X=floats([1, 2, 3, 4])), request_of(X=floats([5, 6, 7, 8]))
    )
    assert outputs_of(first)["Y"].tolist() == [[[1, 2], [3, 4]]]
    assert outputs_of(second)["Y"].tolist() == [[[5, 6], [7, 8]]]


def test_an_optional_input_may_be_given_or_left_out(tmp_path: Path) -> None:
    source = write_onnx(
        tmp_path,
        [node("Add", ["X", "BIAS"], ["Y"])],
        [("X", FLOAT, (2,)), ("BIAS", FLOAT, (2,))],
        [("Y", FLOAT, (2,))],
        initializers=[helper.make_tensor("BIAS", FLOAT, (2,), [10, 20])],
    )
    instance = completed(source)
    array = np.array([1, 2], np.float32)
    (without,) = execute(instance, request_of(X=array, batched=False))
    (given,) = execute(instance, request_of(X=array, BIAS=array, batched=False))
    assert outputs_of(without)["Y"].tolist() == [11, 22]
    assert outputs_of(given)["Y"].tolist() == [2, 4]


def test_an_onnxruntime_failure_is_short_and_fails_the_batch(tmp_path: Path) -> None:
    source = write_onnx(
        tmp_path,
        [node("Gather", ["TABLE", "X"], ["Y"])],
        [("X", INT64, ("N", 1))],
        [("Y", FLOAT, ("N", 1))],
        initializers=[helper.make_tensor("TABLE", FLOAT, (3,), [1, 2, 3])],
    )
    instance = completed(source)
    good, bad = (request_of(X=np.array([[index]], np.int64)) for index in (1, 99))
    responses = execute(instance, good, bad)
    for response in responses:
        message = error_of(response)
        assert message.startswith("INTERNAL: model instance 'm_0_0': ONNX Runtime failed: ")
        assert "indices element out of data bounds" in message
        assert "\n" not in message
        assert len(message) < 500
    (response,) = execute(instance, good)
    assert outputs_of(response)["Y"].tolist() == [[2]]


def test_an_output_without_a_row_for_each_request_fails_the_batch(tmp_path: Path) -> None:
    source = write_onnx(
        tmp_path,
        [node("Concat", ["X", "X"], ["Y"], axis=0)],
        [("X", FLOAT, ("N", 2))],
        [("Y", FLOAT, ("M", 2))],
    )
    responses = execute(
        completed(source), request_of(X=floats([1, 2])), request_of(X=floats([1, 2]))
    )
    expected = "INTERNAL: model 'm': output 'Y' must have shape [2,2], got [4,2]"
    assert [error_of(response) for response in responses] == [expected, expected]
