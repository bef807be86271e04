"""Whether a request fits its model: the checks every request passes before it is scheduled.

The rules stand in the order in which they are applied, which decides what a request with two
faults is told. Shapes that passed once are remembered in `ModelSpec.accepted`, so an ordinary
request costs one look-up an input.
Source: Triton's request normalisation; unlike it, required inputs are compared by name.
"""

from __future__ import annotations

import math
import struct
from typing import Final

import numpy as np

from .bytes_lengths import MANY
from .dtypes import BYTES, ITEM_SIZE_BYTES
from .errors import invalid_argument
from .model_spec import InputSpec, ModelSpec
from .requests import InferRequest
from .tensors import Buffer, Shape, Tensor
from .wording import names_text, quoted, shape_text, shown

INT64_MAX: Final = 2**63 - 1
"""Most elements, and most bytes, a tensor may have."""
RANK_MAX: Final = 64
"""Most dimensions of a tensor, checked where shapes are read; what numpy can hold."""
ACCEPTED_SHAPES_MAX: Final = 1024
"""Remembered shapes a model; each is about 300 bytes, and variable dims could make any number."""

_FEW: Final = 16
"""Elements that are walked one by one faster than numpy starts."""
_SMALL_BYTES: Final = 512
"""A tensor of few elements that is no larger is walked one by one, whatever is in it."""

_LENGTH = struct.Struct("<I")


def check_fields(request: InferRequest) -> None:
    """Check the types and ranges that codecs see to, of a request that no codec has made.

    Raises:
      RequestError: INVALID_ARG, naming the field.
    """
    texts = [("request_id", request.id), ("model_name", request.model_name)]
    texts += [("requested_output_names", output.name) for output in request.outputs]
    for name, text in texts:
        if not isinstance(text, str):
            raise invalid_argument(f"{name} must be text, got {type(text).__name__}")
    for name, number in (("timeout", request.timeout_us), ("priority", request.priority)):
        if type(number) is not int or not 0 <= number <= INT64_MAX:
            raise invalid_argument(
                f"{name} must be a whole number from 0 to {INT64_MAX}, got {shown(number)}"
            )
    sequence_id = request.sequence_id
    if not isinstance(sequence_id, str) and (
        type(sequence_id) is not int or not 0 <= sequence_id < 2**64
    ):
        raise invalid_argument(
            f"correlation_id must be text or a whole number below 2^64, got {shown(sequence_id)}"
        )


def validate(request: InferRequest, spec: ModelSpec) -> None:
    """Check a request against its model, apply input reshapes, set `batch_size` and `spec`.

    Raises:
      RequestError: INVALID_ARG, naming the first fault.
    """
    if request.outputs:
        _check_outputs(request, spec)
    inputs = request.inputs
    accepted = spec.accepted
    rows = -1
    shapes = []
    for name, tensor in inputs.items():
        shape = accepted.get((name, tensor.datatype, tensor.shape))
        if shape is None or (rows >= 0 and shape[0] != rows):
            rows = -1
            break
        rows = shape[0]
        shapes.append(shape)
    if rows < 0 or (len(inputs) != len(spec.inputs) and not inputs.keys() >= spec.required_inputs):
        rows = _check_shapes(inputs, spec)
        shapes = [_accept(tensor, spec) for tensor in inputs.values()]
    for tensor, (_, byte_size, count, reshaped) in zip(inputs.values(), shapes, strict=True):
        if byte_size < 0:
            _check_bytes_elements(tensor, count, spec)
        elif tensor.byte_size != byte_size:
            raise invalid_argument(
                f"input '{tensor.name}' of model '{spec.name}' needs {byte_size} bytes for shape "
                f"{shape_text(tensor.shape)} of {tensor.datatype}, got {tensor.byte_size} bytes"
            )
        if reshaped is not None:
            tensor.reshape(reshaped)
    if spec.correlation_id is not None and request.sequence_id:
        _check_correlation_id(request.sequence_id, spec, *spec.correlation_id)
    if spec.sequences:
        _check_sequence(request.sequence_id, rows, spec)
    request.batch_size = rows
    request.spec = spec


