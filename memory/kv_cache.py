"""The keys and values of generated sequences, in memory that is taken once and written in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from mmap import MADV_NOHUGEPAGE, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Any, final

import numpy as np

from ..protocol.tensors import Array


@final
class KvCache:
    """One array for each tensor of state: [rows, heads, tokens, head size], C-contiguous.

    A row is the place of one sequence. Nothing is cleared when another one takes it: what a model
    reads ends with the tokens that it is told of.

    On the host the memory is lazily committed, in pages that Linux takes once they are written. So
    rows cost as much as the longest sequence they ever held, not what they could hold, and they
    keep that until the cache is let go of.

    Args:
      xp: The array module: numpy, or one like it with arrays on a device.
      rows: Sequences that can have state at a time; >= 1.
      tokens: Most tokens of a row; >= 1.
      shapes: (heads, head size) of each tensor.
      dtype: Of every element: float32 or float16.

    Attributes:
      arrays: In the order of `shapes`; owned by the cache, to be written by the model.
      tokens: As given.
      token_bytes: Bytes of the state of one token of one row.
      size_bytes: Bytes of all arrays, committed or not.
    """

    def __init__(
        self,
        xp: Any,
        *,
        rows: int,
        tokens: int,
        shapes: Sequence[tuple[int, int]],
        dtype: np.dtype[Any],
    ) -> None:
        zeros = _host_zeros if xp is np else xp.zeros
        self.arrays: list[Array] = [
            zeros((rows, heads, tokens, size), dtype) for heads, size in shapes
        ]
        self.tokens = tokens
        self.token_bytes = sum(math.prod(shape) for shape in shapes) * dtype.itemsize
        self.size_bytes = self.token_bytes * tokens * rows

    def rows(self, first: int, count: int) -> list[Array]:
        """Return views of some rows that lie together: contiguous, [count, heads, tokens, size]."""
        return [array[first : first + count] for array in self.arrays]

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Put the state of the first `tokens` tokens of one row into another one."""
        assert 0 <= tokens <= self.tokens, "a row has no more than that"
        for array in self.arrays:
            array[target, :, :tokens] = array[source, :, :tokens]

    def swap(self, first: int, second: int, first_tokens: int, second_tokens: int) -> None:
        """Let two rows change places, of which so many tokens count."""
        assert 0 <= max(first_tokens, second_tokens) <= self.tokens, "a row has no more than that"
        for array in self.arrays:
            kept = array[first, :, :first_tokens].copy()
            array[first, :, :second_tokens] = array[second, :, :second_tokens]
            array[second, :, :first_tokens] = kept


def _host_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return zeros in small pages.

    numpy asks for huge ones, of which the first token of a row would take one for each head of
    each layer: all that the row could hold, and a quarter of a second of a step.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    memory = mmap(-1, size_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    memory.madvise(MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)
