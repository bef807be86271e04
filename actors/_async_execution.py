"""Executions of models whose `execute` is async: as part of the task of their instance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import outcome
import trio

from ..backends.base import Batch, DeviceFaultError, ExecutesAsync
from ..protocol.errors import RequestError
from ._device_link import DeviceHungError
from ._execution_watch import ExecutionWatch
from .messages import Infer


async def run_async(
    model: ExecutesAsync,
    infers: Sequence[Infer],
    batch: Batch,
    *,
    failed: Callable[[str], RequestError],
    hang_s: float = inf,
    excused: Callable[[], bool] = lambda: False,
) -> RequestError | None:
    """Execute a batch on the event loop; cancelled once nobody waits for any of its requests.

    Args:
      model: What executes it.
      infers: The requests of the batch.
      batch: The batch as the model sees it.
      failed: Returns the error that says what went wrong.
      hang_s: How long it may take, in seconds.
      excused: Asked after each `hang_s` whether it may go on for as long again.

    Returns:
      What the whole batch fails with; None also if it was cancelled.

    Raises:
      DeviceHungError: it took longer.
      DeviceFaultError: as the model raised it.
    """
    hung = False
    error: RequestError | None = None

    async def watch(scope: trio.CancelScope) -> None:
        nonlocal hung
        going_on = True
        while going_on:
            await trio.sleep(hang_s)
            going_on = excused()
        hung = True
        scope.cancel()

    with trio.CancelScope() as scope:
        left = ExecutionWatch[trio.CancelScope](infers, trio.CancelScope.cancel)
        left.add(scope)
        async with trio.open_nursery() as nursery:
            if hang_s < inf:
                nursery.start_soon(watch, scope)
            result = await outcome.acapture(_execute, model, batch, failed)
            left.remove(scope)
            nursery.cancel_scope.cancel()
        error = result.unwrap()  # outside of the nursery, which would wrap what it raises
    if hung:
        raise DeviceHungError(f"did not finish within {hang_s:g} s")
    return error


async def _execute(
    model: ExecutesAsync, batch: Batch, failed: Callable[[str], RequestError]
) -> RequestError | None:
    try:
        await model.execute_async(batch)
    except DeviceFaultError:
        raise
    except RequestError as error:
        return error
    except BaseException as error:
        if _is_cancelled(error):
            raise
        return failed(f"failed with {type(error).__name__}: {error}")
    return None


def _is_cancelled(error: BaseException) -> bool:
    """Return whether an exception belongs to the cancellation, in part at least."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_cancelled, error.exceptions))
    return isinstance(error, trio.Cancelled)