def _check_outputs(request: InferRequest, spec: ModelSpec) -> None:
    known = spec.outputs
    for output in request.outputs:
        if output.name not in known:
            raise invalid_argument(
                f"requested output {quoted(output.name)} is not an output of model "
                f"'{spec.name}', which has {names_text(known)}"
            )


def _check_shapes(inputs: dict[str, Tensor], spec: ModelSpec) -> int:
    """Apply the rules on names, batch, datatypes and shapes; return the rows."""
    _check_names(inputs, spec)
    rows = 1
    if spec.max_batch_size > 0:
        rows = _common_rows(inputs, spec)
    for tensor in inputs.values():
        _check_type_and_shape(tensor, spec.inputs[tensor.name], spec)
    return rows


def _check_names(inputs: dict[str, Tensor], spec: ModelSpec) -> None:
    most = len(spec.inputs)
    least = len(spec.required_inputs)
    if least <= len(inputs) <= most:
        for name in inputs:
            if name not in spec.inputs:
                raise invalid_argument(
                    f"input {quoted(name)} is not an input of model '{spec.name}', "
                    f"which has {names_text(spec.inputs)}"
                )
        if inputs.keys() >= spec.required_inputs:
            return
    expected = f"{most}" if least == most else f"{least} to {most}"
    missing = [n for n in spec.inputs if n in spec.required_inputs and n not in inputs]
    raise invalid_argument(
        f"model '{spec.name}' expects {expected} inputs and must be given all required ones, got "
        f"{len(inputs)}: {names_text(inputs)}, missing {names_text(missing)}"
    )


def _common_rows(inputs: dict[str, Tensor], spec: ModelSpec) -> int:
    rows: int | None = None
    for tensor in inputs.values():
        shape = tensor.shape
        if not shape:
            raise invalid_argument(
                f"input '{tensor.name}' of model '{spec.name}' needs a batch dimension in front "
                "of its shape, got the shape []"
            )
        if rows is None:
            rows = shape[0]
        elif rows != shape[0]:
            raise invalid_argument(
                f"input '{tensor.name}' of model '{spec.name}' has batch size {shape[0]}, but the "
                f"inputs before it have {rows}; all inputs of a request need the same"
            )
    if rows is None:
        return 1
    if rows == 0 or rows > spec.max_batch_size:
        raise invalid_argument(
            f"the batch dimension in front of each shape must be from 1 to {spec.max_batch_size} "
            f"for model '{spec.name}', got {rows}"
        )
    return rows


def _check_type_and_shape(tensor: Tensor, expected: InputSpec, spec: ModelSpec) -> None:
    if tensor.datatype != expected.datatype:
        raise invalid_argument(
            f"input '{tensor.name}' has datatype {quoted(tensor.datatype)}, but model "
            f"'{spec.name}' expects '{expected.datatype}'"
        )
    shape = tensor.shape
    if any(dim < 0 for dim in shape):
        raise invalid_argument(
            f"input '{tensor.name}' of model '{spec.name}' has a negative dimension in its shape "
            f"{shape_text(shape)}"
        )
    if len(shape) != len(expected.shape) or any(
        want not in (-1, got) for want, got in zip(expected.shape, shape, strict=True)
    ):
        hint = (
            "; a non-zero max_batch_size puts a batch dimension in front of every input shape, "
            "max_batch_size 0 lifts this"
            if spec.max_batch_size > 0
            else ""
        )
        raise invalid_argument(
            f"input '{tensor.name}' of model '{spec.name}' expects shape "
            f"{shape_text(expected.shape)}, got {shape_text(shape)}{hint}"
        )


def _accept(tensor: Tensor, spec: ModelSpec) -> tuple[int, int, int, Shape | None]:
    """Remember and return the facts about a shape that passed the rules."""
    expected = spec.inputs[tensor.name]
    shape = tensor.shape
    count = element_count(tensor.name, tensor.datatype, shape)
    rows = shape[0] if spec.max_batch_size > 0 else 1
    byte_size = -1 if tensor.datatype == BYTES else count * ITEM_SIZE_BYTES[tensor.datatype]
    facts = (rows, byte_size, count, _reshaped(shape, expected, spec))
    if len(spec.accepted) >= ACCEPTED_SHAPES_MAX:
        spec.accepted.clear()
    spec.accepted[tensor.name, tensor.datatype, shape] = facts
    return facts


