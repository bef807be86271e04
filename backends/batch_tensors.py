"""Ragged batches: inputs joined end to end, what tells the model their shapes, and the way back.

A batch is ragged where a configuration has `allow_ragged_batch`: requests of different shapes share
it, and the model sees the elements of all of them in one flat tensor. `batch_input` tensors tell it
where each request begins; `batch_output` cuts a flat output again.
Source: Triton model_config.proto, BatchInput and BatchOutput.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, final

import numpy as np

from ..protocol.dtypes import NUMPY_DTYPES
from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.model_spec import datatype_name
from ..protocol.pb.inference import BatchInputKind as Kind, ModelConfig
from ..protocol.requests import InferRequest
from ..protocol.tensors import Array, Shape
from ..protocol.wording import shape_text


class _Generated(NamedTuple):
    name: str
    kind: Kind
    source: str
    dtype: np.dtype[Any]


@final
class BatchTensors:
    """What one model's configuration says of the tensors of a whole batch.

    Args:
      config: Completed, normalised and validated.
      output_shapes: Output name -> what the model makes for one request; -1 is variable.

    Attributes:
      ragged: Names of the inputs that are joined end to end.

    Raises:
      RequestError: INVALID_ARG; a scattered output has a variable dimension where its source input
        has no dimension at all.
    """

    def __init__(self, config: ModelConfig, output_shapes: Mapping[str, Shape]) -> None:
        self._model_name = config.name
        self._batches = config.max_batch_size > 0
        self.ragged = frozenset([i.name for i in config.input if i.allow_ragged_batch])
        self._generated = [
            _Generated(
                name,
                Kind(batch_input.kind),
                batch_input.source_input[0],
                NUMPY_DTYPES[datatype_name(batch_input.data_type)],
            )
            for batch_input in config.batch_input
            for name in batch_input.target_name
        ]
        self._scattered = {  # output name -> (source input, shape of one request)
            name: (batch_output.source_input[0], output_shapes[name])
            for batch_output in config.batch_output
            for name in batch_output.target_name
        }
        for name, (source, shape) in self._scattered.items():
            (tensor,) = [tensor for tensor in config.input if tensor.name == source]
            dims = tensor.dims if tensor.reshape is None else tensor.reshape.shape
            rank = len(dims) + self._batches
            if -1 in shape[rank:]:
                raise invalid_argument(
                    f"model '{config.name}': batch_output '{name}' has a variable dimension after "
                    f"the {rank} dimensions of its source_input '{source}', "
                    f"got {shape_text(shape)}"
                )

    def generate(self, requests: Sequence[InferRequest]) -> dict[str, Array]:
        """Return name -> array of each `batch_input`; the caller owns them.

        Args:
          requests: The batch, in order; each has every source input.
        """
        generated: dict[str, Array] = {}
        for name, kind, source, dtype in self._generated:
            shapes = [request.inputs[source].shape for request in requests]
            if not self._batches:
                shapes = [(1, *shape) for shape in shapes]
            generated[name] = batch_input(kind, shapes, dtype)
        return generated

    def scatter(
        self, name: str, array: Array, requests: Sequence[InferRequest]
    ) -> list[Array] | None:
        """Return an output's part of each request, views on `array`; None if it is no such output.

        Raises:
          RequestError: INTERNAL; there are not as many elements as the requests ask for.
        """
        if name not in self._scattered:
            return None
        source, dims = self._scattered[name]
        shapes = [scattered_shape(dims, request.inputs[source].shape) for request in requests]
        expected = sum(map(math.prod, shapes))
        if array.size != expected:
            raise RequestError(
                ErrorCode.INTERNAL,
                f"model '{self._model_name}': output '{name}' must have {expected} elements, as "
                f"the shapes of input '{source}' ask for, got shape {shape_text(array.shape)}",
            )
        return cut_flat(array, shapes)


def join_flat(arrays: Sequence[Array]) -> Array:
    """Join the elements of arrays end to end, each in row-major order.

    Returns:
      (sum of elements,). Of one array: a view on it if it is contiguous, which may be read-only.
      Of several: newly allocated; the caller owns it.
    """
    if len(arrays) == 1:
        return arrays[0].reshape(-1)
    return np.concatenate([array.reshape(-1) for array in arrays])


def cut_flat(array: Array, shapes: Sequence[Shape]) -> list[Array]:
    """Cut the elements of an array, in row-major order, into one array of each shape.

    Args:
      array: As many elements as the shapes have together.
      shapes: Without variable dimensions.

    Returns:
      Views on `array` if it is contiguous.
    """
    flat = array.reshape(-1)
    parts: list[Array] = []
    start = 0
    for shape in shapes:
        end = start + math.prod(shape)
        parts.append(flat[start:end].reshape(shape))
        start = end
    return parts


def scattered_shape(dims: Shape, source: Shape) -> Shape:
    """Return `dims` with the size that the source input has at the place of each -1."""
    return tuple([source[place] if dim == -1 else dim for place, dim in enumerate(dims)])


def batch_input(kind: Kind, shapes: Sequence[Shape], dtype: np.dtype[Any]) -> Array:
    """Return a tensor that tells the model of the shapes in its batch.

    Args:
      kind: What it tells.
      shapes: Of the source input in each request, the batch dimension in front.
      dtype: Of the tensor.

    Returns:
      By kind: (requests,), (requests + 1,), (most elements of a request,), (rows of all requests,
      dimensions without the batch), or that flattened.
    """
    if kind in {Kind.BATCH_ITEM_SHAPE, Kind.BATCH_ITEM_SHAPE_FLATTEN}:
        rank = max(map(len, shapes)) - 1
        items = [shape[1:] for shape in shapes for _ in range(shape[0])]
        array = np.array(items, dtype).reshape(len(items), rank)
        return array if kind == Kind.BATCH_ITEM_SHAPE else array.reshape(-1)
    counts = list(map(math.prod, shapes))
    if kind == Kind.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE:
        return np.zeros(max(counts), dtype)
    if kind == Kind.BATCH_ELEMENT_COUNT:
        return np.array(counts, dtype)
    sums = list(accumulate(counts, initial=0))
    if kind == Kind.BATCH_ACCUMULATED_ELEMENT_COUNT:
        return np.array(sums[1:], dtype)
    return np.array(sums, dtype)
