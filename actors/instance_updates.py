"""Changes of the instances of a model's versions, all of them or none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

import trio

from ..protocol.errors import RequestError
from ._model_preparation import PreparedVersion
from .model import reason_of
from .model_instances import InstanceUpdate, differs_in_instances_alone
from .routing_table import FailedVersion
from .served_models import Running


@final
class InstanceUpdates:
    """What the load of one model changes in versions that go on.

    Lifetime: `undo` comes last, also after a `commit`, and ends what was loaded in vain.

    Args:
      running: Version number -> a version that goes on if it can.
    """

    def __init__(self, running: Mapping[int, Running]) -> None:
        self._running = running
        self._loaded: dict[int, InstanceUpdate] = {}

    def __repr__(self) -> str:
        return f"<InstanceUpdates of {sorted(self._running)}, {len(self._loaded)} loaded>"

    def takes(self, prepared: PreparedVersion) -> bool:
        """Return whether a version goes on, since nothing but its instances is to be changed."""
        running = self._running.get(prepared.version)
        if running is None or prepared.config is None:
            return False
        return differs_in_instances_alone(running.version.config, prepared.config)

    async def load(self, versions: Iterable[PreparedVersion]) -> dict[int, FailedVersion]:
        """Load the new instances of versions that it takes, and return which of that failed."""
        failed: dict[int, FailedVersion] = {}

        async def load(prepared: PreparedVersion) -> None:
            number = prepared.version
            if prepared.strategy is not None:  # the one that runs goes on
                prepared.strategy.close()
            assert prepared.config is not None
            try:
                update = await self._running[number].model.load_update(prepared.config)
            except RequestError as error:
                failed[number] = FailedVersion(str(number), reason_of(error))
            else:
                self._loaded[number] = update

        async with trio.open_nursery() as nursery:
            for prepared in versions:
                if prepared.version not in self._loaded:
                    nursery.start_soon(load, prepared)
        return failed

    async def commit(self) -> dict[int, Running]:
        """Have all that was loaded take effect; return the versions that go on."""
        done = {number: self._running[number] for number in self._loaded}
        for number, running in done.items():
            if await running.model.commit(self._loaded[number]):
                del self._loaded[number]
        return done

    async def undo(self) -> None:
        """End what has taken no effect; bounded in time, also when cancelled."""
        while self._loaded:
            number, update = self._loaded.popitem()
            await self._running[number].model.undo(update)
