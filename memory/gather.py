"""Joins the tensors of several requests into one batch, and splits results into rows again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..protocol.requests import InferRequest
from ..protocol.tensors import Array


def stack_inputs(requests: Sequence[InferRequest], name: str) -> Array:
    """Join one input of all requests along the batch dimension.

    Args:
      requests: At least one; each has the input, with equal dims and datatype.
      name: The input's name.

    Returns:
      (sum of rows_i, *dims). Of one request: the very array of its tensor, which may be read-only.
      Of several: C-contiguous, newly allocated on the host; the caller owns it.

    Raises:
      KeyError: a request lacks the input.

    Source: Triton model_config.proto, ModelConfig.max_batch_size.
    """
    if len(requests) == 1:
        return requests[0].inputs[name].array
    return np.concatenate([request.inputs[name].array for request in requests])


def split_rows(array: Array, batch_sizes: Sequence[int]) -> list[Array]:
    """Cut a batched result into the rows of each request.

    Args:
      array: (sum of `batch_sizes`, *dims).
      batch_sizes: Rows of each request, in order.

    Returns:
      One view on `array` a request; no element is copied.
    """
    assert len(array) == sum(batch_sizes), "the caller checks the rows of a model's output"
    if len(batch_sizes) == 1:
        return [array]
    views: list[Array] = []
    start = 0
    for size in batch_sizes:
        end = start + size
        views.append(array[start:end])
        start = end
    return views


def unpinned(view: Array) -> Array:
    """Return rows that are kept longer than their batch: the view, or a copy of a small one.

    A view keeps the memory of the whole batch; where it is less than half of that, a copy, which
    the caller owns, costs less than what it lets go.
    """
    base = view.base
    if isinstance(base, np.ndarray) and 2 * view.nbytes < base.nbytes:
        return view.copy()
    return view
