"""What the log says of models whose responses do not fit their configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.builders import (
    config_of,
    error_of,
    execute,
    floats,
    loaded,
    request_of,
    write_model,
)
from tritrio.backends.python_responses import NO_RESPONSE
from tritrio.backends.registry import get_backend

CONFIG = config_of([("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])], max_batch_size=8)
MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        zeros = np.zeros((1, 1), np.float32)
        return [{response}]
"""


@pytest.mark.parametrize(
    ("response", "what"),
    [
        (
            'pb_utils.InferenceResponse([pb_utils.Tensor("Y", zeros)])',
            "output 'Y' is not in its configuration",
        ),
        (
            'pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", zeros.astype("int8"))])',
            "output 'OUTPUT0' must be FP32, got INT8",
        ),
        ("None", NO_RESPONSE),
    ],
)
def test_a_response_that_does_not_fit_is_logged_as_an_exception_is(
    response: str, what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = MODEL.format(response=response)
    instance = loaded(get_backend("python"), write_model(tmp_path, code), CONFIG)
    for _ in range(3):
        (answer,) = execute(instance, request_of(floats(1)))
        assert what in error_of(answer)
    fault = f"model instance 'm_0_0': {what}"
    assert caplog.messages == [f"{fault} (faults so far: {count})" for count in (1, 2)]
    assert {record.levelname for record in caplog.records} == {"ERROR"}
