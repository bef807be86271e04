"""Keeps one child running within a restart budget.

A nursery is one-for-all without restart: one crash cancels the siblings. What runs here is
restarted by itself, and its siblings never notice.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio

from ..backends.base import DeviceFaultError
from ._restart_policy import RestartPolicy

_logger = logging.getLogger(__name__)


class RestartBudgetSpentError(Exception):
    """A child is not started again; its last crash is the cause."""


async def supervise(
    name: str,
    run: Callable[[], Awaitable[None]],
    *,
    policy: RestartPolicy,
    on_crash: Callable[[], Awaitable[None]],
    stopping: trio.Event,
) -> None:
    """Run a child until it returns; start it again when it crashes, unless it is to stop.

    Args:
      name: Of the child, for the log.
      run: Starts the child and waits for its end.
      policy: Says whether and when to restart.
      on_crash: Called after each crash, before the wait.
      stopping: Once set, a crashed child is not started again.

    Raises:
      RestartBudgetSpentError: the policy gave the child up, or it did so itself.
    """
    while True:
        try:
            await run()
        except RestartBudgetSpentError:  # the child knows by itself
            await on_crash()
            raise
        except Exception as error:  # containing any crash is what this is for
            await on_crash()
            delay_s = policy.crashed(trio.current_time())
            if delay_s is None:
                what = f"{type(error).__name__}: {error}"
                raise RestartBudgetSpentError(f"{name} crashed too often: {what}") from error
            if isinstance(error, DeviceFaultError):  # it says what the device died of
                _logger.error("%s crashed and is restarted in %s s: %s", name, delay_s, error)  # noqa: TRY400
            else:
                _logger.exception("%s crashed and is restarted in %s s", name, delay_s)
        else:
            return
        with trio.move_on_after(delay_s):
            await stopping.wait()
            return
