"""Requests from what a program has: arrays, or what arrays are made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from ..protocol.dtypes import BYTES, NUMPY_DTYPES, datatype_of
from ..protocol.errors import invalid_argument
from ..protocol.model_spec import ModelSpec
from ..protocol.request_parameters import take_parameters
from ..protocol.requests import InferRequest, Parameters, RequestedOutput
from ..protocol.tensors import Tensor, encode_bytes_elements
from ..protocol.wording import quoted


class RequestOptions(TypedDict, total=False):
    """What a request may say besides its inputs.

    Attributes:
      id: The request's id, which its answers carry.
      outputs: The outputs to return; all if empty.
      parameters: Custom parameters.
      priority: 0 is the model's default.
      timeout_us: How long it may wait in the queue, in microseconds; 0 is no limit.
      sequence_id: Its sequence; 0 is none.
      sequence_start: Whether it is the first of its sequence.
      sequence_end: Whether it is the last of its sequence.
    """

    id: str
    outputs: Sequence[str]
    parameters: Parameters | None
    priority: int
    timeout_us: int
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool


def make_request(
    spec: ModelSpec, version: str, inputs: Mapping[str, Any], options: RequestOptions
) -> InferRequest:
    """Return a request, not yet checked against the model.

    Args:
      spec: The model.
      version: As asked for, decimal text; "" for the latest.
      inputs: Input name -> array, or what an array of the input's data type is made from; with
        the batch dimension if the model batches. BYTES elements arrive as bytes; text is UTF-8.
      options: What else it says.

    Raises:
      RequestError: INVALID_ARG; no tensor can be made of an input, or a parameter is none.
      TypeError: there is no such option, or it or the inputs are of another type.
    """
    unknown = options.keys() - RequestOptions.__optional_keys__
    if unknown:
        known = ", ".join(sorted(RequestOptions.__optional_keys__))
        raise TypeError(f"expected options of a request ({known}), got {min(unknown)!r}")
    _check("inputs", inputs, Mapping, "a mapping of names to arrays")
    parameters = options.get("parameters") or {}
    _check("parameters", parameters, Mapping, "a mapping of names to values")
    outputs = options.get("outputs", ())
    if isinstance(outputs, str | bytes) or not isinstance(outputs, Iterable):
        raise _unexpected("outputs", "a sequence of names", outputs)
    request = InferRequest(spec.name, version)
    request.id = check_text("id", options.get("id", ""))
    request.inputs = {
        check_text("the name of an input", name): _tensor(name, value, spec)
        for name, value in inputs.items()
    }
    request.outputs = tuple(
        RequestedOutput(check_text("the name of an output", name)) for name in outputs
    )
    take_parameters(
        request,
        {
            **{
                check_text("the name of a parameter", name): value
                for name, value in parameters.items()
            },
            "priority": options.get("priority", 0),
            "timeout": options.get("timeout_us", 0),
            "sequence_id": options.get("sequence_id", 0),
            "sequence_start": options.get("sequence_start", False),
            "sequence_end": options.get("sequence_end", False),
        },
        grpc=False,
    )
    return request


def check_text(what: str, value: Any) -> str:
    """Return a text as it is.

    Raises:
      TypeError: it is none.
    """
    _check(what, value, str, "a str")
    text: str = value
    return text


def _check(what: str, value: Any, kind: type, expected: str) -> None:
    if not isinstance(value, kind):
        raise _unexpected(what, expected, value)


def _unexpected(what: str, expected: str, value: Any) -> TypeError:
    got = "None" if value is None else f"an object of type {type(value).__name__}"
    return TypeError(f"{what} must be {expected}, got {got}")


def _tensor(name: str, value: Any, spec: ModelSpec) -> Tensor:
    wanted = spec.inputs.get(name)
    array = value
    if not isinstance(value, np.ndarray):
        try:
            array = np.asarray(value, None if wanted is None else NUMPY_DTYPES[wanted.datatype])
        except (TypeError, ValueError, OverflowError) as fault:
            kind = "" if wanted is None else f" of {wanted.datatype}"
            raise invalid_argument(
                f"input {quoted(name)} must be an array{kind}, or what one is made from: {fault}"
            ) from None
    datatype = datatype_of(array.dtype)
    if datatype is None:
        raise invalid_argument(
            f"input {quoted(name)} must be an array of a data type that Triton has, got "
            f"{array.dtype}"
        )
    if datatype == BYTES:  # as from a client: models get bytes, whether this is text or not
        try:
            raw = encode_bytes_elements(array.ravel().tolist())
        except UnicodeEncodeError as fault:
            raise invalid_argument(
                f"input {quoted(name)} must hold bytes or text that has a UTF-8 form: {fault}"
            ) from None
        return Tensor(name, datatype, array.shape, raw=raw)
    return Tensor(name, datatype, array.shape, array=array)
