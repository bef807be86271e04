"""The router: owns the routing table, and knows whether the server is ready.

It has no task of its own. Model subtrees report their changes by a plain call on the event loop,
so that a change is visible to the very next request.
"""

from __future__ import annotations

from enum import Enum
from typing import final

from .routing_table import ModelEntry, ModelVersion, RoutingTable


class _Phase(Enum):
    INITIALIZING = "INITIALIZING"
    READY = "READY"
    EXITING = "EXITING"


@final
class Router:
    """The one place where frontends ask for models.

    Attributes:
      table: The current snapshot; look it up anew for each request.
    """

    def __init__(self, *, strict_readiness: bool = True) -> None:
        self._strict_readiness = strict_readiness
        self._models: dict[str, ModelEntry] = {}
        self._phase = _Phase.INITIALIZING
        self.table = RoutingTable({})

    def __repr__(self) -> str:
        return f"<Router {self._phase.value}, {len(self._models)} models>"

    def apply(self, entry: ModelEntry) -> None:
        """Take over what is new about one model, the states of its versions included."""
        self._models[entry.key] = entry
        self._renew()

    def withdraw(self, key: str) -> None:
        """Know nothing more of the model of a key."""
        del self._models[key]
        self._renew()

    def _renew(self) -> None:
        exiting = self._phase is _Phase.EXITING
        self.table = RoutingTable(self._models.copy(), exiting=exiting)

    def find(self, name: str, version: str) -> ModelVersion:
        """Return a READY version of a model as of now; see `RoutingTable.find`."""
        return self.table.find(name, version)

    def started(self) -> None:
        """Note that every start-up load has ended."""
        if self._phase is _Phase.INITIALIZING:
            self._phase = _Phase.READY

    def live(self) -> bool:
        """Return whether the server can answer: always, since it just did."""
        return True

    def ready(self) -> bool:
        """Return whether the server is READY and, if readiness is strict, all its models are."""
        if self._phase is not _Phase.READY:
            return False
        return not self._strict_readiness or self.table.all_ready()

    def exiting(self) -> bool:
        """Return whether a shutdown has begun."""
        return self._phase is _Phase.EXITING

    def begin_shutdown(self) -> None:
        """Be not ready, and find no model for new requests, from now on."""
        self._phase = _Phase.EXITING
        self._renew()

    def measured_models(self) -> list[ModelVersion]:
        """Return the model versions whose metrics are shown."""
        return self.table.serving_versions()
