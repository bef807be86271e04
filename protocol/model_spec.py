"""What requests to one model version are checked against, taken once a load from its config.

Sequence controls and states are not among its inputs: the server feeds those, not a client.
Source: Triton `model_config.proto`, ModelInput, ModelOutput and ModelSequenceBatching.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias, final

from .dtypes import PROTOCOL_NAMES
from .pb.inference import ModelConfig, ModelSequenceBatchingControlKind, ModelTensorReshape
from .tensors import Shape

INVALID_DATATYPE: Final = "INVALID"
"""What a `data_type` of the config without a protocol string is called."""

AcceptedShape: TypeAlias = tuple[int, int, int, Shape | None]
"""Rows, bytes (-1 for BYTES), elements, and the shape after `reshape` if there is one."""


@final
class InputSpec:
    """One input of a model.

    Attributes:
      name: The input's name.
      datatype: Protocol string.
      dims: Without the batch dimension; -1 is variable.
      shape: What a request must have: `dims`, with a leading -1 if the model batches.
      reshape: What the backend sees in place of `dims`, or None.
      optional: Whether a request may leave the input out.
      allow_ragged_batch: Whether requests in one batch may differ in shape.
      is_shape_tensor: Whether the values are a shape.
    """

    __slots__ = (
        "allow_ragged_batch",
        "datatype",
        "dims",
        "is_shape_tensor",
        "name",
        "optional",
        "reshape",
        "shape",
    )

    def __init__(
        self,
        name: str,
        datatype: str,
        dims: Shape,
        *,
        batches: bool = False,
        reshape: Shape | None = None,
        optional: bool = False,
        allow_ragged_batch: bool = False,
        is_shape_tensor: bool = False,
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.dims = dims
        self.shape = (-1, *dims) if batches else dims
        self.reshape = reshape
        self.optional = optional
        self.allow_ragged_batch = allow_ragged_batch
        self.is_shape_tensor = is_shape_tensor

    def __repr__(self) -> str:
        return f"<InputSpec {self.name} {self.datatype}{list(self.shape)}>"


@final
class OutputSpec:
    """One output of a model; attributes as of `InputSpec`.

    Attributes:
      label_filename: File with one class label a line, or "".
      labels: The lines of that file, given by whoever loads the model.
    """

    __slots__ = ("datatype", "dims", "label_filename", "labels", "name", "reshape", "shape")

    def __init__(
        self,
        name: str,
        datatype: str,
        dims: Shape,
        *,
        batches: bool = False,
        reshape: Shape | None = None,
        label_filename: str = "",
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.dims = dims
        self.shape = (-1, *dims) if batches else dims
        self.reshape = reshape
        self.label_filename = label_filename
        self.labels: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<OutputSpec {self.name} {self.datatype}{list(self.shape)}>"


@final
class StateSpec:
    """One tensor that a sequence model hands from one request of a sequence to the next.

    Attributes:
      input_name: Input that gets the value.
      output_name: Output that makes the next value.
      datatype: Protocol string.
      dims: Without the batch dimension; -1 is variable.
      shape: What each request's tensor has: `dims`, with a leading 1 if the model batches.
    """

    __slots__ = ("datatype", "dims", "input_name", "output_name", "shape")

    def __init__(
        self, input_name: str, output_name: str, datatype: str, dims: Shape, *, batches: bool
    ) -> None:
        self.input_name = input_name
        self.output_name = output_name
        self.datatype = datatype
        self.dims = dims
        self.shape = (1, *dims) if batches else dims

    def __repr__(self) -> str:
        return f"<StateSpec {self.input_name} {self.datatype}{list(self.shape)}>"


@final
class ModelSpec:
    """One version of a model, as requests see it.

    Attributes:
      name: The model's name.
      version: Decimal text.
      platform: `platform` of the config, or `backend` where that is empty.
      max_batch_size: 0 means that shapes have no batch dimension.
      decoupled: Whether a request may have any number of responses.
      inputs: Name -> input, in config order.
      outputs: Name -> output, in config order.
      required_inputs: Names of the inputs that are not optional.
      sequences: Whether each request belongs to a sequence.
      iterative: Whether each request is a sequence, which the model may execute again and again.
      correlation_id: (control tensor, datatype) that sequence ids must fit, or None.
      states: Output name -> state, in config order.
      accepted: (name, datatype, shape) of inputs that passed the shape rules, kept by
        `request_rules` so that they are not checked again.
    """

    __slots__ = (
        "accepted",
        "correlation_id",
        "decoupled",
        "inputs",
        "iterative",
        "max_batch_size",
        "name",
        "outputs",
        "platform",
        "required_inputs",
        "sequences",
        "states",
        "version",
    )

    def __init__(
        self,
        name: str,
        version: str,
        *,
        inputs: list[InputSpec],
        outputs: list[OutputSpec],
        platform: str = "",
        max_batch_size: int = 0,
        decoupled: bool = False,
        sequences: bool = False,
        iterative: bool = False,
        correlation_id: tuple[str, str] | None = None,
        states: Sequence[StateSpec] = (),
    ) -> None:
        self.name = name
        self.version = version
        self.platform = platform
        self.max_batch_size = max_batch_size
        self.decoupled = decoupled
        self.inputs = {spec.name: spec for spec in inputs}
        self.outputs = {spec.name: spec for spec in outputs}
        self.required_inputs = frozenset(spec.name for spec in inputs if not spec.optional)
        self.sequences = sequences
        self.iterative = iterative
        self.correlation_id = correlation_id
        self.states = {spec.output_name: spec for spec in states}
        self.accepted: dict[tuple[str, str, Shape], AcceptedShape] = {}

    def __repr__(self) -> str:
        return f"<ModelSpec {self.name} version {self.version}>"

    @classmethod
    def from_config(cls, config: ModelConfig, version: int) -> ModelSpec:
        """Return the spec of a final (completed and validated) configuration."""
        batches = config.max_batch_size > 0
        policy = config.model_transaction_policy
        sequence = config.sequence_batching
        return cls(
            config.name,
            str(version),
            inputs=[
                InputSpec(
                    tensor.name,
                    datatype_name(tensor.data_type),
                    tuple(tensor.dims),
                    batches=batches,
                    reshape=_reshape(tensor.reshape),
                    optional=tensor.optional,
                    allow_ragged_batch=tensor.allow_ragged_batch,
                    is_shape_tensor=tensor.is_shape_tensor,
                )
                for tensor in config.input
            ],
            outputs=[
                OutputSpec(
                    tensor.name,
                    datatype_name(tensor.data_type),
                    tuple(tensor.dims),
                    batches=batches,
                    reshape=_reshape(tensor.reshape),
                    label_filename=tensor.label_filename,
                )
                for tensor in config.output
            ],
            platform=config.platform or config.backend,
            max_batch_size=config.max_batch_size,
            decoupled=policy is not None and policy.decoupled,
            sequences=sequence is not None,
            iterative=sequence is not None and sequence.iterative_sequence,
            correlation_id=_correlation_id(config),
            states=states_of(config),
        )


def datatype_name(number: int) -> str:
    """Return the protocol string of a `data_type` in a configuration."""
    return PROTOCOL_NAMES.get(int(number), INVALID_DATATYPE)


def states_of(config: ModelConfig) -> list[StateSpec]:
    """Return the states of a configuration."""
    if config.sequence_batching is None:
        return []
    return [
        StateSpec(
            state.input_name,
            state.output_name,
            datatype_name(state.data_type),
            tuple(state.dims),
            batches=config.max_batch_size > 0,
        )
        for state in config.sequence_batching.state
    ]


def _reshape(reshape: ModelTensorReshape | None) -> Shape | None:
    return None if reshape is None else tuple(reshape.shape)


def _correlation_id(config: ModelConfig) -> tuple[str, str] | None:
    if config.sequence_batching is None:
        return None
    for tensor in config.sequence_batching.control_input:
        for control in tensor.control:
            if control.kind == ModelSequenceBatchingControlKind.CONTROL_SEQUENCE_CORRID:
                return tensor.name, datatype_name(control.data_type)
    return None
