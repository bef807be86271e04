"""The tensors the server adds to requests of a sequence: controls, and states with their values.

A state is handed from one request of a sequence to the next: what the model left behind as its
`output_name` is its `input_name` next time. Controls say where in its sequence a request stands.
Tensors made once are shared by all requests, so none of them may be written.
Source: Triton model_config.proto, ModelSequenceBatching, and its sequence batcher.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from struct import Struct
from typing import Final, final

from ._config_faults import fault
from .dtypes import BYTES, ITEM_SIZE_BYTES
from .errors import ErrorCode, RequestError
from .model_spec import INVALID_DATATYPE, StateSpec, datatype_name, states_of
from .pb.inference import (
    ModelConfig,
    ModelSequenceBatchingControl,
    ModelSequenceBatchingControlKind as Kind,
    ModelSequenceBatchingInitialState,
)
from .request_rules import bytes_elements_fault
from .requests import InferRequest
from .tensors import Shape, Tensor, encode_bytes_elements
from .wording import shape_text

INITIAL_STATE_DIRECTORY: Final = "initial_state"
"""Where the data files of initial states lie in a model's directory."""

_LENGTH_BYTES: Final = 4
"""Bytes of an empty BYTES element: its length."""


def initial_state_files(config: ModelConfig) -> dict[str, str]:
    """Return state input name -> its data file, relative to the model's directory.

    Raises:
      RequestError: INVALID_ARG; a data file is not inside the directory of such files.
    """
    files: dict[str, str] = {}
    for name, initial in _initial_states(config).items():
        if initial.data_file is not None:
            path = PurePosixPath(initial.data_file)
            leads_out = path.is_absolute() or ".." in path.parts
            if not path.parts or leads_out or "\0" in initial.data_file:
                raise fault(
                    config,
                    f"sequence_batching: initial_state of '{name}': data_file must be a file "
                    f"inside '{INITIAL_STATE_DIRECTORY}', got '{initial.data_file}'",
                )
            files[name] = f"{INITIAL_STATE_DIRECTORY}/{path}"
    return files


def _initial_states(config: ModelConfig) -> dict[str, ModelSequenceBatchingInitialState]:
    sequence = config.sequence_batching
    states = [] if sequence is None else sequence.state
    return {state.input_name: state.initial_state[0] for state in states if state.initial_state}


