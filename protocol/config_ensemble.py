"""Whether the steps of an ensemble make a graph: the checks that need its configuration alone.

Each check raises INVALID_ARG with the ensemble, the step and the tensor; the first one ends the
validation. What needs the composing models is checked when those are loaded.
Source: Triton's validation of `ModelEnsembling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Final

from ._config_faults import fault
from .pb.inference import ModelConfig, ModelEnsemblingStep

LATEST_VERSION: Final = -1
"""The `model_version` of a step that takes the latest version there is."""


def steps_of(config: ModelConfig) -> list[ModelEnsemblingStep]:
    """Return the steps of an ensemble, in the order in which they are written."""
    return [] if config.ensemble_scheduling is None else config.ensemble_scheduling.step


def composing_models(config: ModelConfig) -> list[str]:
    """Return the names of the models that an ensemble uses, each once."""
    return list(dict.fromkeys(step.model_name for step in steps_of(config)))


def step_label(config: ModelConfig, index: int) -> str:
    """Return how errors name a step: by its number, from 0, and its model."""
    return f"step {index} (model '{steps_of(config)[index].model_name}')"


def check_ensemble(config: ModelConfig) -> None:
    """Check the steps of an ensemble.

    Raises:
      RequestError: INVALID_ARG; names the ensemble, the step and the tensor.
    """
    if not steps_of(config):
        raise fault(config, "ensemble_scheduling needs at least one step, got none")
    for index, step in enumerate(steps_of(config)):
        _check_step(config, index, step)
    writers = _writers(config)
    _check_read_tensors(config, writers)
    _check_ensemble_tensors(config, writers)
    _check_cycles(config, writers)


def _check_step(config: ModelConfig, index: int, step: ModelEnsemblingStep) -> None:
    for field in ("model_name", "input_map", "output_map"):
        if not getattr(step, field):
            raise fault(config, f"{step_label(config, index)} needs {field}, got none")
    where = step_label(config, index)
    if step.model_name == config.name:
        raise fault(config, f"{where} uses the ensemble itself")
    if step.model_version < LATEST_VERSION:
        raise fault(
            config,
            f"{where}: model_version must be a version or {LATEST_VERSION} for the latest, got "
            f"{step.model_version}",
        )
    for field in ("input_map", "output_map"):
        for name, tensor in getattr(step, field).items():
            if not name or not tensor:
                raise fault(
                    config, f"{where}: {field} has an empty name: key '{name}' value '{tensor}'"
                )


def _writers(config: ModelConfig) -> dict[str, int]:
    """Return which step writes each tensor; only one may."""
    given = {tensor.name for tensor in config.input}
    writers: dict[str, int] = {}
    for index, step in enumerate(steps_of(config)):
        for name, tensor in step.output_map.items():
            where = f"{step_label(config, index)}: output '{name}' writes tensor '{tensor}'"
            if tensor in given:
                raise fault(config, f"{where}, which is an input of the ensemble")
            if tensor in writers:
                earlier = step_label(config, writers[tensor])
                raise fault(config, f"{where}, which {earlier} writes already")
            writers[tensor] = index
    return writers


def _check_read_tensors(config: ModelConfig, writers: dict[str, int]) -> None:
    """Check that somebody makes what the steps read, and that somebody reads what they make."""
    given = {tensor.name for tensor in config.input}
    read = set[str]()
    for index, step in enumerate(steps_of(config)):
        for name, tensor in step.input_map.items():
            read.add(tensor)
            if tensor not in given and tensor not in writers:
                raise fault(
                    config,
                    f"{step_label(config, index)}: input '{name}' reads tensor '{tensor}', which "
                    "is neither an input of the ensemble nor written by a step",
                )
    for unused in sorted(given - read):
        raise fault(config, f"no step uses the ensemble's input '{unused}'")
    wanted = {tensor.name for tensor in config.output}
    for written, index in writers.items():
        if written not in read and written not in wanted:
            raise fault(
                config,
                f"tensor '{written}', which {step_label(config, index)} writes, is unused: no step "
                "reads it and it is no output of the ensemble",
            )


def _check_ensemble_tensors(config: ModelConfig, writers: dict[str, int]) -> None:
    for tensor in config.output:
        if tensor.name not in writers:
            raise fault(config, f"no step writes the ensemble's output '{tensor.name}'")


def _check_cycles(config: ModelConfig, writers: dict[str, int]) -> None:
    try:
        TopologicalSorter(sources_of(config, writers)).prepare()
    except CycleError as error:
        cycle = " -> ".join(step_label(config, index) for index in error.args[1])
        raise fault(config, f"its steps wait for each other in a circle: {cycle}") from None


def sources_of(config: ModelConfig, writers: Mapping[str, int]) -> dict[int, set[int]]:
    """Return for each step the steps that it reads tensors of.

    Args:
      config: Of the ensemble.
      writers: Tensor -> the step that writes it.
    """
    return {
        index: {writers[tensor] for tensor in step.input_map.values() if tensor in writers}
        for index, step in enumerate(steps_of(config))
    }
