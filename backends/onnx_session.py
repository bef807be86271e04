"""Opens ONNX Runtime sessions: settings, signatures, and what numpy cannot hand over.

Threads: a session keeps to its instance's share of the CPUs, and its pool does not spin, or only
while the model runs. ONNX Runtime's default, one busy-waiting thread for each core of the host,
takes the CPU from the event loop and from every other model.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import Final, NamedTuple

import ml_dtypes
import numpy as np
import onnxruntime as ort

from ..protocol.config_completion import DEFAULT_MAX_BATCH_SIZE, ModelSignature, TensorSignature
from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.pb.inference import ModelConfig
from ..protocol.tensors import Array
from ..protocol.wording import SHOWN_TEXT_MAX, quoted
from .base import ModelSource
from .fault_text import cut_to
from .model_file import path_inside
from .onnx_ranks import inputs_without_rank
from .parameters import bad_parameter, number_parameter

DEFAULT_FILENAME: Final = "model.onnx"
THREADS_MAX: Final = 1024
"""Most threads a configuration may ask for; more than any machine has use for."""
ERROR_TEXT_MAX_CHARS: Final = 400
"""Most characters of ONNX Runtime's own text in an error; it may list whole graphs."""

BF16: Final = "tensor(bfloat16)"
_ONNX_BF16: Final = 16  # TensorProto.BFLOAT16

DATATYPES: Final = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
    BF16: "BF16",
}
"""ONNX Runtime's type name -> protocol string."""

_GRAPH_LEVELS: Final = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}
"""`optimization.graph.level` -> ONNX Runtime's level."""


class SessionSettings(NamedTuple):
    """Everything that decides what a session is like; equal settings, equal sessions.

    Attributes:
      path: The model file.
      file_stamp: (modification time in ns, size in bytes) of the file.
      intra_op_threads: Threads that share the work of one operator; >= 1.
      inter_op_threads: Threads that share the operators of a parallel execution; >= 1.
      parallel: Whether independent operators run at the same time.
      memory_arena: Whether memory is kept between executions.
      memory_pattern: Whether allocations are planned from earlier executions.
      graph_level: As in the configuration.
      spin_us: How long threads wait for each other busily while the model runs, in microseconds.
    """

    path: str
    file_stamp: tuple[int, int]
    intra_op_threads: int
    inter_op_threads: int
    parallel: bool
    memory_arena: bool
    memory_pattern: bool
    graph_level: int
    spin_us: int = 0


def read_settings(source: ModelSource, config: ModelConfig, cpu_threads: int) -> SessionSettings:
    """Return the settings a configuration asks for.

    Args:
      source: Where the model lies.
      config: Its configuration.
      cpu_threads: Threads to use where the configuration says 0 or nothing.

    Raises:
      RequestError: a value is not allowed, an accelerator is not available, or the model file
        is missing.
    """
    optimization = config.optimization
    graph = optimization.graph if optimization is not None else None
    level = 0 if graph is None else graph.level
    if level not in _GRAPH_LEVELS:
        raise bad_parameter(config, "optimization.graph.level", "-1, 0, 1 or 2", str(level))
    _refuse_what_is_missing(config)
    path, stamp = model_file(source, config.default_model_filename or DEFAULT_FILENAME)
    threads, flag = range(THREADS_MAX + 1), range(2)
    return SessionSettings(
        path=str(path),
        file_stamp=stamp,
        intra_op_threads=number_parameter(config, "intra_op_thread_count", threads, 0)
        or cpu_threads,
        inter_op_threads=number_parameter(config, "inter_op_thread_count", threads, 0)
        or cpu_threads,
        parallel=number_parameter(config, "execution_mode", flag, 0) == 1,
        memory_arena=number_parameter(config, "enable_mem_arena", flag, 1) == 1,
        memory_pattern=number_parameter(config, "enable_mem_pattern", flag, 1) == 1,
        graph_level=level,
    )


def model_file(source: ModelSource, filename: str) -> tuple[Path, tuple[int, int]]:
    """Return the model file, which may lie in a directory of its name, and its stamp.

    Raises:
      RequestError: it is missing or no regular file.
    """
    path = path_inside(source, filename)
    if os.path.isdir(path):  # Path.is_dir raises on names too long
        filename = os.path.join(filename, DEFAULT_FILENAME)
        path = path_inside(source, filename)
    try:
        stat = path.stat()
        problem = None if S_ISREG(stat.st_mode) else "it is no regular file"
    except OSError as error:
        problem = error.strerror
    if problem is not None:
        raise invalid_argument(
            f"model '{source.name}': expected an ONNX model in version {source.version}, file "
            f"{cut_to(filename, SHOWN_TEXT_MAX)}, which cannot be read: {problem}"
        )
    return path, (stat.st_mtime_ns, stat.st_size)


