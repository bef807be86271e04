from __future__ import annotations

import subprocess
import sys

import pytest

from tritrio.backends.registry import get_backend
from tritrio.protocol.errors import ErrorCode, RequestError


@pytest.mark.parametrize(
    ("name", "stacks_inputs", "cpu_instance_count"),
    [
        ("function", True, 1),
        ("identity", False, 1),
        ("llm", False, 1),
        ("onnxruntime", True, 2),
        ("python", True, 1),
        ("distributed_addsub", False, 1),
        ("dyna_sequence", False, 1),
        ("implicit_state", False, 1),
        ("iterative_sequence", False, 1),
        ("repeat", False, 1),
        ("sequence", False, 1),
        ("square", False, 1),
    ],
)
def test_each_backend_is_made_once(name: str, stacks_inputs: bool, cpu_instance_count: int) -> None:
    backend = get_backend(name)
    assert backend is get_backend(name)
    assert backend.name == name
    assert backend.stacks_inputs is stacks_inputs
    assert backend.cpu_instance_count == cpu_instance_count


def test_an_unknown_backend_is_told_the_known_ones() -> None:
    with pytest.raises(RequestError) as caught:
        get_backend("onxruntime")
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        "expected one of the backends function, identity, llm, onnxruntime, python, "
        "distributed_addsub, dyna_sequence, implicit_state, iterative_sequence, repeat, sequence, "
        "square, "
        "got 'onxruntime'"
    )


@pytest.mark.parametrize("name", ["tensorrt", "pytorch", "openvino"])
def test_a_backend_without_its_library_says_so(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        get_backend(name)
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert f"backend '{name}' is not available in this installation" in caught.value.message


def test_onnxruntime_is_imported_for_the_first_onnx_model_only() -> None:
    program = (
        "import sys; from tritrio.backends.registry import get_backend\n"
        "get_backend('identity'); get_backend('python')\n"
        "assert 'onnxruntime' not in sys.modules\n"
        "get_backend('onnxruntime')\n"
        "assert 'onnxruntime' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
