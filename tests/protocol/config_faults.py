"""What validation says about a configuration in text format."""

from __future__ import annotations

import pytest

from tritrio.protocol.config_rules import ConfigContext, normalise
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.config_validation import validate
from tritrio.protocol.errors import ErrorCode, RequestError

CPU_ONLY = ConfigContext()
TWO_GPUS = ConfigContext(gpus=(0, 1))

TENSORS = """
input { name: "IN" data_type: TYPE_FP32 dims: [ 2, -1 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: 4 }
"""
BASE = 'name: "m" backend: "python" max_batch_size: 8 ' + TENSORS
PLAIN = 'name: "m" backend: "python" '


def checked(text: str, context: ConfigContext = CPU_ONLY) -> None:
    config = normalise(parse_model_config(text, file="config.pbtxt"), context=context)
    validate(config, context=context)


def fault_of(text: str, context: ConfigContext = CPU_ONLY) -> str:
    with pytest.raises(RequestError) as caught:
        checked(text, context)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message.startswith("model 'm': ")
    return caught.value.message.removeprefix("model 'm': ")
