"""Short ways to write gRPC inference requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from .grpc_exchange import Call
from .http_requests import fp32

Parameters = dict[str, Any]


def parameter(value: Any) -> pb.InferParameter:
    """A value as the parameter that fits its type; a message as it is."""
    if isinstance(value, pb.InferParameter):
        return value
    kinds = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
    return pb.InferParameter(**{kinds[type(value)]: value})


def tensor(
    name: str, datatype: str, shape: Sequence[int], contents: dict[str, Any] | None = None
) -> pb.ModelInferRequest.InferInputTensor:
    """An input; `contents` names the typed field that is filled."""
    given = None if contents is None else pb.InferTensorContents(**contents)
    return pb.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=shape, contents=given
    )


def output(name: str, **parameters: Any) -> pb.ModelInferRequest.InferRequestedOutputTensor:
    """A requested output."""
    message = pb.ModelInferRequest.InferRequestedOutputTensor(name=name)
    for key, value in parameters.items():
        message.parameters[key].CopyFrom(parameter(value))
    return message


def request(
    inputs: Sequence[pb.ModelInferRequest.InferInputTensor],
    raw: Sequence[bytes] = (),
    *,
    model: str = "identity",
    version: str = "",
    name: str = "",
    parameters: Parameters | None = None,
    outputs: Sequence[str | pb.ModelInferRequest.InferRequestedOutputTensor] = (),
) -> pb.ModelInferRequest:
    """A request; `name` is its id."""
    message = pb.ModelInferRequest(
        model_name=model,
        model_version=version,
        id=name,
        inputs=inputs,
        raw_input_contents=raw,
        outputs=[output(one) if isinstance(one, str) else one for one in outputs],
    )
    for key, value in (parameters or {}).items():
        message.parameters[key].CopyFrom(parameter(value))
    return message


def infer(*arguments: Any, **members: Any) -> Call:
    """A ModelInfer of `request(...)`."""
    return Call("ModelInfer", (request(*arguments, **members),))


X = tensor("INPUT0", "FP32", [1, 2])
DATA = fp32(1.5, -2)


def typed(datatype: str, values: Sequence[Any], field: str) -> Call:
    """`types` with one input, given in that field of its contents."""
    one = tensor(f"IN_{datatype}", datatype, [len(values)], {field: values})
    return infer([one], model="types")


def raw(datatype: str, count: int, data: bytes) -> Call:
    """`types` with one input, given as bytes."""
    return infer([tensor(f"IN_{datatype}", datatype, [count])], [data], model="types")


def repeat(values: Sequence[int], **members: Any) -> pb.ModelInferRequest:
    """A request for the decoupled model: one response a value."""
    one = tensor("IN", "INT32", [len(values)], {"int_contents": values} if values else None)
    data = () if values else (b"",)
    return request([one], data, model="repeat", **members)


def stream(*messages: Any, metadata: tuple[tuple[str, str], ...] = ()) -> Call:
    """One stream with these requests, then half-closed."""
    return Call("ModelStreamInfer", messages, metadata)
