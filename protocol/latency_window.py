"""The durations of recent requests, for quantiles. Pure: the time is passed in.

Adding packs a few numbers into a ring; all the work is done by whoever asks for quantiles. These
are exact over what the ring holds, where estimators with less memory are allowed to be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from struct import Struct
from typing import Final, final

import numpy as np

WINDOW_S: Final = 60.0
"""How long a duration counts, in seconds: as long as summaries of Prometheus clients remember."""

SAMPLES_MAX: Final = 8192
"""Entries that are remembered, half a megabyte a model: enough that eight of them lie above the
quantile 0.999. At more than 136 entries a second the window is shorter than `WINDOW_S`."""

FIELDS: Final = (
    "request",
    "queue",
    "compute_input",
    "compute_infer",
    "compute_output",
    "cache_hit",
    "cache_miss",
)
"""What is remembered, in the order in which `LatencyWindow.add` takes it."""

_ENTRY: Final = Struct(f"={1 + len(FIELDS)}d")
_pack_into: Final = _ENTRY.pack_into


@final
class LatencyWindow:
    """The durations of one model version's last requests, in nanoseconds."""

    __slots__ = ("_added", "_ring")

    def __init__(self) -> None:
        self._ring = bytearray(_ENTRY.size * SAMPLES_MAX)
        self._added = 0

    def __repr__(self) -> str:
        return f"<LatencyWindow {min(self._added, SAMPLES_MAX)} of {SAMPLES_MAX}>"

    def add(
        self,
        now_s: float,
        *,
        request_ns: float = nan,
        queue_ns: float = nan,
        compute_input_ns: float = nan,
        compute_infer_ns: float = nan,
        compute_output_ns: float = nan,
        cache_hit_ns: float = nan,
        cache_miss_ns: float = nan,
    ) -> None:
        """Remember the durations of one request, or of one look-up in a cache; NaN for none."""
        _pack_into(
            self._ring,
            self._added % SAMPLES_MAX * _ENTRY.size,
            now_s,
            request_ns,
            queue_ns,
            compute_input_ns,
            compute_infer_ns,
            compute_output_ns,
            cache_hit_ns,
            cache_miss_ns,
        )
        self._added += 1

    def quantiles_ns(self, field: str, now_s: float, quantiles: Sequence[float]) -> list[float]:
        """Return quantiles of one of `FIELDS`: values that occurred, or NaN if none did.

        Args:
          field: Its name.
          now_s: The time, in seconds of the clock that `add` was told.
          quantiles: From 0 to 1.
        """
        entries = np.frombuffer(self._ring).reshape(SAMPLES_MAX, -1)[: self._added]
        recent = entries[:, 0] > now_s - WINDOW_S
        values = np.sort(np.where(recent, entries[:, 1 + FIELDS.index(field)], nan))  # NaN last
        count = values.size - np.count_nonzero(np.isnan(values))
        if not count:
            return [nan] * len(quantiles)
        # A few indices of what is sorted anyway: a tenth of what numpy's quantile costs here.
        ranks = np.ceil(np.multiply(quantiles, count)).astype(np.intp)
        found: list[float] = values[np.maximum(ranks, 1) - 1].tolist()
        return found
