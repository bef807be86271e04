"""Finds backends by name; a backend's libraries are imported when the first model needs them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Final

from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from .base import Backend

BACKENDS: Final = {
    "function": (".function_model", "FunctionBackend"),
    "identity": (".identity", "IdentityBackend"),
    "llm": (".llm.backend", "LlmBackend"),
    "onnxruntime": (".onnx_model", "OnnxBackend"),
    "python": (".python_model", "PythonBackend"),
    "distributed_addsub": (".testing_tensors", "DistributedAddSubBackend"),
    "dyna_sequence": (".testing_sequences", "DynaSequenceBackend"),
    "implicit_state": (".testing_tensors", "ImplicitStateBackend"),
    "iterative_sequence": (".testing_sequences", "IterativeSequenceBackend"),
    "repeat": (".testing_streams", "RepeatBackend"),
    "sequence": (".testing_sequences", "SequenceBackend"),
    "square": (".testing_streams", "SquareBackend"),
}
"""Name in the `backend` field -> (module, class)."""

NOT_INSTALLED: Final = frozenset({"openvino", "pytorch", "tensorrt"})
"""Backends that model repositories name, and that this installation has no library for."""


def get_backend(name: str) -> Backend:
    """Return the one backend of that name.

    Raises:
      RequestError: there is none; lists those there are.
    """
    if name in BACKENDS:
        return _make(name)
    known = ", ".join(BACKENDS)
    if name in NOT_INSTALLED:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            f"backend '{name}' is not available in this installation, which has {known}",
        )
    raise invalid_argument(f"expected one of the backends {known}, got '{name[:60]}'")


@cache
def _make(name: str) -> Backend:
    module, cls = BACKENDS[name]
    backend: Backend = getattr(import_module(module, __package__), cls)()
    return backend
