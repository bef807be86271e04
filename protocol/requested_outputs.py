"""Which tensors of a response a client gets: those it asked for, as classes where it asked so.

Source: KServe v2 classification extension as served by Triton.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from .dtypes import BYTES
from .errors import invalid_argument
from .requests import InferRequest, InferResponse
from .tensors import Array, Tensor

CLASSIFIED_ELEMENTS_MAX: Final = 1_000_000
"""Elements of one batch item whose classes may be asked for, as Triton's."""
CLASSIFIED_DATATYPES: Final = frozenset(
    {
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "FP32",
        "FP64",
    }
)


def requested_outputs(response: InferResponse, request: InferRequest | None) -> list[Tensor]:
    """Return the outputs a client gets, in the order the model gave them.

    Those that go into shared memory are given without their data.

    Args:
      response: Without an error.
      request: Says what was asked for; None, or no outputs in it, means all.

    Raises:
      RequestError: INVALID_ARG; classes were asked for of a tensor that has none.
    """
    if request is None or not request.outputs:
        return response.outputs
    counts = {output.name: output.classification_count for output in request.outputs}
    outputs = [tensor for tensor in response.outputs if tensor.name in counts]
    if request.shared_memory is not None:
        places = request.shared_memory.outputs
        outputs = [_without_data(tensor) if tensor.name in places else tensor for tensor in outputs]
    if any(counts.values()):
        return [
            _classified(tensor, counts[tensor.name], request) if counts[tensor.name] else tensor
            for tensor in outputs
        ]
    return outputs


def _without_data(tensor: Tensor) -> Tensor:
    return Tensor(tensor.name, tensor.datatype, tensor.shape, raw=b"")


def _classified(tensor: Tensor, count: int, request: InferRequest) -> Tensor:
    spec = request.spec
    output = None if spec is None else spec.outputs.get(tensor.name)
    return top_classes(
        tensor,
        count,
        batches=spec is not None and spec.max_batch_size > 0,
        labels=() if output is None else output.labels,
    )


def top_classes(tensor: Tensor, count: int, *, batches: bool, labels: Sequence[str]) -> Tensor:
    """Return the highest elements of each batch item as "value:index" or "value:index:label".

    Args:
      tensor: The output.
      count: How many classes; >= 1; cut to the elements of an item.
      batches: Whether the first dimension is the batch.
      labels: Index -> label; may be shorter than the tensor.

    Returns:
      BYTES of shape (batch, n), or (n,) without a batch, highest first.

    Raises:
      RequestError: INVALID_ARG; a datatype without an order, or too many elements.
    """
    if tensor.datatype not in CLASSIFIED_DATATYPES:
        raise invalid_argument(
            f"output '{tensor.name}' of datatype {tensor.datatype} is unsupported for "
            f"classification, expected one of {', '.join(sorted(CLASSIFIED_DATATYPES))}"
        )
    batch = tensor.shape[:1] if batches else ()
    elements = math.prod(tensor.shape[len(batch) :])
    if elements > CLASSIFIED_ELEMENTS_MAX:
        raise invalid_argument(
            f"output '{tensor.name}' is too large for classification: {elements} elements, at most "
            f"{CLASSIFIED_ELEMENTS_MAX} are allowed"
        )
    shape = (*batch, min(count, elements))
    items = tensor.array.reshape((*(batch or (1,)), elements))
    form = "%f" if tensor.datatype.startswith("FP") else "%d"
    classes = [
        _class_text(form % value, index, labels).encode()
        for item in items
        for value, index in _highest(item, shape[-1])
    ]
    flat = np.empty(len(classes), np.object_)
    flat[:] = classes
    return Tensor(tensor.name, BYTES, shape, array=flat.reshape(shape))


def _highest(item: Array, count: int) -> list[tuple[float, int]]:
    """Return (value, index) of the `count` highest; of equal ones in the result, lowest first."""
    if not count:
        return []
    indices = np.sort(np.argpartition(item, item.size - count)[item.size - count :])
    order = count - 1 - np.argsort(item[indices][::-1], kind="stable")[::-1]
    chosen = indices[order]
    return list(zip(item[chosen].tolist(), chosen.tolist(), strict=True))


def _class_text(value: str, index: int, labels: Sequence[str]) -> str:
    return f"{value}:{index}:{labels[index]}" if index < len(labels) else f"{value}:{index}"
