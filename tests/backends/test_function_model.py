"""The function backend: arrays by parameter name in, rows of each request out, clear faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.lowlevel

from tests.backends.builders import (
    error_of,
    execute,
    floats,
    loaded,
    outputs_of,
    request_of,
    source_in,
)
from tritrio import ErrorCode, RequestError, model
from tritrio.backends.base import InstancePlace, ModelInstance
from tritrio.backends.function_model import FunctionBackend
from tritrio.backends.model_function import function_of, holding

Load = Callable[..., ModelInstance]

ROWS: dict[str, Any] = {
    "inputs": {"x": "FP32[-1]"},
    "outputs": {"y": "FP32[-1]"},
    "max_batch_size": 8,
}
FLAT: dict[str, Any] = {"inputs": {"x": "FP32[-1]"}, "outputs": {"y": "FP32[-1]"}}
PREFIX = "INTERNAL: model 'm' version 1: f "


def test_the_rows_of_a_batch_come_stacked_and_go_back_to_their_requests(load: Load) -> None:
    seen: list[Any] = []

    @model("m", **ROWS)
    def f(x: Any) -> Any:
        seen.append(x.tolist())
        return {"y": 2 * x}

    first, second = execute(
        load(f), request_of(x=floats(1, 2)), request_of(x=np.array([[3, 4], [5, 6]], np.float32))
    )
    assert seen == [[[1, 2], [3, 4], [5, 6]]]
    assert outputs_of(first)["y"].tolist() == [[2, 4]]
    assert outputs_of(second)["y"].tolist() == [[6, 8], [10, 12]]


def test_without_max_batch_size_each_request_is_a_call(load: Load) -> None:
    @model("m", **FLAT)
    def f(x: Any) -> Any:
        return x + len(x)

    answers = execute(
        load(f),
        request_of(x=np.array([1], np.float32), batched=False),
        request_of(x=np.array([1, 2], np.float32), batched=False),
    )
    assert [outputs_of(answer)["y"].tolist() for answer in answers] == [[2], [3, 4]]


def test_arrays_are_read_only_whether_they_were_stacked_or_not(load: Load) -> None:
    writeable: list[bool] = []

    @model("m", **ROWS)
    def f(x: Any) -> Any:
        writeable.append(x.flags.writeable)
        return x

    instance = load(f)
    execute(instance, request_of(x=floats(1)))
    execute(instance, request_of(x=floats(1)), request_of(x=floats(2)))
    assert writeable == [False, False]


def test_what_is_returned_may_be_changed_afterwards(load: Load) -> None:
    kept = np.zeros((1, 1), np.float32)

    @model("m", **ROWS)
    def f(x: Any) -> Any:
        kept[:] = x
        return kept

    instance = load(f)
    (first,) = execute(instance, request_of(x=floats(1)))
    execute(instance, request_of(x=floats(2)))
    assert outputs_of(first)["y"].tolist() == [[1]]


def test_several_outputs_come_as_a_tuple_in_their_order_and_only_those_asked_for_leave(
    load: Load,
) -> None:
    @model("m", inputs={"x": "INT32[1]"}, outputs={"a": "INT32[1]", "b": "BYTES[1]"})
    def f(x: Any) -> Any:
        return x, ["é"]

    x = np.array([7], np.int32)
    both, one = execute(
        load(f), request_of(x=x, batched=False), request_of(x=x, batched=False, asked=["b"])
    )
    assert {name: array.tolist() for name, array in outputs_of(both).items()} == {
        "a": [7],
        "b": ["é".encode()],
    }
    assert list(outputs_of(one)) == ["b"]


def test_an_optional_input_that_is_missing_takes_the_default_of_its_parameter(load: Load) -> None:
    @model("m", inputs={"x": "FP32[1]", "scale": "FP32[1]"}, outputs={"y": "FP32[1]"})
    def f(x: Any, scale: Any = 3) -> Any:
        return (x * scale).astype(np.float32)

    function = function_of(f)
    assert function is not None
    assert [tensor.optional for tensor in function.config.input] == [False, True]
    x = np.array([2], np.float32)
    without, given = execute(
        load(f), request_of(x=x, batched=False), request_of(x=x, scale=x, batched=False)
    )
    assert outputs_of(without)["y"].tolist() == [6]
    assert outputs_of(given)["y"].tolist() == [4]


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (None, "must return the 1 outputs ['y'] as a dict or in this order, got None"),
        ((1, 2), "must return the 1 outputs ['y'] as a dict or in this order, got 2"),
        ({"z": 1}, "must return a dict with the outputs ['y'], got ['z']"),
        ({}, "must return a dict with the outputs ['y'], got []"),
        (np.zeros((2, 3), np.float64), "must return output 'y' as FP32, got FP64"),
        (np.zeros((2, 3), "m8[s]"), "must return output 'y' as FP32, got timedelta64[s]"),
        (np.zeros((2,), np.float32), "must return output 'y' with shape [2,3], got [2]"),
        (np.zeros((2, 4), np.float32), "must return output 'y' with shape [2,3], got [2,4]"),
        (np.zeros((3, 3), np.float32), "must return output 'y' with shape [2,3], got [3,3]"),
        (
            "many",
            "must return output 'y' as FP32: could not convert string to float: 'many'",
        ),
    ],
)
def test_a_wrong_result_is_an_error_that_says_what_came(
    load: Load, result: Any, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    @model("m", inputs={"x": "FP32[3]"}, outputs={"y": "FP32[3]"}, max_batch_size=4)
    def f(x: Any) -> Any:
        return result

    answers = execute(load(f), request_of(x=floats(1, 2, 3)), request_of(x=floats(1, 2, 3)))
    assert [error_of(answer) for answer in answers] == [PREFIX + fault] * 2
    prefix = PREFIX.removeprefix("INTERNAL: ")
    assert caplog.messages == [f"{prefix}{fault} (faults so far: 1)"]


def test_an_exception_names_the_line_that_raised_it(load: Load) -> None:
    @model("m", **ROWS)
    def f(x: Any) -> Any:
        raise ValueError("no such row")

    (answer,) = execute(load(f), request_of(x=floats(1)))
    line = f.__code__.co_firstlineno + 2
    assert error_of(answer).startswith(f"{PREFIX}raised ValueError: no such row (at ")
    assert f"test_function_model.py:{line} in f)" in error_of(answer)


def test_a_function_can_tell_its_client_what_is_wrong_with_the_request(load: Load) -> None:
    @model("m", **ROWS)
    def f(x: Any) -> Any:
        raise RequestError(ErrorCode.INVALID_ARG, "expected positive numbers")

    (answer,) = execute(load(f), request_of(x=floats(-1)))
    assert error_of(answer) == "INVALID_ARG: expected positive numbers"


def test_an_async_function_runs_on_trio(load: Load) -> None:
    @model("m", **ROWS)
    async def f(x: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return x + 1

    (answer,) = execute(load(f), request_of(x=floats(1)))
    assert outputs_of(answer)["y"].tolist() == [[2]]


def test_an_async_function_that_raises_fails_its_requests(load: Load) -> None:
    @model("m", **ROWS)
    async def f(x: Any) -> Any:
        await trio.lowlevel.checkpoint()
        raise KeyError("k")

    (answer,) = execute(load(f), request_of(x=floats(1)))
    assert error_of(answer).startswith(f"{PREFIX}raised KeyError: 'k'")


def test_a_class_is_made_at_the_load_and_closed_at_the_unload(load: Load) -> None:
    events: list[str] = []

    @model("m", **ROWS)
    class Scale:
        def __init__(self) -> None:
            events.append("load")
            self.factor = 3

        def __call__(self, x: Any) -> Any:
            return self.factor * x

        def close(self) -> None:
            events.append("close")

    instance = load(Scale)
    (answer,) = execute(instance, request_of(x=floats(2)))
    assert outputs_of(answer)["y"].tolist() == [[6]]
    assert events == ["load"]
    instance.unload()
    assert events == ["load", "close"]


def test_a_class_that_cannot_be_made_fails_the_load_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @model("m", **ROWS)
    class Weights:
        def __init__(self) -> None:
            raise OSError("no weights here")

        def __call__(self, x: Any) -> Any:
            return x

        def close(self) -> None:
            raise AssertionError("there is nothing to close")

    function = function_of(Weights)
    assert function is not None
    source = source_in(tmp_path)
    with holding(source.model_directory, function):
        instance = FunctionBackend().create_instance(source, function.config, InstancePlace("m_0"))
        with pytest.raises(RequestError, match=r"Weights\(\) raised OSError: no weights here"):
            instance.load()
        instance.unload()
    assert caplog.text == ""


def test_a_file_without_a_decorated_function_says_what_is_expected(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    (source.version_directory / "model.py").write_text("def model(x):\n    return x\n")

    @model("m", **ROWS)
    def f(x: Any) -> Any:
        return x

    function = function_of(f)
    assert function is not None
    with pytest.raises(RequestError, match=r"the decorator tritrio\.model, got none"):
        loaded(FunctionBackend(), source, function.config)
