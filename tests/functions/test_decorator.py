"""The decorator makes the configuration somebody would write by hand, or says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from textwrap import dedent
from typing import Any

import pytest

import tritrio
from tritrio.backends.model_function import function_of
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb.inference import ModelConfig

X = {"x": "FP32[-1]"}
Y = {"y": "FP32[-1]"}


def config_of(target: object) -> ModelConfig:
    function = function_of(target)
    assert function is not None
    return function.config


def written(text: str) -> ModelConfig:
    return parse_model_config(dedent(text), file="config.pbtxt")


def test_a_decorated_function_is_still_that_function() -> None:
    @tritrio.model(inputs=X, outputs=Y)
    def double(x: int) -> int:
        return 2 * x

    assert double(2) == 4


def test_its_configuration_is_the_one_that_would_be_written() -> None:
    @tritrio.model(
        inputs={"text": "BYTES[1]", "pixels": "UINT8[-1, 3]"},
        outputs={"score": "BF16[1]"},
        max_batch_size=8,
        dynamic_batching={"max_queue_delay_microseconds": 100, "preferred_batch_size": [4]},
        instances=2,
        response_cache=True,
        config={"model_warmup": [], "parameters": {"k": {"string_value": "v"}}},
    )
    def score(text: Any, pixels: Any = None) -> Any:
        return text

    assert config_of(score) == written("""
        name: "score" backend: "function" max_batch_size: 8
        input { name: "text" data_type: TYPE_STRING dims: 1 }
        input { name: "pixels" data_type: TYPE_UINT8 dims: [ -1, 3 ] optional: true }
        output { name: "score" data_type: TYPE_BF16 dims: 1 }
        instance_group { count: 2 kind: KIND_CPU }
        dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 100 }
        response_cache { enable: true }
        parameters { key: "k" value { string_value: "v" } }
    """)


@pytest.mark.parametrize(("given", "has"), [(None, False), (False, False), (True, True)])
def test_dynamic_batching_is_there_if_it_is_wanted(given: bool | None, has: bool) -> None:
    @tritrio.model("m", inputs=X, outputs=Y, max_batch_size=2, dynamic_batching=given)
    def f(x: Any) -> Any:
        return x

    assert (config_of(f).dynamic_batching is not None) is has


def test_what_config_has_replaces_the_other_arguments() -> None:
    @tritrio.model(
        "a",
        inputs={"y": "FP32[1]"},
        outputs=Y,
        config={
            "name": "b",
            "input": [
                {
                    "name": "x",
                    "data_type": "TYPE_INT8",
                    "dims": [4],
                    "reshape": {"shape": [2, 2]},
                }
            ],
        },
    )
    def f(x: Any) -> Any:
        return x

    config = config_of(f)
    assert config.name == "b"
    assert [(each.name, each.reshape and each.reshape.shape) for each in config.input] == [
        ("x", [2, 2])
    ]


def test_generators_and_classes_that_yield_are_decoupled() -> None:
    @tritrio.model(inputs=X, outputs=Y)
    def repeat(x: Any) -> Iterator[Any]:
        yield x

    @tritrio.model(inputs=X, outputs=Y)
    class Repeat:
        def __call__(self, x: Any) -> Iterator[Any]:
            yield x

    assert config_of(Repeat).name == "Repeat"
    for target in (repeat, Repeat):
        policy = config_of(target).model_transaction_policy
        assert policy is not None
        assert policy.decoupled


def plain(x: Any) -> Any:
    return x


def two(x: Any, z: Any) -> Any:
    return x


def positional(x: Any, z: Any, /) -> Any:
    return x


class NoCall:
    pass


@pytest.mark.parametrize(
    ("target", "arguments", "fault"),
    [
        (
            plain,
            {"inputs": {"x": "FP31[-1]"}},
            (
                "model 'plain': expected 'x' as DATATYPE[DIMENSIONS], such as 'FP32[-1,3]', with "
                "one of BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, "
                "FP32, FP64, BYTES, BF16, got 'FP31[-1]'"
            ),
        ),
        (
            plain,
            {"inputs": {"z": "FP32[1]"}},
            "model 'plain': expected a parameter for each input, got none for ['z'] among ['x']",
        ),
        (
            two,
            {"inputs": X},
            "model 'two': expected a default for parameter 'z', which is no input, got none",
        ),
        (
            two,
            {
                "config": {
                    "input": [
                        {"name": name, "data_type": "TYPE_FP32", "dims": [1], "optional": True}
                        for name in ("x", "z")
                    ]
                }
            },
            (
                "model 'two': expected a default for parameter 'x', which is an optional input, "
                "got none"
            ),
        ),
        (
            positional,
            {"inputs": X},
            "model 'positional': expected a parameter for each input, got none for ['x'] among []",
        ),
        (
            NoCall,
            {},
            "model 'NoCall': expected a function or a class with __call__, got a class without one",
        ),
        (
            len,
            {},
            (
                "model 'len': expected a function or a class with __call__, got an object of type "
                "builtin_function_or_method"
            ),
        ),
        (
            plain,
            {"inputs": X, "config": {"model_transaction_policy": {"decoupled": True}}},
            (
                "model 'plain': expected a generator where model_transaction_policy has decoupled, "
                "and only there, got a function that returns"
            ),
        ),
        (
            plain,
            {"inputs": X, "config": {"max_batchsize": 1}},
            (
                "model configuration: expected a field of ModelConfig, got 'max_batchsize'; did "
                "you mean 'max_batch_size'?"
            ),
        ),
        (
            plain,
            {"inputs": X, "name": "a/b"},
            "expected a model name that a directory can have, got 'a/b'",
        ),
        (
            plain,
            {"inputs": X, "config": {"name": ".."}},
            "expected a model name that a directory can have, got '..'",
        ),
        (
            plain,
            {"inputs": X, "config": {"backend": "python"}},
            "model 'plain': expected the backend 'function', got 'python'",
        ),
        (
            plain,
            {"inputs": X, "instances": 0},
            "model 'plain': expected at least 1 of instances, got 0",
        ),
        (
            plain,
            {"inputs": X, "dynamic_batching": {"preferred_batch_size": [9]}, "max_batch_size": 4},
            None,
        ),
        (
            plain,
            {"inputs": X, "dynamic_batching": True},
            ("model 'plain': expected a max_batch_size of at least 1 with dynamic_batching, got 0"),
        ),
    ],
)
def test_a_wrong_model_is_refused_where_it_is_written(
    target: Callable[..., Any], arguments: dict[str, Any], fault: str | None
) -> None:
    with pytest.raises(RequestError) as caught:
        tritrio.model(**{"outputs": Y, **arguments})(target)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert function_of(target) is None
    assert fault is None or caught.value.message == fault


def test_a_decorator_without_its_arguments_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        tritrio.model(plain)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        "expected @tritrio.model(inputs={...}, outputs={...}), got @tritrio.model without inputs= "
        "and outputs="
    )


def test_the_package_says_what_it_does_not_have() -> None:
    with pytest.raises(AttributeError, match="module 'tritrio' has no attribute 'modle'"):
        _ = tritrio.modle  # type: ignore[attr-defined]
