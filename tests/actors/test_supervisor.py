"""What the log says of a child that crashed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from tritrio.actors._restart_policy import RestartBudget, RestartPolicy
from tritrio.actors.supervisor import supervise
from tritrio.backends.base import DeviceFaultError


def crashing(error: Exception) -> Callable[[], Awaitable[None]]:
    """A child that crashes once, and then has nothing left to do."""
    errors = [error]

    async def run() -> None:
        if errors:
            raise errors.pop()

    return run


@pytest.mark.parametrize(
    ("error", "text", "has_traceback"),
    [
        (
            DeviceFaultError("its process was killed by SIGKILL"),
            "crashed and is restarted in 0.125 s: its process was killed by SIGKILL",
            False,
        ),
        (ValueError("a fault of the server"), "crashed and is restarted in 0.125 s", True),
    ],
)
async def test_a_lost_device_is_one_line_in_the_log_and_a_fault_of_the_server_has_its_traceback(
    caplog: pytest.LogCaptureFixture,
    autojump_clock: trio.testing.MockClock,
    error: Exception,
    text: str,
    has_traceback: bool,
) -> None:
    await supervise(
        "model instance 'm_0'",
        crashing(error),
        policy=RestartPolicy(RestartBudget(backoff_s=0.125)),
        on_crash=trio.lowlevel.checkpoint,
        stopping=trio.Event(),
    )
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("ERROR", f"model instance 'm_0' {text}")
    assert bool(record.exc_info) is has_traceback
