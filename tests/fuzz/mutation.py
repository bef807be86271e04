"""Damages inputs: the blind part of what a fuzzer does, where none is installed."""

from __future__ import annotations

import random
from collections.abc import Sequence

_INTERESTING = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\r\n", b"\r\n\r\n", b"0", b"-1", b"{", b'"')
_DAMAGES_MAX = 4
_LENGTH_MAX = 4096


def damaged(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """Return one of the seeds with a few places changed, taken out, repeated or spliced."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, _DAMAGES_MAX)):
        at = chance.randint(0, len(data))
        to = min(len(data), at + chance.choice((1, 1, 2, 4, 16)))
        match chance.randrange(6):
            case 0:
                data[at:to] = chance.randbytes(to - at)
            case 1:
                del data[at:to]
            case 2:
                data[at:at] = data[at:to] * chance.choice((1, 2, 50))
            case 3:
                data[at:at] = chance.choice(_INTERESTING)
            case 4:
                other = chance.choice(seeds)
                data[at:to] = other[chance.randint(0, len(other)) :]
            case _:
                if at < len(data):
                    data[at] ^= 1 << chance.randrange(8)
    return bytes(data[:_LENGTH_MAX])
