"""What the outputs of a model must look like, and which of them a client wants."""

from __future__ import annotations

from typing import final

from ..protocol.dtypes import NUMPY_DTYPES
from ..protocol.errors import invalid_argument
from ..protocol.model_spec import ModelSpec, OutputSpec
from ..protocol.requests import InferRequest
from ..protocol.tensors import Shape


@final
class OutputForm:
    """One output, as its model makes it and as a client gets it.

    The two shapes differ where the configuration has a `reshape`, which is the model's shape.
    Inputs need no such thing: they are reshaped when a request is validated.

    Args:
      spec: From the model configuration.
      batched: Whether shapes have a batch dimension in front.

    Attributes:
      name: The output's name.
      datatype: Protocol string.
      dtype: The numpy dtype of its array form.
      model_shape: What the model makes; -1 is variable, and so is the batch dimension.

    Source: Triton model_config.proto, ModelOutput, fields `dims` and `reshape`.
    """

    __slots__ = ("_client_shape", "_reshaped", "datatype", "dtype", "model_shape", "name")

    def __init__(self, spec: OutputSpec, *, batched: bool) -> None:
        dtype = NUMPY_DTYPES.get(spec.datatype)
        if dtype is None:
            raise invalid_argument(f"output '{spec.name}' has no data_type in the configuration")
        self.name = spec.name
        self.datatype = spec.datatype
        self.dtype = dtype
        self._client_shape = spec.shape
        self._reshaped = spec.reshape is not None
        self.model_shape = spec.shape
        if spec.reshape is not None:
            self.model_shape = (-1, *spec.reshape) if batched else spec.reshape

    def to_client(self, shape: Shape) -> Shape:
        """Return what a client sees of a shape that has the rank of `model_shape`."""
        if not self._reshaped:
            return shape
        sizes = zip(shape, self.model_shape, strict=True)
        variable = iter([size for size, dim in sizes if dim == -1])
        return tuple([next(variable) if dim == -1 else dim for dim in self._client_shape])


def forms_of(spec: ModelSpec) -> dict[str, OutputForm]:
    """Return name -> form of a model's outputs, in the order of its configuration.

    Raises:
      RequestError: an output has no data type.
    """
    batched = spec.max_batch_size > 0
    return {name: OutputForm(output, batched=batched) for name, output in spec.outputs.items()}


def state_forms_of(spec: ModelSpec) -> dict[str, OutputForm]:
    """Return name -> form of the outputs that are states, as a sequence keeps them.

    Raises:
      RequestError: a state has no data type.
    """
    batched = spec.max_batch_size > 0
    return {
        name: OutputForm(
            OutputSpec(name, state.datatype, state.dims, batches=batched), batched=batched
        )
        for name, state in spec.states.items()
    }


def names_asked_for(request: InferRequest) -> frozenset[str] | None:
    """Return the outputs a client asked for; None means all."""
    outputs = request.outputs
    return frozenset([output.name for output in outputs]) if outputs else None