def element_count(name: str, datatype: str, shape: Shape) -> int:
    """Return the number of elements of a shape without negative entries.

    Raises:
      RequestError: INVALID_ARG; the elements or their bytes do not fit an int64.
    """
    count = math.prod(shape)
    if count > INT64_MAX:
        raise invalid_argument(
            f"input {quoted(name)} with shape {shape_text(shape)} exceeds the maximum of "
            f"{INT64_MAX} elements"
        )
    item_size = ITEM_SIZE_BYTES[datatype]
    if count * item_size > INT64_MAX:
        raise invalid_argument(
            f"input {quoted(name)} with {count} elements of {item_size} bytes exceeds the maximum "
            f"of {INT64_MAX} bytes"
        )
    return count


def _reshaped(shape: Shape, expected: InputSpec, spec: ModelSpec) -> Shape | None:
    """Return the shape after `reshape`: variable dims keep their values, in order."""
    if expected.reshape is None:
        return None
    batch = shape[:1] if spec.max_batch_size > 0 else ()
    dims = shape[len(batch) :]
    values = iter([got for want, got in zip(expected.dims, dims, strict=True) if want == -1])
    return batch + tuple(next(values) if dim == -1 else dim for dim in expected.reshape)


def _check_bytes_elements(tensor: Tensor, expected: int, spec: ModelSpec) -> None:
    raw = tensor.given_raw
    if raw is None:
        return  # made from a list whose length was checked against the shape
    is_many = expected >= MANY and not _count_of_one_length(raw, expected)
    if is_many and tensor.holds_short_elements(expected):
        return
    fault = bytes_elements_fault(raw, expected)
    if fault is not None:
        raise invalid_argument(f"input '{tensor.name}' of model '{spec.name}': {fault}")


def bytes_elements_fault(raw: Buffer, expected: int) -> str | None:
    """Return what is wrong with a raw BYTES tensor of `expected` elements, or None.

    Elements of one length, such as none at all, take numpy some 2 ns each, others Python 100.
    """
    count = _count_of_one_length(raw, expected)
    if count == 0:
        end = len(raw)
        unpack = _LENGTH.unpack_from
        last = end - 4
        start = 0
        while start <= last:
            start += 4 + unpack(raw, start)[0]
            count += 1
        if start > end:
            return f"the last element should end at byte {start}, but there are only {end} bytes"
        if start < end:
            return f"expected a 4-byte element length at byte {start}, got {end - start} bytes"
    if count != expected:
        return f"expected {expected} BYTES elements, got {count}"
    return None


def _count_of_one_length(raw: Buffer, expected: int) -> int:
    """Return how many elements of equal length `raw` is; 0 says nothing."""
    size = len(raw)
    if (expected < _FEW and size <= _SMALL_BYTES) or size < 4:
        return 0
    length: int = _LENGTH.unpack_from(raw)[0]
    count, rest = divmod(size, 4 + length)
    if rest or count < _FEW:
        return 0
    lengths = np.ndarray((count,), "<u4", raw, 0, (4 + length,))
    return count if (lengths == length).all() else 0


def _check_correlation_id(
    sequence_id: int | str, spec: ModelSpec, control: str, datatype: str
) -> None:
    given = BYTES if isinstance(sequence_id, str) else "UINT64"
    if (given == BYTES) != (datatype == BYTES):
        raise invalid_argument(
            f"sequence control '{control}' of model '{spec.name}' expects a sequence id of "
            f"datatype {datatype}, got one of datatype {given}"
        )


def _check_sequence(sequence_id: int | str, rows: int, spec: ModelSpec) -> None:
    if rows != 1:
        raise invalid_argument(
            f"model '{spec.name}' has a sequence batcher, so the batch size of each request must "
            f"be 1, got {rows}"
        )
    if not sequence_id and not spec.iterative:
        raise invalid_argument(
            f"model '{spec.name}' has a sequence batcher, so each request needs a sequence id that "
            f"is neither 0 nor empty, got {'an empty one' if sequence_id == '' else 'none or 0'}"
        )
