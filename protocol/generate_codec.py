"""The generate calls: a flat JSON object in, and one such object for each response.

Source: Triton's generate extension.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from .content_coding import CODINGS
from .errors import invalid_argument
from .json_tensors import json_from_tensor, tensor_from_json
from .json_text import dump_json, parse_object
from .model_spec import InputSpec, ModelSpec
from .request_parameters import take_parameters
from .requests import InferRequest, InferResponse
from .tensors import Buffer, Shape
from .wording import names_text, quoted, shape_text, shown

PARAMETERS: Final = "parameters"
"""The member that holds nothing but parameters."""


def check_coding(coding: bytes) -> None:
    """Refuse a compressed body, which these calls do not take.

    Raises:
      RequestError: INVALID_ARG.
    """
    name = coding.strip().lower().decode("latin-1")
    if name not in {"", "identity"}:
        also = f"; the infer endpoint takes {' and '.join(CODINGS)}" if name in CODINGS else ""
        raise invalid_argument(
            f"expected a request without compression, got Content-Encoding {quoted(name)}{also}"
        )


def decode_generate(
    body: Buffer, *, spec: ModelSpec, model_name: str, model_version: str, limit_bytes: int
) -> InferRequest:
    """Return the request in the body of a generate call, not yet checked against the model.

    Members that name an input are its elements, all others are parameters; `id` is both the
    request's id and, as for Triton, a parameter.

    Args:
      body: One JSON object.
      spec: The model: its inputs give the members their data types and shapes.
      model_name: As asked for.
      model_version: As asked for; "" for the latest.
      limit_bytes: Most bytes of the body, and of all inputs together.

    Raises:
      RequestError: INVALID_ARG; states what was expected and what came.
    """
    if len(body) > limit_bytes:
        raise invalid_argument(
            f"the request has {len(body)} bytes, over the limit of {limit_bytes} bytes set by "
            "--http-max-input-size"
        )
    document = parse_object(bytes(body), "the request")
    request = InferRequest(model_name, model_version)
    request_id = document.get("id", "")
    if type(request_id) is not str:
        raise invalid_argument(
            f"member 'id' of the request must be a string, got {shown(request_id)}"
        )
    request.id = request_id
    inputs = {each.name: each for each in spec.inputs.values()}
    given = dict(document)
    if PARAMETERS not in inputs and PARAMETERS in given:
        for key, value in _nested(given.pop(PARAMETERS), inputs).items():
            if key in given:
                raise invalid_argument(
                    f"{quoted(key)} is given twice: in the request and in its '{PARAMETERS}'"
                )
            given[key] = value
    size = 0
    for key in [key for key in given if key in inputs]:
        elements = given.pop(key)
        spec_of = inputs[key]
        flat = elements if type(elements) is list else [elements]
        shape = _shape(spec_of, len(flat))
        tensor = tensor_from_json(key, spec_of.datatype, shape, _flat(key, flat), limit_bytes)
        size += len(tensor.raw)
        if size > limit_bytes:
            raise invalid_argument(
                f"with input {quoted(key)} of {len(tensor.raw)} bytes the inputs have {size} "
                f"bytes, over the limit of {limit_bytes} bytes set by --http-max-input-size"
            )
        request.inputs[key] = tensor
    for key, value in given.items():
        if type(value) is list:
            raise invalid_argument(
                f"{quoted(key)} must be one of the inputs {names_text(inputs)} to have elements, "
                f"got {shown(value)} for a parameter"
            )
    take_parameters(request, given, grpc=False)
    return request


def _nested(given: Any, inputs: dict[str, InputSpec]) -> dict[str, Any]:
    if type(given) is not dict:
        raise invalid_argument(
            f"member '{PARAMETERS}' of the request must be an object, got {shown(given)}"
        )
    for key in given:
        if key in inputs:
            raise invalid_argument(
                f"{quoted(key)} is an input of the model; give it outside '{PARAMETERS}'"
            )
    return given


def _flat(name: str, elements: list[Any]) -> list[Any]:
    for element in elements:
        if type(element) is list:
            raise invalid_argument(
                f"input {quoted(name)} must be one element or a flat array of elements, got an "
                "array in the array"
            )
    return elements


def _shape(spec: InputSpec, count: int) -> Shape:
    """Return the shape that so many elements have: its innermost variable dimension takes them."""
    rest = count
    fits = True
    for dim in spec.shape:
        if dim >= 0:
            fits = fits and (rest % dim == 0 if dim else rest == 0)
            rest = rest // dim if dim else rest
    shape = list(spec.shape)
    for axis in reversed(range(len(shape))):
        if shape[axis] < 0:
            shape[axis] = rest
            rest = 1
    if not fits or (rest != 1 and 0 not in shape):
        raise invalid_argument(
            f"input {quoted(spec.name)} has shape {shape_text(spec.shape)}, which does not fit "
            f"the number of its elements, {count}"
        )
    return tuple(shape)


def encode_generate(response: InferResponse) -> bytes:
    """Return a response without an error as one JSON object, its members sorted by name.

    Raises:
      RequestError: an output has no JSON form.
    """
    members: dict[str, bytes] = {
        name: dump_json(value) for name, value in response.parameters.items()
    }
    members["model_name"] = orjson.dumps(response.model_name)
    members["model_version"] = orjson.dumps(response.model_version)
    if response.id:
        members["id"] = orjson.dumps(response.id)
    for tensor in response.outputs:
        elements = json_from_tensor(tensor)
        if tensor.array.size == 1:
            elements = elements[1:-1]
        members[tensor.name] = elements
    return b"{%b}" % b",".join(
        b"%b:%b" % (orjson.dumps(name), members[name]) for name in sorted(members)
    )


def server_sent_event(data: bytes) -> bytes:
    """Return JSON, which has no line ends, as one server-sent event (HTML 9.2.6)."""
    return b"data: %b\n\n" % data
