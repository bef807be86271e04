from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.backends.builders import config_of
from tritrio.backends.pb_model_config import ModelConfig
from tritrio.protocol.pb.inference import (
    ModelConfig as ServerConfig,
    ModelDynamicBatching,
    ModelSequenceBatching,
    ModelTransactionPolicy,
)

X = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}


def test_what_is_missing_is_added_and_the_original_stays() -> None:
    written = config_of()
    config = ModelConfig(written)
    config.add_input({**X, "optional": True})
    config.add_output({**X, "name": "Y"})
    config.set_max_batch_size(8)
    config.set_dynamic_batching()
    config.set_model_transaction_policy({"decoupled": True})
    shown = config.as_dict()
    assert shown["max_batch_size"] == 8
    assert shown["input"][0]["optional"] is True
    assert (shown["output"][0]["name"], shown["output"][0]["dims"]) == ("Y", [4])
    assert "dynamic_batching" in shown
    assert shown["model_transaction_policy"] == {"decoupled": True}
    assert ModelConfig(written).as_dict()["input"] == []
    shown["input"].clear()
    assert len(config.config.input) == 1


def test_what_is_written_may_be_repeated() -> None:
    config = ModelConfig(config_of([("X", "FP32", [4])], max_batch_size=4))
    config.config.dynamic_batching = ModelDynamicBatching(preferred_batch_size=[2])
    config.add_input(X)
    config.set_max_batch_size(4)
    config.set_dynamic_batching()
    assert len(config.config.input) == 1
    assert config.config.dynamic_batching.preferred_batch_size == [2]


def test_a_tensor_that_is_only_named_is_filled_in() -> None:
    config = ModelConfig(config_of([("X", "FP32", [])]))
    config.config.input[0].data_type = type(config.config.input[0].data_type)(0)
    config.add_input({**X, "optional": True})
    shown = [(int(t.data_type), t.dims, t.optional) for t in config.config.input]
    assert shown == [(11, [4], True)]


def sequence_model() -> ServerConfig:
    config = config_of()
    config.sequence_batching = ModelSequenceBatching()
    return config


def decoupled_model() -> ServerConfig:
    config = config_of()
    config.model_transaction_policy = ModelTransactionPolicy(decoupled=True)
    return config


WRITTEN = config_of([("X", "INT32", [4])], [("X", "FP32", [5])], max_batch_size=8)


@pytest.mark.parametrize(
    ("written", "change", "message"),
    [
        (WRITTEN, lambda c: c.set_max_batch_size(4), "max_batch_size is 8, cannot be lowered to 4"),
        (
            sequence_model(),
            lambda c: c.set_dynamic_batching(),
            "dynamic_batching cannot be set: the configuration has sequence_batching",
        ),
        (
            decoupled_model(),
            lambda c: c.set_model_transaction_policy({"decoupled": False}),
            "decoupled is true in the configuration, cannot be set to false",
        ),
        (
            WRITTEN,
            lambda c: c.set_model_transaction_policy({"decoupled": "no"}),
            "decoupled must be a bool, got str",
        ),
        (
            WRITTEN,
            lambda c: c.add_input(X),
            "tensor 'X' has data_type TYPE_INT32 in the configuration, cannot be set to TYPE_FP32",
        ),
        (
            WRITTEN,
            lambda c: c.add_output(X),
            "tensor 'X' has dims [5] in the configuration, cannot be set to [4]",
        ),
        (
            WRITTEN,
            lambda c: c.add_input({"name": "Z", "dims": [1]}),
            "an input needs the keys ['data_type', 'dims', 'name'], got none for 'data_type'",
        ),
        (
            WRITTEN,
            lambda c: c.add_output({**X, "optional": True}),
            "an output has the keys ['data_type', 'dims', 'name'], got also 'optional'",
        ),
    ],
)
def test_what_is_written_cannot_be_contradicted(
    written: ServerConfig, change: Callable[[Any], None], message: str
) -> None:
    config = ModelConfig(written)
    before = config.as_dict()
    with pytest.raises(ValueError, match=re.escape(message)):
        change(config)
    assert config.as_dict() == before


def test_a_data_type_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="TYPE_FLOAT"):
        ModelConfig(config_of()).add_input({**X, "data_type": "TYPE_FLOAT"})
