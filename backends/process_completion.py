"""Completes the configuration of a Python model in a process of its own."""

from __future__ import annotations

import logging
from time import perf_counter_ns
from typing import Final

from ..protocol.errors import ErrorCode, RequestError
from ..protocol.pb.inference import ModelConfig
from .base import ModelSource
from .model_process import ModelProcess, ProcessEndedError
from .process_link import LinkError, Packet
from .process_model import ENDING_MAX_S, log_here
from .process_wire import error_from, source_header
from .python_env import interpreter_for

WAIT_MAX_S: Final = 60.0
"""The longest single wait for a message, in seconds, since the system's waits have a maximum."""

_LOGGER: Final = logging.getLogger("tritrio.model")


def complete_in_process(source: ModelSource, config: ModelConfig) -> ModelConfig:
    """Return what the model's `auto_complete_config` makes of the configuration, in a process.

    Raises:
      RequestError: as the python backend; or the process cannot be made, did not survive it, or
        was ended because it took too long.
    """
    start_ns = perf_counter_ns()
    about = f"model '{source.name}'"
    process = ModelProcess(about, interpreter_for(source, config))
    header = {
        "kind": "complete",
        "job": 0,
        "log_level": _LOGGER.getEffectiveLevel(),
        "source": source_header(source),
    }
    try:
        process.send(Packet(header, [bytes(config)]))
        while True:
            left_s = source.complete_max_s - (perf_counter_ns() - start_ns) / 1e9
            if left_s <= 0:
                raise process.misbehaved("was ended, since it took longer than a load may take")
            for message in process.messages(min(WAIT_MAX_S, left_s)):
                match message.header:
                    case {"kind": "done", "error": error}:
                        raise error_from(error)
                    case {"kind": "done"}:
                        buffers = message.buffers
                        return ModelConfig.parse(bytes(buffers[0])) if buffers else config
                    case {"kind": "unfit", "text": str(text)}:
                        raise process.misbehaved(f"cannot run it: {text}")
                    case {"kind": "log", "name": str(), "level": int(), "text": str()} as record:
                        log_here(record)
    except (ProcessEndedError, LinkError) as error:
        raise RequestError(
            ErrorCode.INTERNAL, f"{about}: auto_complete_config failed: {error}"
        ) from None
    finally:
        process.close(ENDING_MAX_S)