@final
class SequenceTensors:
    """What one model's requests need beside the inputs of the client.

    Args:
      config: Completed, normalised and validated.
      initial_files: Content of the files that `initial_state_files` names, by state input name.

    Raises:
      RequestError: INVALID_ARG; a data file does not hold the state, or a state has no data_type,
        bad dims, or the output of another state. Names the model and the state.
    """

    def __init__(self, config: ModelConfig, initial_files: Mapping[str, bytes]) -> None:
        self._model_name = config.name
        self._batch: Shape = (1,) if config.max_batch_size > 0 else ()
        self._states = {state.output_name: state for state in states_of(config)}
        _check_states(config)
        self._initial = {
            state.input_name: _initial_tensor(config, state, initial_files)
            for state in self._states.values()
        }
        self._start: tuple[Tensor, Tensor] | None = None  # (false, true)
        self._end: tuple[Tensor, Tensor] | None = None
        self._ready: tuple[Tensor, Tensor] | None = None
        self._correlation: tuple[str, str] | None = None  # (name, datatype)
        sequence = config.sequence_batching
        for tensor in sequence.control_input if sequence is not None else ():
            for control in tensor.control:
                self._add_control(tensor.name, control)

    def _add_control(self, name: str, control: ModelSequenceBatchingControl) -> None:
        if control.kind == Kind.CONTROL_SEQUENCE_CORRID:
            self._correlation = (name, datatype_name(control.data_type))
            return
        datatype, false, true = _packed_values(control)
        shape = (*self._batch, 1)
        pair = (Tensor(name, datatype, shape, raw=false), Tensor(name, datatype, shape, raw=true))
        if control.kind == Kind.CONTROL_SEQUENCE_START:
            self._start = pair
        elif control.kind == Kind.CONTROL_SEQUENCE_END:
            self._end = pair
        else:
            self._ready = pair

    def initial_states(self) -> dict[str, Tensor]:
        """Return state input name -> value for the first request of a sequence.

        The dict is the caller's; the tensors are shared and read-only.
        """
        return self._initial.copy()

    def next_states(
        self, outputs: Mapping[str, Tensor], previous: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return state input name -> value for the next request of a sequence.

        Args:
          outputs: State output name -> what the backend left; other names are ignored.
          previous: Input name -> value the request had; kept for states that were left out.

        Returns:
          A new dict; the tensors share their elements with those given.

        Raises:
          RequestError: INTERNAL; a state came with another data type or shape than configured.
        """
        states = dict(previous)
        for name, spec in self._states.items():
            tensor = outputs.get(name)
            if tensor is not None:
                self._check_state(tensor, spec)
                raw = tensor.given_raw
                states[spec.input_name] = Tensor(
                    spec.input_name,
                    tensor.datatype,
                    tensor.shape,
                    raw=raw,
                    array=tensor.array if raw is None else None,
                )
        return states

    def _check_state(self, tensor: Tensor, spec: StateSpec) -> None:
        if tensor.datatype != spec.datatype:
            raise RequestError(
                ErrorCode.INTERNAL,
                f"model '{self._model_name}': state '{spec.output_name}' must be {spec.datatype}, "
                f"got {tensor.datatype}",
            )
        shape = tensor.shape
        if len(shape) != len(spec.shape) or any(
            want not in (-1, got) for want, got in zip(spec.shape, shape, strict=True)
        ):
            raise RequestError(
                ErrorCode.INTERNAL,
                f"model '{self._model_name}': state '{spec.output_name}' must have shape "
                f"{shape_text(spec.shape)}, got {shape_text(shape)}",
            )

    def complete(
        self, request: InferRequest, *, start: bool, end: bool, states: Mapping[str, Tensor]
    ) -> None:
        """Add the controls and states to a request, in place of any it has, and set its flags.

        Args:
          request: With its `sequence_id`; the READY control will be true.
          start: Whether it is the first one of its sequence.
          end: Whether it is the last one of its sequence.
          states: As `initial_states` or `next_states` returned them.
        """
        request.sequence_start = start
        request.sequence_end = end
        self._control(request.inputs, start, end, True, request.sequence_id)
        request.inputs.update(states)

    def _control(
        self,
        inputs: dict[str, Tensor],
        start: bool,
        end: bool,
        ready: bool,
        sequence_id: int | str,
    ) -> None:
        for pair, value in ((self._start, start), (self._end, end), (self._ready, ready)):
            if pair is not None:
                tensor = pair[value]
                inputs[tensor.name] = tensor
        if self._correlation is not None:
            name, datatype = self._correlation
            raw = _packed_id(sequence_id, datatype)
            inputs[name] = Tensor(name, datatype, (*self._batch, 1), raw=raw)

    def filler(self, like: InferRequest) -> InferRequest:
        """Return a null request, which holds the place of a slot that has no request.

        It has the inputs and shapes of `like` with zeros for data, controls that are all false, the
        correlation id 0 or "", and states of zeros. It counts as cancelled: nobody waits for it.

        Args:
          like: A request of the same batch, completed.
        """
        null = InferRequest(like.model_name, like.model_version)
        null.spec = like.spec
        null.outputs = like.outputs  # so that no other output is computed for it
        null.batch_size = like.batch_size
        null.cancelled = True
        null.inputs = {
            name: _zeros(name, tensor.datatype, tensor.shape)
            for name, tensor in like.inputs.items()
        }
        self._control(null.inputs, False, False, False, 0)
        return null


def _check_states(config: ModelConfig) -> None:
    outputs: set[str] = set()
    for state in states_of(config):
        label = f"sequence_batching: state '{state.input_name}'"
        if state.datatype == INVALID_DATATYPE:
            raise fault(config, f"{label} has no data_type")
        if any(dim < 1 and dim != -1 for dim in state.dims):
            raise fault(
                config,
                f"{label}: each of its dims must be at least 1 or else -1, "
                f"got {shape_text(state.dims)}",
            )
        if not state.output_name or state.output_name in outputs:
            got = f"'{state.output_name}' of another state" if state.output_name else "none"
            raise fault(config, f"{label}: expected an output_name of its own, got {got}")
        outputs.add(state.output_name)


def _initial_tensor(
    config: ModelConfig, state: StateSpec, initial_files: Mapping[str, bytes]
) -> Tensor:
    """Return the value of a state before the first request."""
    name = state.input_name
    batch = state.shape[: len(state.shape) - len(state.dims)]
    initial = _initial_states(config).get(name)
    if initial is None:
        dims = tuple([1 if dim == -1 else dim for dim in state.dims])
        return _zeros(name, state.datatype, (*batch, *dims))
    shape = (*batch, *initial.dims)
    if initial.data_file is None:
        return _zeros(name, state.datatype, shape)
    data = initial_files[name]
    label = f"sequence_batching: initial_state of '{name}': file '{initial.data_file}'"
    if state.datatype == BYTES:
        wrong = bytes_elements_fault(data, math.prod(shape))
        if wrong is not None:
            raise fault(config, f"{label}: {wrong}")
        return Tensor(name, BYTES, shape, raw=data)
    byte_size = math.prod(shape) * ITEM_SIZE_BYTES[state.datatype]
    if len(data) < byte_size:
        raise fault(config, f"{label} must hold {byte_size} bytes, got {len(data)}")
    return Tensor(name, state.datatype, shape, raw=data[:byte_size])


def _zeros(name: str, datatype: str, shape: Shape) -> Tensor:
    """Return a read-only tensor of zeros, or of empty strings."""
    item_size = ITEM_SIZE_BYTES[datatype] or _LENGTH_BYTES
    return Tensor(name, datatype, shape, raw=bytes(math.prod(shape) * item_size))


def _packed_values(control: ModelSequenceBatchingControl) -> tuple[str, bytes, bytes]:
    """Return the data type of a control and the raw forms of its false and its true."""
    if control.int32_false_true:
        false, true = map(Struct("<i").pack, control.int32_false_true)
        return "INT32", false, true
    if control.fp32_false_true:
        false, true = map(Struct("<f").pack, control.fp32_false_true)
        return "FP32", false, true
    false, true = map(Struct("<?").pack, control.bool_false_true)
    return "BOOL", false, true


def _packed_id(sequence_id: int | str, datatype: str) -> bytes:
    """Return the raw form of a correlation id; numbers are cut to their low bits."""
    if datatype == BYTES:  # the id is a number if the server gave it, and 0 is none
        return encode_bytes_elements([str(sequence_id or "")])
    assert isinstance(sequence_id, int), "request_rules lets no text pass to a model with numbers"
    size = ITEM_SIZE_BYTES[datatype]
    return (sequence_id & ((1 << 8 * size) - 1)).to_bytes(size, "little")
