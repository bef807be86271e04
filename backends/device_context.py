"""What a worker thread holds while it executes on a device."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Protocol


class DeviceContext(Protocol):
    """State that a device binds to the thread that uses it.

    The thread enters the context before its first job and leaves it after the last one. That is
    all a GPU needs: CUDA's current device and stream and cupy's current allocator belong to the
    thread that set them, so jobs find them without being told.

    Attributes:
      jobs_in_flight_max: Jobs worth submitting before the first is done; more than 1 where
        copies to the device overlap with computing on it.
    """

    jobs_in_flight_max: int

    def __enter__(self) -> object: ...

    def __exit__(self, *exc_info: object) -> None: ...


class HostContext(nullcontext[None]):
    """The CPU: nothing to hold, and a second job in flight would only wait."""

    jobs_in_flight_max = 1
