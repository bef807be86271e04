"""Small builders of ModelInferRequest messages."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tritrio.protocol.infer_wire import (
    decode_model_infer,
)
from tritrio.protocol.request_rules import validate
from tritrio.protocol.requests import InferRequest


def message(
    *inputs: tuple[str, str, list[int]], raws: tuple[bytes, ...] = (), **fields: Any
) -> Any:
    made = pb.ModelInferRequest(model_name="m", **fields)
    for name, datatype, shape in inputs:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
    made.raw_input_contents.extend(raws)
    return made


def typed(datatype: str, shape: list[int], **contents: Any) -> Any:
    made = message(("IN", datatype, shape))
    for field, values in contents.items():
        getattr(made.inputs[0].contents, field).extend(values)
    return made


def decode(made: Any, model: Any = None) -> InferRequest:
    request = decode_model_infer(made.SerializeToString())
    if model is not None:
        validate(request, model)
    return request
