"""Whether an ensemble fits the models it is made of.  Pure: no trio, no clock.

Its own structure was checked before (see `config_ensemble`); here the loaded composing models are
looked at, and the graph is made that its requests follow.
Source: Triton's validation of ensembles against their composing models.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from graphlib import TopologicalSorter
from typing import Final, NamedTuple, TypeVar

from ..protocol.config_ensemble import LATEST_VERSION, sources_of, step_label, steps_of
from ..protocol.errors import RequestError, invalid_argument
from ..protocol.model_spec import InputSpec, ModelSpec, OutputSpec
from ..protocol.pb.inference import ModelConfig, ModelTransactionPolicy
from ..protocol.tensors import Shape
from ..protocol.wording import names_text, shape_text
from ._ensemble_graph import ROOT, EnsembleGraph, Step

NESTING_MAX: Final = 32
"""Ensembles within one another. The end of a request ends those of its steps, and so on inwards, in
calls within one another: some five a level, of the thousand that Python lets nest."""

Found = TypeVar("Found", ModelSpec, ModelConfig)


class _Form(NamedTuple):
    """What a tensor is in one place: who says so, data type, and shape with the batch."""

    place: str
    datatype: str
    shape: Shape


def with_transaction_policy(
    config: ModelConfig, find: Callable[[str, str], ModelConfig]
) -> ModelConfig:
    """Return the configuration of an ensemble that says whether it is decoupled.

    It is if one of its steps is, whatever was written. A step that cannot be found counts for
    nothing here; `make_graph` says why.

    Args:
      config: Of the ensemble, validated.
      find: Returns the final configuration of a loaded version, or raises.

    Raises:
      RequestError: INVALID_ARG; it wants its responses cached, but is decoupled or has sequences.
    """
    decoupled = False
    for index in range(len(steps_of(config))):
        with suppress(RequestError):
            policy = _find(config, index, find).model_transaction_policy
            decoupled = decoupled or (policy is not None and policy.decoupled)
    if config.response_cache is not None and config.response_cache.enable:
        _check_cache(config, find, decoupled=decoupled)
    config = deepcopy(config)
    config.model_transaction_policy = ModelTransactionPolicy(decoupled=decoupled)
    return config


def too_deep(
    waves: Sequence[Collection[str]], needed: Mapping[str, Collection[str]]
) -> dict[str, RequestError]:
    """Return the error of each ensemble that nests others deeper than `NESTING_MAX`.

    Args:
      waves: The ensembles, by how deep they nest.
      needed: Ensemble -> the models it uses.
    """
    depths = {name: depth for depth, wave in enumerate(waves, 1) for name in wave}
    errors: dict[str, RequestError] = {}
    for name, depth in depths.items():
        if depth <= NESTING_MAX:
            continue
        innermost = name
        while depths[innermost] > 1:
            innermost = max(needed[innermost], key=lambda each: depths.get(each, 0))
        errors[name] = invalid_argument(
            f"ensemble '{name}' nests ensembles {depth} deep, down to '{innermost}'; expected at "
            f"most {NESTING_MAX}"
        )
    return errors


def make_graph(
    config: ModelConfig, spec: ModelSpec, find: Callable[[str, str], ModelSpec]
) -> EnsembleGraph:
    """Return the graph of an ensemble whose composing models are loaded.

    Outputs of the ensemble that name no label file get the labels of the composing model.

    Args:
      config: Of the ensemble, validated.
      spec: Of the ensemble; its output labels are changed.
      find: Returns a loaded version by name and version ("" for the latest), or raises.

    Raises:
      RequestError: INVALID_ARG; names the ensemble, the step, the model and the tensor.
    """
    try:
        models = [_find(config, index, find) for index in range(len(steps_of(config)))]
        for index in range(len(models)):
            _check_step(config, index, spec, models[index])
        _check_forms(config, spec, models)
        steps = _steps(config, models)
    except RequestError as error:
        raise invalid_argument(f"ensemble '{config.name}': {error.message}") from None
    _inherit_labels(config, spec, models)
    assert config.ensemble_scheduling is not None
    return EnsembleGraph(
        config.name,
        steps,
        inputs=list(spec.inputs),
        outputs=list(spec.outputs),
        decoupled=spec.decoupled,
        inflight_max=config.ensemble_scheduling.max_inflight_requests,
    )


def version_text(model_version: int) -> str:
    """Return the `model_version` of a step as decimal text; empty for the latest."""
    return "" if model_version == LATEST_VERSION else str(model_version)


def _find(config: ModelConfig, index: int, find: Callable[[str, str], Found]) -> Found:
    step = steps_of(config)[index]
    version = version_text(step.model_version)
    try:
        return find(step.model_name, version)
    except RequestError as error:
        wanted = f"version {version}" if version else "any version"
        hint = (
            f"; an absent model_version reads as 0, {LATEST_VERSION} asks for the latest"
            if step.model_version == 0
            else ""
        )
        raise invalid_argument(
            f"{step_label(config, index)} needs {wanted} of model '{step.model_name}', which is "
            f"not loaded: {error.message}{hint}"
        ) from None


def _check_cache(
    config: ModelConfig, find: Callable[[str, str], ModelConfig], *, decoupled: bool
) -> None:
    """Check that nothing is lost where a response is taken from the cache."""
    if decoupled:
        raise invalid_argument(
            f"ensemble '{config.name}': the response cache does not work with decoupled steps; "
            "disable response_cache"
        )
    stateless: set[tuple[str, str]] = set()
    for index in range(len(steps_of(config))):
        model = _with_sequences(config, index, find, stateless)
        if model:
            raise invalid_argument(
                f"ensemble '{config.name}': the response cache does not work with "
                f"{step_label(config, index)}, since model '{model}' has sequence_batching and "
                "answers by what came before; disable response_cache"
            )


def _with_sequences(
    config: ModelConfig,
    index: int,
    find: Callable[[str, str], ModelConfig],
    stateless: set[tuple[str, str]],
) -> str:
    """Return which model with sequences a step runs, itself or within an ensemble; else "".

    Args:
      config: Of the ensemble.
      index: Of the step.
      find: As of `with_transaction_policy`.
      stateless: The versions that were looked at and have none; changed.
    """
    step = steps_of(config)[index]
    key = step.model_name, version_text(step.model_version)
    if key in stateless:
        return ""
    with suppress(RequestError):
        model = _find(config, index, find)
        if model.sequence_batching is not None:
            return model.name
        for inner in range(len(steps_of(model))):
            if found := _with_sequences(model, inner, find, stateless):
                return found
    stateless.add(key)
    return ""


def _check_step(config: ModelConfig, index: int, spec: ModelSpec, model: ModelSpec) -> None:
    step = steps_of(config)[index]
    where = step_label(config, index)
    kinds: tuple[tuple[str, Mapping[str, str], Mapping[str, object]], ...] = (
        ("input", step.input_map, model.inputs),
        ("output", step.output_map, model.outputs),
    )
    for kind, mapped, known in kinds:
        for name, tensor in mapped.items():
            if name not in known:
                raise invalid_argument(
                    f"{where}: tensor '{tensor}' is mapped to {kind} '{name}', which the model "
                    f"does not have; it has {names_text(known)}"
                )
    for name in model.inputs:
        if name in model.required_inputs and name not in step.input_map:
            raise invalid_argument(f"{where}: its required input '{name}' is not in input_map")
    if 0 < model.max_batch_size < spec.max_batch_size:
        raise invalid_argument(
            f"{where}: the max_batch_size of the model must be 0 or at least the "
            f"{spec.max_batch_size} of the ensemble, got {model.max_batch_size}"
        )


def _check_forms(config: ModelConfig, spec: ModelSpec, models: Sequence[ModelSpec]) -> None:
    """Compare each tensor as it is made with each place where it goes."""
    sources = {
        name: _ensemble_form(f"input '{name}' of the ensemble", given, spec)
        for name, given in spec.inputs.items()
    }
    for index, step in enumerate(steps_of(config)):
        for name, tensor in step.output_map.items():
            made = models[index].outputs[name]
            place = f"output '{name}' of {step_label(config, index)}"
            sources[tensor] = _Form(place, made.datatype, made.shape)
    for index, step in enumerate(steps_of(config)):
        for name, tensor in step.input_map.items():
            taken = models[index].inputs[name]
            place = f"input '{name}' of {step_label(config, index)}"
            _compare(tensor, sources[tensor], _Form(place, taken.datatype, taken.shape))
    for name, wanted in spec.outputs.items():
        form = _ensemble_form(f"output '{name}' of the ensemble", wanted, spec)
        _compare(name, sources[name], form)


def _ensemble_form(place: str, tensor: InputSpec | OutputSpec, spec: ModelSpec) -> _Form:
    """Return an input or output of the ensemble as its steps see it: with `reshape` applied."""
    dims = tensor.dims if tensor.reshape is None else tensor.reshape
    return _Form(place, tensor.datatype, (-1, *dims) if spec.max_batch_size > 0 else dims)


def _compare(tensor: str, made: _Form, taken: _Form) -> None:
    if made.datatype != taken.datatype:
        raise invalid_argument(
            f"tensor '{tensor}' has data type {made.datatype} as {made.place}, but "
            f"{taken.datatype} as {taken.place}"
        )
    fits = len(made.shape) == len(taken.shape) and all(
        -1 in (one, other) or one == other
        for one, other in zip(made.shape, taken.shape, strict=True)
    )
    if not fits:
        raise invalid_argument(
            f"tensor '{tensor}' has shape {shape_text(made.shape)} as {made.place}, but "
            f"{shape_text(taken.shape)} as {taken.place}; where a model batches, the batch "
            "dimension in front counts"
        )


def _steps(config: ModelConfig, models: Sequence[ModelSpec]) -> list[Step]:
    """Return the steps with their origins; only one decoupled step may be the origin of each."""
    written = steps_of(config)
    writers = {
        tensor: index for index, step in enumerate(written) for tensor in step.output_map.values()
    }
    steps: dict[int, Step] = {}

    def origin(what: str, tensors: Iterable[str]) -> int:
        origins: dict[int, str] = {}
        for tensor in tensors:
            if tensor in writers:
                origins.setdefault(steps[writers[tensor]].output_origin, tensor)
        origins.pop(ROOT, None)
        if len(origins) > 1:
            first, second = (f"'{origins[index]}' from {steps[index]}" for index in [*origins][:2])
            raise invalid_argument(
                f"{what} tensors of different decoupled models: {first} and {second}"
            )
        return next(iter(origins), ROOT)

    for index in TopologicalSorter(sources_of(config, writers)).static_order():
        step, model = written[index], models[index]
        steps[index] = Step(
            index,
            step.model_name,
            version_text(step.model_version),
            inputs=tuple(step.input_map.items()),
            outputs=tuple(step.output_map.items()),
            optional=frozenset(model.inputs) - model.required_inputs,
            decoupled=model.decoupled,
            origin=origin(f"{step_label(config, index)} gets", step.input_map.values()),
        )
    origin("its outputs are", [output.name for output in config.output])
    return [steps[index] for index in range(len(written))]


def _inherit_labels(config: ModelConfig, spec: ModelSpec, models: Sequence[ModelSpec]) -> None:
    for index, step in enumerate(steps_of(config)):
        for name, tensor in step.output_map.items():
            output = spec.outputs.get(tensor)
            if output is not None and not output.label_filename:
                output.labels = models[index].outputs[name].labels
