from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.builders import config_of
from tests.backends.onnx_files import write_identity
from tritrio.backends.onnx_session import (
    SessionSettings,
    instance_count,
    open_session,
    read_settings,
)
from tritrio.protocol.errors import RequestError
from tritrio.protocol.pb.inference import (
    ModelConfig,
    ModelInstanceGroup,
    ModelOperations,
    ModelOptimizationPolicy,
    ModelOptimizationPolicyExecutionAccelerators as Accelerators,
    ModelOptimizationPolicyExecutionAcceleratorsAccelerator as Accelerator,
    ModelOptimizationPolicyGraph,
    ModelParameter,
)


def settings_of(directory: Path, config: ModelConfig, *, cpu_threads: int = 3) -> SessionSettings:
    return read_settings(write_identity(directory), config, cpu_threads)


def test_without_parameters_a_session_keeps_to_its_share_of_the_cpus(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, config_of())
    assert (settings.intra_op_threads, settings.inter_op_threads) == (3, 3)
    assert (settings.parallel, settings.graph_level) == (False, 0)
    assert (settings.memory_arena, settings.memory_pattern) == (True, True)


def test_every_parameter_reaches_the_session(tmp_path: Path) -> None:
    config = config_of(
        intra_op_thread_count="2",
        inter_op_thread_count="5",
        execution_mode="1",
        enable_mem_arena="0",
        enable_mem_pattern="0",
    )
    config.optimization = ModelOptimizationPolicy(graph=ModelOptimizationPolicyGraph(level=-1))
    settings = settings_of(tmp_path, config)
    options = open_session(settings, "m").get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 5)
    assert options.execution_mode.name == "ORT_PARALLEL"
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
    assert options.graph_optimization_level.name == "ORT_ENABLE_BASIC"
    for pool in ("intra", "inter"):
        assert options.get_session_config_entry(f"session.{pool}_op.allow_spinning") == "0"


@pytest.mark.parametrize(
    ("level", "name"),
    [(0, "ORT_ENABLE_ALL"), (1, "ORT_ENABLE_EXTENDED"), (2, "ORT_DISABLE_ALL")],
)
def test_graph_levels_have_tritons_numbers(tmp_path: Path, level: int, name: str) -> None:
    config = config_of()
    config.optimization = ModelOptimizationPolicy(graph=ModelOptimizationPolicyGraph(level=level))
    session = open_session(settings_of(tmp_path, config), "m")
    assert session.get_session_options().graph_optimization_level.name == name


def test_a_thread_count_of_zero_is_the_share_of_the_cpus(tmp_path: Path) -> None:
    config = config_of(intra_op_thread_count="0", inter_op_thread_count="0")
    settings = settings_of(tmp_path, config)
    assert (settings.intra_op_threads, settings.inter_op_threads) == (3, 3)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("intra_op_thread_count", "-1", "a whole number from 0 to 1024"),
        ("inter_op_thread_count", "2.5", "a whole number from 0 to 1024"),
        ("intra_op_thread_count", "1025", "a whole number from 0 to 1024"),
        ("execution_mode", "2", "a whole number from 0 to 1"),
        ("enable_mem_arena", "true", "a whole number from 0 to 1"),
        ("enable_mem_pattern", "", "a whole number from 0 to 1"),
    ],
)
def test_a_parameter_that_cannot_be_is_named(
    tmp_path: Path, key: str, value: str, expected: str
) -> None:
    config = config_of()
    config.parameters[key] = ModelParameter(string_value=value)
    with pytest.raises(RequestError) as caught:
        settings_of(tmp_path, config)
    assert caught.value.message == (
        f"model 'm': parameter '{key}' must be {expected}, got '{value}'"
    )


def graph_level(config: ModelConfig) -> None:
    config.optimization = ModelOptimizationPolicy(graph=ModelOptimizationPolicyGraph(level=3))


def gpu_accelerator(config: ModelConfig) -> None:
    config.optimization = ModelOptimizationPolicy(
        execution_accelerators=Accelerators(
            gpu_execution_accelerator=[Accelerator(name="tensorrt")]
        )
    )


def cpu_accelerator(config: ModelConfig) -> None:
    config.optimization = ModelOptimizationPolicy(
        execution_accelerators=Accelerators(
            cpu_execution_accelerator=[Accelerator(name="openvino")]
        )
    )


def operators(config: ModelConfig) -> None:
    config.model_operations = ModelOperations(op_library_filename=["ops.so"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            graph_level,
            "model 'm': parameter 'optimization.graph.level' must be -1, 0, 1 or 2, got '3'",
        ),
        (gpu_accelerator, "got the execution accelerator 'tensorrt', which is not available"),
        (cpu_accelerator, "got the execution accelerator 'openvino', which is not available"),
        (operators, "got the library 'ops.so', which is not available"),
    ],
)
def test_what_is_not_available_is_named(
    tmp_path: Path, change: Callable[[ModelConfig], None], message: str
) -> None:
    config = config_of()
    change(config)
    with pytest.raises(RequestError) as caught:
        settings_of(tmp_path, config)
    assert message in caught.value.message


def test_instances_of_all_groups_count() -> None:
    config = config_of()
    assert instance_count(config, 2) == 2
    config.instance_group = [ModelInstanceGroup(count=3), ModelInstanceGroup()]
    assert instance_count(config, 2) == 5
