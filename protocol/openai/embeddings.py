"""Embeddings: inputs as batches of tokens, and the answer.

Source: OpenAI's API reference, embeddings.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import orjson

from ..tensors import Array, Tensor


def batches(tokens: Sequence[Sequence[int]], rows_max: int) -> list[list[int]]:
    """Return which inputs go in one request: at most so many, of about the same length."""
    order = sorted(range(len(tokens)), key=lambda index: len(tokens[index]))
    return [order[begin : begin + rows_max] for begin in range(0, len(order), rows_max)]


def token_tensors(
    rows: Sequence[Sequence[int]], names: Collection[str], padding: int
) -> dict[str, Tensor]:
    """Return inputs of a model that makes embeddings, by name: INT64 `[rows, longest]`.

    Args:
      rows: The tokens of each input.
      names: Those of "input_ids", "attention_mask" and "token_type_ids" that the model has.
      padding: The token that fills rows up.
    """
    shape = (len(rows), max(map(len, rows)))
    arrays = {
        "input_ids": np.full(shape, padding, "<i8"),
        "attention_mask": np.zeros(shape, "<i8"),
        "token_type_ids": np.zeros(shape, "<i8"),
    }
    for index, row in enumerate(rows):
        arrays["input_ids"][index, : len(row)] = row
        arrays["attention_mask"][index, : len(row)] = 1
    return {
        name: Tensor(name, "INT64", shape, array=array)
        for name, array in arrays.items()
        if name in names
    }


def embeddings_document(
    model: str, embeddings: Sequence[Array], *, base64: bool, tokens: int
) -> bytes:
    """Return the answer as JSON.

    Args:
      model: As asked for.
      embeddings: Of each input, FP32 `[dimensions]`.
      base64: Whether they go as base64 of little-endian FP32.
      tokens: How many tokens all inputs have.
    """
    data: list[dict[str, Any]] = [
        {
            "object": "embedding",
            "index": index,
            "embedding": b64encode(each.tobytes()).decode() if base64 else each,
        }
        for index, each in enumerate(embeddings)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    document = {"object": "list", "data": data, "model": model, "usage": usage}
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
