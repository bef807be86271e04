"""Custom batching functions: where they are found, what they see, and their faults."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from tests.backends.builders import config_of, floats, request_of, source_in
from tritrio.backends.base import ModelSource
from tritrio.backends.batch_strategy import BatchStrategy, load_batch_strategy
from tritrio.backends.pb_tensor import TritonModelException
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.pb.inference import ModelConfig, ModelDynamicBatching, ModelParameter

ONLY_INCLUDE = """
def batch_include_request(request, batch):
    return batch is None
"""
COUNTING = """
import limits

calls = []

def batcher_initialize(model_config):
    return {"max": model_config["max_batch_size"], "name": model_config["name"]}

def batch_initialize(batcher):
    return [batcher["max"] // 2]

def batch_include_request(request, batch):
    calls.append(request)
    rows = len(request.inputs()[0].as_numpy())
    if rows > batch[0]:
        return False
    batch[0] -= rows
    return True

def batch_finalize(batch):
    batch.append("finalized")

def batcher_finalize(batcher):
    batcher["name"] = "finalized"
    limits.ended.append(batcher)
"""


def config(path: str | None = None) -> ModelConfig:
    made = config_of([("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])], max_batch_size=8)
    if path is not None:
        made.parameters["TRITON_BATCH_STRATEGY_PATH"] = ModelParameter(string_value=path)
    made.dynamic_batching = ModelDynamicBatching()
    return made


def write(path: Path, code: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(code))
    return path


def strategy_of(source: ModelSource, path: str | None = None) -> BatchStrategy:
    strategy = load_batch_strategy(source, config(path))
    assert strategy is not None
    return strategy


def fault_of(
    source: ModelSource, path: str | None = None, code: ErrorCode = ErrorCode.INVALID_ARG
) -> str:
    modules, search_path = set(sys.modules), list(sys.path)
    with pytest.raises(RequestError) as caught:
        load_batch_strategy(source, config(path))
    assert caught.value.code is code
    assert not {name for name in set(sys.modules) - modules if name.startswith("tritrio_model_")}
    assert sys.path == search_path
    assert caught.value.message.startswith("model 'm'")
    return caught.value.message.removeprefix("model 'm'")


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    return source_in(tmp_path / "models")


def answering(value: bool) -> str:
    return f"def batch_include_request(request, batch):\n    return {value}\n"


def test_a_model_without_a_strategy_or_without_batching_has_none(source: ModelSource) -> None:
    assert load_batch_strategy(source, config()) is None
    write(source.version_directory / "batchstrategy.py", ONLY_INCLUDE)
    without = config()
    without.dynamic_batching = None
    assert load_batch_strategy(source, without) is None


def test_the_functions_decide_who_joins_a_batch(source: ModelSource) -> None:
    write(source.version_directory / "batchstrategy.py", COUNTING)
    write(source.model_directory / "limits.py", "ended = []")
    strategy = strategy_of(source)
    first, second = strategy.begin(), strategy.begin()
    three = request_of(np.zeros((3, 1), np.float32))
    one = request_of(np.zeros((1, 1), np.float32))
    assert strategy.include(first, three) is True
    assert strategy.include(first, three) is False
    assert strategy.include(first, one) is True
    assert strategy.include(second, three) is True
    strategy.end(first)
    assert (first, second) == ([0, "finalized"], [1])
    (module,) = [m for n, m in sys.modules.items() if n.endswith(".limits") and hasattr(m, "ended")]
    strategy.close()
    strategy.close()
    assert module.ended == [{"max": 8, "name": "finalized"}]
    assert module.__name__ not in sys.modules


def test_the_version_directory_goes_before_the_model_directory(source: ModelSource) -> None:
    write(source.model_directory / "batchstrategy.py", answering(False))
    assert strategy_of(source).include(None, request_of(floats(1))) is False
    write(source.version_directory / "batchstrategy.py", answering(True))
    assert strategy_of(source).include(None, request_of(floats(1))) is True


def test_the_parameter_goes_before_both(source: ModelSource) -> None:
    write(source.version_directory / "batchstrategy.py", answering(False))
    path = write(source.model_directory / "other" / "mine.py", answering(True))
    for text in (str(path), "other/mine.py"):
        strategy = strategy_of(source, text)
        assert strategy.include(None, request_of(floats(1))) is True
        strategy.close()


def test_batch_include_request_may_be_alone(source: ModelSource) -> None:
    write(source.version_directory / "batchstrategy.py", ONLY_INCLUDE)
    strategy = strategy_of(source)
    batch = strategy.begin()
    assert strategy.include(batch, request_of(floats(1))) is True
    strategy.end(batch)
    strategy.close()


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        (
            "",
            (
                "'batch_include_request', 'batch_initialize', 'batch_finalize', "
                "'batcher_initialize', 'batcher_finalize'"
            ),
        ),
        (COUNTING.replace("def batch_finalize", "def other"), "'batch_finalize'"),
        (
            ONLY_INCLUDE + "def batch_initialize(batcher): pass\nbatch_finalize = 3",
            "'batch_finalize', 'batcher_initialize', 'batcher_finalize'",
        ),
    ],
)
def test_a_part_of_the_functions_is_an_error(source: ModelSource, code: str, missing: str) -> None:
    write(source.version_directory / "limits.py", "ended = []")
    write(source.version_directory / "batchstrategy.py", code)
    assert fault_of(source) == (
        ": not all custom batching functions are defined in 'batchstrategy.py', missing "
        f"[{missing}]; expected all of them, or batch_include_request alone"
    )


def test_a_path_out_of_the_repository_is_an_error(source: ModelSource, tmp_path: Path) -> None:
    outside = write(tmp_path / "outside.py", answering(True))
    link = source.version_directory / "batchstrategy.py"
    link.symlink_to(outside)
    for path, text in (
        (str(outside), str(outside)),
        ("../../outside.py", f"{source.model_directory}/../../outside.py"),
        ("1/batchstrategy.py", str(link)),
        (None, str(link)),
    ):
        assert fault_of(source, path) == (
            f": expected a batch strategy inside the model repository '{tmp_path}/models', got "
            f"'{text}', which is '{outside}'"
        )


def test_another_model_of_the_repository_may_have_the_file(
    source: ModelSource, tmp_path: Path
) -> None:
    write(tmp_path / "models" / "common" / "mine.py", answering(True))
    assert strategy_of(source, "../common/mine.py").include(None, request_of(floats(1))) is True


def test_a_model_directory_that_is_a_link_may_have_a_strategy(
    source: ModelSource, tmp_path: Path
) -> None:
    real = source_in(tmp_path / "elsewhere", name="real")
    write(real.version_directory / "batchstrategy.py", answering(True))
    linked = tmp_path / "models" / "linked"
    linked.symlink_to(real.model_directory)
    there = ModelSource("m", 1, linked, linked / "1")
    assert strategy_of(there).include(None, request_of(floats(1))) is True


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("none.py", "there is no batch strategy '{directory}/none.py'"),
        ("1", "expected a file for batch strategy '{directory}/1', got none"),
        ("", "TRITON_BATCH_STRATEGY_PATH must name a file, got ''"),
    ],
)
def test_a_path_to_no_file_is_an_error(source: ModelSource, path: str, fault: str) -> None:
    assert fault_of(source, path) == f": {fault.format(directory=source.model_directory)}"


@pytest.mark.parametrize("path", [None, "1/batchstrategy.so"])
def test_a_c_library_is_refused(source: ModelSource, path: str | None) -> None:
    library = write(source.version_directory / "batchstrategy.so", "")
    assert fault_of(source, path) == (
        ": expected a Python file with the function batch_include_request as batch strategy, got "
        f"the C library '{library}', which cannot be used"
    )


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("import nowhere", "importing batchstrategy.py raised ModuleNotFoundError: No module"),
        ("raise SystemExit('so')", "importing batchstrategy.py raised SystemExit: so"),
        (
            COUNTING.replace("return {", "raise ValueError('so')\n    return {"),
            "batcher_initialize raised ValueError: so",
        ),
    ],
)
def test_code_that_raises_fails_the_load(source: ModelSource, code: str, fault: str) -> None:
    write(source.version_directory / "limits.py", "ended = []")
    write(source.version_directory / "batchstrategy.py", code)
    assert fault_of(source, code=ErrorCode.INTERNAL).startswith(
        f" version 1: batch strategy: {fault}"
    )


def test_a_request_can_be_read_and_not_changed_or_answered(source: ModelSource) -> None:
    write(
        source.version_directory / "batchstrategy.py",
        """
        import triton_python_backend_utils as pb_utils
        def batch_include_request(request, batch):
            assert request.request_id() == "r"
            assert request.requested_output_names() == ["OUTPUT0"]
            assert request.parameters() == '{"k": 1}'
            assert pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy().tolist() == [[5]]
            request.set_flags(3)
            request.get_response_sender().send(pb_utils.InferenceResponse())
        """,
    )
    request = request_of(floats(5), request_id="r")
    request.parameters["k"] = 1
    with pytest.raises(TritonModelException, match="a batch strategy cannot answer requests"):
        strategy_of(source).include(None, request)
    assert (request.sequence_start, request.sequence_end) == (False, False)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("return 1", TypeError, "batch_include_request must return True or False, got int"),
        ("pass", TypeError, "batch_include_request must return True or False, got NoneType"),
        ("raise KeyError('k')", KeyError, "'k'"),
        ("raise SystemExit(3)", RuntimeError, "batch_include_request raised SystemExit: 3"),
    ],
)
def test_a_fault_of_a_function_is_an_exception(
    source: ModelSource, body: str, error: type[Exception], message: str
) -> None:
    code = f"def batch_include_request(request, batch):\n    {body}\n"
    write(source.version_directory / "batchstrategy.py", code)
    with pytest.raises(error) as caught:
        strategy_of(source).include(None, request_of(floats(1)))
    assert str(caught.value) == message


def test_a_fault_at_the_end_is_logged(
    source: ModelSource, caplog: pytest.LogCaptureFixture
) -> None:
    write(source.version_directory / "limits.py", "")  # has no list of those that ended
    write(source.version_directory / "batchstrategy.py", COUNTING)
    strategy_of(source).close()
    assert caplog.messages == [
        (
            "model 'm' version 1: batch strategy: batcher_finalize raised AttributeError: "
            "module 'limits' has no attribute 'ended'"
        )
    ]
