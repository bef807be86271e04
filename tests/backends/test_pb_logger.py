"""What the log says of lines that a Python model logs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.backends.builders import config_of, execute, floats, loaded, request_of, write_model
from tritrio.backends.registry import get_backend
from tritrio.protocol.log_settings import LOG_FIELDS

MODEL = """
import logging


class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_info("in execute")
        logging.info("of the library")
        return [pb_utils.InferenceResponse([]) for _ in requests]

    def finalize(self):
        pb_utils.Logger.log("in finalize", pb_utils.LogLevel.WARNING)
"""


def test_lines_say_which_request_they_are_about_while_there_is_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = config_of([("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])], max_batch_size=8)
    instance = loaded(get_backend("python"), write_model(tmp_path, MODEL), config)
    one, two = (request_of(floats(1), request_id=name) for name in "ab")
    execute(instance, one, two)
    execute(instance, one)
    instance.unload()
    about = [
        (record.message, record.filename, [getattr(record, name, None) for name in LOG_FIELDS[:3]])
        for record in caplog.records
    ]
    assert about == [
        ("in execute", "model.py", [None, "m", "1"]),
        ("of the library", "model.py", [None, None, None]),
        ("in execute", "model.py", ["a", "m", "1"]),
        ("of the library", "model.py", [None, None, None]),
        ("in finalize", "model.py", [None, "m", "1"]),
    ]
