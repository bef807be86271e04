"""Short ways to write inference requests over HTTP."""

from __future__ import annotations

import json
import struct
from typing import Any

from .http_exchange import Http

X: dict[str, Any] = {"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2]}
"""A good input of the model `identity`."""
LENGTH = "Inference-Header-Content-Length"


def infer(body: Any, model: str = "identity", *headers: str, **more: Any) -> Http:
    """A POST of `body` (bytes as they are, anything else as JSON) to a model's infer route."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Http("POST", f"/v2/models/{model}/infer", content, headers, **more)


def one(**changes: Any) -> Http:
    """`identity` with the input `X`, some members changed, or left out where None."""
    return infer({"inputs": [changed(**changes)]})


def changed(**changes: Any) -> dict[str, Any]:
    """The input `X` with some members changed, or left out where None."""
    return {key: value for key, value in {**X, **changes}.items() if value is not None}


def with_x(**members: Any) -> Http:
    """`identity` with the input `X` and more members at the top."""
    return infer({**members, "inputs": [X]})


def tensor(name: str, datatype: str, data: list[Any], shape: list[int] | None = None) -> Any:
    """An input; its shape is the number of elements unless given."""
    given = [len(data)] if shape is None else shape
    return {"name": name, "shape": given, "datatype": datatype, "data": data}


def typed(datatype: str, data: list[Any], shape: list[int] | None = None) -> Http:
    """`types` with one input of that data type."""
    return infer({"inputs": [tensor(f"IN_{datatype}", datatype, data, shape)]}, "types")


def blob(name: str, datatype: str, shape: list[int], size: Any) -> dict[str, Any]:
    """An input whose data is in the binary part."""
    parameters = {"binary_data_size": size}
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": parameters}


def binary(body: Any, data: bytes, model: str = "identity", *headers: str, **more: Any) -> Http:
    """A JSON part, its length header, and the binary part after it."""
    text = json.dumps(body).encode()
    return infer(text + data, model, f"{LENGTH}: {len(text)}", *headers, **more)


def raw(data: bytes, model: str = "identity", *headers: str) -> Http:
    """A body that is just one tensor."""
    return infer(data, model, f"{LENGTH}: 0", *headers)


def fp32(*values: float) -> bytes:
    """The elements of an FP32 tensor."""
    return struct.pack(f"<{len(values)}f", *values)


def strings(*values: bytes) -> bytes:
    """The elements of a BYTES tensor."""
    return b"".join(struct.pack("<I", len(value)) + value for value in values)
