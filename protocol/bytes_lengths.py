"""How long the elements of a raw BYTES tensor are, found by numpy and not by a walk.

Each element begins with its uint32 length. Where the length is under 256, three zero bytes follow
its first, which texts hardly contain; so those are looked for, and whether they form a chain from
the first byte to the last is checked.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

Lengths: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

MANY: Final = 256
"""Elements from which on numpy is faster than a walk."""
SHORT_BYTES_MAX: Final = 255
"""The longest element that is found; the walk to longer ones costs little beside their bytes."""
_BREAKS_SHARE_MAX: Final = 2
"""At most one in so many places may not lead to the next; mending more costs what a walk does."""


def short_lengths(raw: bytes | bytearray | memoryview, expected: int) -> Lengths | None:
    """Return the lengths of the elements if they are many, short, and nearly all without zeros.

    Args:
      raw: The tensor, well-formed or not.
      expected: How many elements there should be; decides no more than whether to try.

    Returns:
      Lengths that together with their own bytes are `raw` to its end; None says nothing.
    """
    size = len(raw)
    if expected < MANY or not 4 * MANY <= size <= expected * (4 + SHORT_BYTES_MAX):
        return None
    data = np.frombuffer(raw, np.uint8)
    zero = data == 0
    heads = np.flatnonzero(zero[1:-2] & zero[2:-1] & zero[3:])
    ends = heads + data[heads] + 4
    breaks = np.flatnonzero(ends[:-1] != heads[1:])
    if len(breaks):
        if len(breaks) * _BREAKS_SHARE_MAX > len(heads):
            return None
        kept = np.ones(len(heads), np.bool_)
        targets = np.searchsorted(heads, ends[breaks])
        reached = 0
        for last, target in zip(breaks.tolist(), targets.tolist(), strict=True):
            if last >= reached:
                kept[last + 1 : target] = False
                reached = target
        heads, ends = heads[kept], ends[kept]
    if not len(heads) or heads[0] or ends[-1] != size or (ends[:-1] != heads[1:]).any():
        return None
    return data[heads]