def _refuse_what_is_missing(config: ModelConfig) -> None:
    accelerators = config.optimization and config.optimization.execution_accelerators
    asked = [
        *(accelerators.gpu_execution_accelerator if accelerators else ()),
        *(accelerators.cpu_execution_accelerator if accelerators else ()),
    ]
    what = [f"execution accelerator '{accelerator.name}'" for accelerator in asked]
    if config.model_operations is not None:
        what += [f"library '{name}'" for name in config.model_operations.op_library_filename]
    if what:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            f"model '{config.name}': expected a model for plain ONNX Runtime on the CPU, "
            f"got the {what[0]}, which is not available",
        )


def open_session(settings: SessionSettings, model_name: str) -> ort.InferenceSession:
    """Load a model file.

    Raises:
      RequestError: ONNX Runtime refuses it, or an input has no rank; says why.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 3  # errors: warnings about a graph help its author, not us
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = settings.inter_op_threads
    options.execution_mode = (
        ort.ExecutionMode.ORT_PARALLEL if settings.parallel else ort.ExecutionMode.ORT_SEQUENTIAL
    )
    options.enable_cpu_mem_arena = settings.memory_arena
    options.enable_mem_pattern = settings.memory_pattern
    options.graph_optimization_level = _GRAPH_LEVELS[settings.graph_level]
    spins = "1" if settings.spin_us else "0"
    options.add_session_config_entry("session.intra_op.allow_spinning", spins)
    options.add_session_config_entry("session.force_spinning_stop", spins)  # when a run ends
    if settings.spin_us:
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(settings.spin_us))
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    try:
        session = ort.InferenceSession(settings.path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common base
        raise RequestError(
            ErrorCode.INTERNAL,
            f"model '{model_name}': ONNX Runtime cannot load it: {short_text(error)}",
        ) from None
    _refuse_unknown_ranks(session, settings, model_name)
    return session


def _refuse_unknown_ranks(
    session: ort.InferenceSession, settings: SessionSettings, model_name: str
) -> None:
    doubtful = {node.name for node in session.get_inputs() if not node.shape}
    if doubtful:
        for name in inputs_without_rank(Path(settings.path)):
            if name in doubtful:
                raise RequestError(
                    ErrorCode.UNSUPPORTED,
                    f"model '{model_name}': expected inputs with a number of dimensions in the "
                    f"model, got input {quoted(name)} without a shape",
                )


def signature_of(session: ort.InferenceSession) -> ModelSignature:
    """Return names, data types and shapes of a model's inputs and outputs; -1 is variable.

    Inputs with an initializer are optional. What has no protocol string keeps ONNX's name for it.
    """
    optional = session.get_overridable_initializers()
    return ModelSignature(
        inputs=[
            *map(_tensor, session.get_inputs()),
            *(_tensor(node)._replace(optional=True) for node in optional),
        ],
        outputs=[*map(_tensor, session.get_outputs())],
    )


def _tensor(node: ort.NodeArg) -> TensorSignature:
    shape = tuple([dim if isinstance(dim, int) else -1 for dim in node.shape])
    return TensorSignature(node.name, DATATYPES.get(node.type, node.type), shape)


def run_through_values(
    session: ort.InferenceSession, names: Sequence[str], feed: Mapping[str, Array]
) -> list[Array]:
    """Execute a model with BF16 tensors, which numpy and ONNX Runtime call differently.

    Returns:
      The outputs, of which those of BF16 are `ml_dtypes.bfloat16`; the caller owns them.
    """
    values = {
        name: (
            ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), _ONNX_BF16)
            if array.dtype == ml_dtypes.bfloat16
            else ort.OrtValue.ortvalue_from_numpy(array)
        )
        for name, array in feed.items()
    }
    return [_array_of(value) for value in session.run_with_ort_values(names, values)]


def _array_of(value: ort.OrtValue) -> Array:
    if value.data_type() != BF16:
        array: Array = value.numpy()
        return array
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(data, ml_dtypes.bfloat16).reshape(value.shape())


def short_text(error: Exception) -> str:
    """Return an exception's text on one line, cut to size."""
    return cut_to(" ".join(str(error).split()), ERROR_TEXT_MAX_CHARS)


def instance_count(config: ModelConfig, default: int) -> int:
    """Return how many instances a configuration asks for; `default` for groups without count."""
    return sum([group.count or default for group in config.instance_group]) or default


def default_max_batch_size(source: ModelSource) -> int:
    """Return what `--backend-config` says of models that batch without saying how much."""
    text = source.backend_settings.get("default-max-batch-size", str(DEFAULT_MAX_BATCH_SIZE))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise invalid_argument(
            f"backend-config 'default-max-batch-size' must be a whole number, got '{text[:40]}'"
        )
    return int(text)
