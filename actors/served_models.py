"""What is served: which models were asked for, what runs of them, and what is shown of that.

Bookkeeping on the event loop, without waiting; what changes is decided in `repository`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, final

import trio

from ..protocol.errors import RequestError
from ..protocol.pb.inference import ModelConfig
from ._model_keys import name_of
from ._model_preparation import PreparedModel
from ._model_relations import Needs
from ._override_files import OverrideFiles
from ._repository_policy import Fingerprint, RunningModel
from .model import Model
from .routing_table import (
    UNLOADED,
    FailedVersion,
    ModelEntry,
    ModelState,
    ModelVersion,
    RoutingTable,
    is_unloaded,
)

PAST_VERSIONS_MAX: Final = 100
"""Unloaded versions of a model that stay in the index when it changes, beside those that are
replaced then. Beyond that the lowest numbers go first, which are the oldest versions."""


@dataclass(eq=False, frozen=True, slots=True)
class Running:
    """A model version with a subtree.

    Attributes:
      model: The subtree.
      depth: How deep ensembles nest in it; it needs models of lower depths only.
      held: The files that came with its load request, or None.
      ended: Set when the subtree has ended.
    """

    model: Model
    depth: int = 0
    held: OverrideFiles | None = None
    ended: trio.Event = field(default_factory=trio.Event)

    @property
    def version(self) -> ModelVersion:
        """The version, as the routing table shows it."""
        return self.model.version

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.model.version.state is ModelState.READY


Versions: TypeAlias = Mapping[int, Running | FailedVersion]
ShownVersion: TypeAlias = ModelVersion | FailedVersion


@dataclass(slots=True)
class Served:
    """A model that was asked for and not unloaded since.

    Attributes:
      fingerprint: What the files of its versions looked like; None if they are not comparable.
      versions: Version number -> what runs.
      selected: The versions that were to be loaded.
      ensemble: What it is made from again when a model that it needs changes; None for others.
      implicit: Whether nobody asked for it but an ensemble that needs it.
    """

    fingerprint: Fingerprint | None = None
    versions: dict[int, Running] = field(default_factory=dict)
    selected: frozenset[int] = frozenset()
    ensemble: PreparedModel | None = None
    implicit: bool = False

    @property
    def ready(self) -> frozenset[int]:
        """The versions that take requests."""
        return frozenset(number for number, each in self.versions.items() if each.ready)


@final
class ServedModels:
    """The models of one server.

    Args:
      publish: Takes what is new about one model.
      withdraw: Takes the key of a model that is there no more.

    Attributes:
      served: Model key -> what was asked for.
      alive: Every version with a subtree, those that drain included.
    """

    def __init__(
        self, *, publish: Callable[[ModelEntry], None], withdraw: Callable[[str], None]
    ) -> None:
        self.served: dict[str, Served] = {}
        self.alive: set[Running] = set()
        self._publish = publish
        self._withdraw = withdraw
        self._entries: dict[str, ModelEntry] = {}
        self._table = RoutingTable({})

    def __repr__(self) -> str:
        return f"<ServedModels {len(self.served)} models, {len(self.alive)} running versions>"

    # What there is.

    def find(self, name: str, version: str, *, namespace: str = "") -> ModelVersion:
        """Return a READY version for a model that uses other models.

        Unlike for frontends, there are models while the server exits: what is in flight finishes.

        Args:
          name: The model's name.
          version: Decimal text; empty for the highest READY version.
          namespace: Of the model that uses it, if that is an ensemble; see `ModelNames.key`.
        """
        return self._table.find_within(namespace, name, version)

    def find_for_step(self, name: str, version: str, *, namespace: str = "") -> ModelVersion:
        """Return a version for a step of an ensemble that runs; see `find`.

        Unlike for all others, that may be one that is to be unloaded once the ensemble has ended.
        """
        try:
            return self._table.find_within(namespace, name, version)
        except RequestError:
            keys = self._table.names.candidates(name, namespace)
            lingering = [
                each.version
                for each in self.alive
                if each.version.key in keys
                and each.version.state is ModelState.UNLOADING
                and version in {"", each.version.version}
            ]
            if not lingering:
                raise
            return max(lingering, key=lambda each: int(each.version))

    def find_config(self, name: str, version: str, *, namespace: str = "") -> ModelConfig:
        """Return the final configuration of a READY version; see `find`."""
        return self.find(name, version, namespace=namespace).config

    def key(self, name: str, namespace: str) -> str:
        """Return the key of a model that a model of a namespace uses; see `ModelNames`."""
        return self._table.names.key(name, namespace)

    def known(self, name: str) -> frozenset[str]:
        """Return the keys of the models of a name."""
        return frozenset(key for key in self._entries if name_of(key) == name)

    def is_ready(self, key: str) -> bool:
        """Return whether the model of a key has a READY version."""
        return self._table.is_ready(key)

    def why_not_ready(self, key: str) -> str:
        """Return why the model of a key has no READY version."""
        entry = self._entries.get(key)
        if entry is None:
            return "there is no such model"
        reasons = [entry.reason, *(version.reason for version in entry.versions)]
        told = sorted(filter(None, reasons), key=is_unloaded)  # what failed goes first
        return told[0] if told else "it is not loaded"

    def running(self, keys: Iterable[str]) -> dict[str, RunningModel]:
        """Return what runs of these models, without those that were not asked for."""
        return {
            key: RunningModel(served.fingerprint, served.selected, served.ready)
            for key in keys
            if (served := self.served.get(key)) is not None
        }

    def needs(self) -> Needs:
        """Return which models the ensembles need that were asked for, by their keys."""
        return {
            key: self.needed(served.ensemble)
            for key, served in self.served.items()
            if served.ensemble is not None
        }

    def needed(self, ensemble: PreparedModel) -> frozenset[str]:
        """Return the keys of the models that an ensemble needs; all that a name may stand for."""
        namespace = ensemble.files.namespace
        return frozenset(
            key for name in ensemble.needed for key in self._table.names.candidates(name, namespace)
        )

    def implicit(self) -> set[str]:
        """Return the models that nobody asked for but ensembles."""
        return {key for key, served in self.served.items() if served.implicit}

    # What is shown of it.

    def show(self, key: str, versions: Versions, reason: str = "") -> None:
        """Take over what is new about one model, and make it known.

        Args:
          key: The model's key.
          versions: Version number -> what there is of it.
          reason: Why there are none.
        """
        shown = {
            number: each if isinstance(each, FailedVersion) else each.version
            for number, each in versions.items()
        }
        self._enter(ModelEntry(key, self._with_past(key, shown), reason))

    def changed(self, version: ModelVersion) -> None:
        """Make a new state of a version known, if that is the one that is shown."""
        entry = self._entries.get(version.key)
        if entry is not None and any(each is version for each in entry.versions):
            self._enter(entry)

    def show_failure(self, key: str, reasons: Mapping[int, str]) -> None:
        """Show why versions failed to load, while the old ones of the model serve on."""
        entry = self._entries[key]
        shown: dict[int, ShownVersion] = {}
        for each in entry.versions:
            if isinstance(each, ModelVersion):
                each.reason = reasons.get(int(each.version), each.reason)
                shown[int(each.version)] = each
        for number, reason in reasons.items():
            shown.setdefault(number, FailedVersion(str(number), reason))
        self._enter(ModelEntry(key, self._with_past(key, shown)))

    def _with_past(self, key: str, shown: Mapping[int, ShownVersion]) -> tuple[ShownVersion, ...]:
        """Return versions, and those of the model that were unloaded before or drain now."""
        entry = self._entries.get(key, ModelEntry(key))
        past: dict[int, ShownVersion] = {}
        for each in entry.versions:
            number = int(each.version)
            if number in shown:
                continue
            if each.state is ModelState.UNLOADING:
                past[number] = each
            elif is_unloaded(each.reason):
                past[number] = FailedVersion(each.version, UNLOADED)
        latest = dict(sorted(past.items())[-PAST_VERSIONS_MAX:])
        return tuple(each for _, each in sorted({**latest, **shown}.items()))

    def keep(self, key: str) -> None:
        """Note that a model was asked for that runs already, from what lies there."""
        served = self.served[key]
        served.implicit = False
        for running in served.versions.values():
            running.version.reason = ""
        self.show(key, served.versions)

    def show_unloaded(self, key: str) -> None:
        """Show that nobody wants a model; what still runs of it is shown as it is."""
        entry = self._entries[key]
        versions = tuple(
            each
            if each.state in {ModelState.READY, ModelState.UNLOADING}
            else FailedVersion(each.version, UNLOADED)
            for each in entry.versions
        )
        self._enter(ModelEntry(key, versions, "" if versions else UNLOADED))

    def forget(self, key: str) -> None:
        """Show a model no more, unless it was asked for or still runs."""
        entry = self._entries.get(key)
        if entry is None or key in self.served:
            return
        if all(each.state is ModelState.UNAVAILABLE for each in entry.versions):
            del self._entries[key]
            self._table = RoutingTable(self._entries.copy())
            self._withdraw(key)

    def _enter(self, entry: ModelEntry) -> None:
        self._entries[entry.key] = entry
        self._table = RoutingTable(self._entries.copy())
        self._publish(entry)
