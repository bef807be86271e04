"""What one round of changes to the models does, in order: loads, then ensembles, then the rest.

Versions are replaced without a gap: the new ones are READY, then they are found in the place of the
old ones, in one step. What was replaced is for the repository to end.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final, assert_never, final

import trio

from ..protocol.errors import RequestError, invalid_argument
from ..protocol.wording import quoted, without_model
from ._ensemble_validation import too_deep
from ._model_keys import name_of, printed
from ._model_preparation import PreparedModel
from ._model_relations import waves
from ._override_files import OverrideFiles
from ._repository_policy import LoadModel, RefuseModel
from .instance_updates import InstanceUpdates
from .model import reason_of
from .model_loader import Made, ModelLoader, is_ready, running_of
from .routing_table import UNLOADED, FailedVersion, is_unloaded
from .served_models import Running, Served, ServedModels

REPLACED: Final = f"{UNLOADED} as it was before, since a later load has replaced it"
"""What is said in the end of a version that another one of its number replaced."""

GIVEN_UP: Final = f"{UNLOADED} again, since its model failed to load; what served before goes on"
"""What is said in the end of a version that was to replace another one, and does not."""

_logger = logging.getLogger(__name__)


@final
class Changeover:
    """One round of changes.

    Args:
      models: What is served.
      loader: Makes model versions run.
      nursery: Where their subtrees run.
      implicit: Models that nobody asked for but ensembles.
      held: Model key -> the files that came with its load request.

    Attributes:
      retired: Versions that were replaced, or are no longer served.
      errors: Model key -> why it was not loaded.
    """

    def __init__(
        self,
        *,
        models: ServedModels,
        loader: ModelLoader,
        nursery: trio.Nursery,
        implicit: Collection[str],
        held: Mapping[str, OverrideFiles],
    ) -> None:
        self.retired: list[Running] = []
        self.errors: dict[str, RequestError] = {}
        self._models = models
        self._loader = loader
        self._nursery = nursery
        self._implicit = implicit
        self._held = held
        self._ensembles: dict[str, PreparedModel] = {}  # to be loaded once all else is
        self._changed: set[str] = set()  # models that have other versions than before

    def __repr__(self) -> str:
        return f"<Changeover of {sorted(self._changed)}, {len(self.errors)} failed>"

    def note_unloaded(self, key: str) -> None:
        """Have ensembles made anew that may use another model of the same name now."""
        self._changed |= self._models.known(name_of(key)) - {key}

    async def load(self, actions: Iterable[LoadModel | RefuseModel]) -> None:
        """Load models, then the ensembles among them and those that use one of them."""
        async with trio.open_nursery() as loads:
            for action in actions:
                match action:
                    case LoadModel():
                        loads.start_soon(self._load, action)
                    case RefuseModel(key=key, error=error):
                        self._fail(key, error)
                    case _:
                        assert_never(action)
        await self._load_ensembles()

    async def _load(self, action: LoadModel) -> None:
        """Load one model, or put it back if it is an ensemble."""
        key = action.key
        served = self._models.served.get(key, Served())
        # Each version of an ensemble is made from all that is known.
        unchanged = () if served.ensemble is not None else action.unchanged
        kept = {number: served.versions[number] for number in unchanged}
        reconfigured = () if served.ensemble is not None else action.reconfigured
        updates = InstanceUpdates({number: served.versions[number] for number in reconfigured})
        try:
            outcome = await self._loader.load(
                action.files,
                self._nursery,
                unchanged=unchanged,
                updates=updates,
                held=self._held.get(key),
                show=lambda made: self._show_begun(key, kept, made),
            )
            if outcome.prepared is None:
                assert outcome.fault is not None
                self.retired += running_of(outcome.made).values()
                self._fail(key, outcome.fault)
            elif outcome.prepared.needed:
                self._ensembles[key] = outcome.prepared
            else:
                if all(map(is_ready, outcome.made.values())):
                    changed = await updates.commit()
                    kept |= changed
                    for number in [number for number, each in changed.items() if each.ready]:
                        about = {"model": action.files.name, "version": str(number)}
                        text = "model %s version %s is READY with other instances"
                        _logger.info(text, printed(key), number, extra=about)
                self._commit(outcome.prepared, kept, outcome.made)
        finally:
            await updates.undo()

    async def _load_ensembles(self) -> None:
        """Load ensembles, each after the models it uses; make those anew whose models changed."""
        models = self._models
        for key, prepared in self._ensembles.items():
            if prepared.files.namespace and key not in models.served:
                models.show(key, {})  # so that others of its namespace find it
        needs = dict(models.needs())
        needs |= {key: models.needed(prepared) for key, prepared in self._ensembles.items()}
        ordered, refused = waves(needs)
        refused |= too_deep(ordered, needs)
        for key in self._ensembles.keys() & refused.keys():
            self._fail(key, refused[key], self._ensembles[key])
        for depth, wave in enumerate(ordered, 1):
            async with trio.open_nursery() as loads:
                for key in wave:
                    if key not in refused and self._is_due(key):
                        loads.start_soon(self._load_ensemble, key, depth)

    def _is_due(self, key: str) -> bool:
        """Return whether an ensemble is to be loaded, or to be made anew."""
        if key in self._ensembles:
            return True
        served = self._models.served.get(key)
        if served is None or served.ensemble is None:
            return False
        return not self._changed.isdisjoint(self._models.needed(served.ensemble))

    async def _load_ensemble(self, key: str, depth: int) -> None:
        asked = key in self._ensembles
        prepared = self._ensembles[key] if asked else self._models.served[key].ensemble
        assert prepared is not None
        unmet = self._unmet(prepared)
        if unmet is not None:
            if asked or self._models.served[key].ready:
                self._fail(key, unmet, prepared, stays=asked)
            return
        goes = not asked and self._has_served(key)
        made = await self._loader.start(
            prepared.versions,
            self._nursery,
            namespace=prepared.files.namespace,
            depth=depth,
            held=self._held.get(key),
            show=lambda made: self._show_begun(key, {}, made),
        )
        self._commit(prepared, {}, made, asked=asked, goes=goes)

    def _unmet(self, ensemble: PreparedModel) -> RequestError | None:
        """Return why an ensemble cannot be loaded, if a model that it needs is not."""
        for model in sorted(ensemble.needed):
            needs = f"ensemble '{ensemble.files.name}' needs model {quoted(model)}"
            try:
                key = self._models.key(model, ensemble.files.namespace)
            except RequestError as error:
                return invalid_argument(f"{needs}: {error.message}")
            if not self._models.is_ready(key):
                why = without_model(model, self._models.why_not_ready(key))
                return invalid_argument(f"{needs}, which has no loaded version: {why}")
        return None

    def _show_begun(self, key: str, kept: Mapping[int, Running], made: Made) -> None:
        """Show versions that load, unless others of the model serve meanwhile."""
        if not self._models.is_ready(key):
            self._models.show(key, {**kept, **made})

    def _commit(
        self,
        prepared: PreparedModel,
        kept: Mapping[int, Running],
        made: Made,
        *,
        asked: bool = True,
        goes: bool = False,
    ) -> None:
        """Put new versions in the place of the old ones, in one step.

        Args:
          prepared: The model.
          kept: Versions that go on.
          made: Versions that are new.
          asked: Whether the old ones go on if a new one has failed; otherwise they cannot.
          goes: Whether one that has failed counts as unloaded.
        """
        key = prepared.files.key
        old = self._models.served.get(key, Served())
        kept = {number: each for number, each in kept.items() if number in prepared.selected}
        failed = {number: each for number, each in made.items() if not is_ready(each)}
        if failed:
            self.errors[key] = _load_error(prepared.files.name, failed)
        if failed and asked and old.ready:
            for given_up in running_of(made).values():
                given_up.model.begin_unload(GIVEN_UP)
                self.retired.append(given_up)
            self._models.show_failure(key, {n: _reason(each) for n, each in failed.items()})
            return
        if goes:
            name = prepared.files.name
            made = made | {
                n: FailedVersion(str(n), _gone(name, _reason(each))) for n, each in failed.items()
            }
        self._models.served[key] = Served(
            prepared.files.fingerprint,
            {**kept, **running_of(made)},
            frozenset(prepared.selected),
            prepared if prepared.needed else None,
            self._is_implicit(key, asked=asked),
        )
        dropped = {
            number: each
            for number, each in old.versions.items()
            if each.ready and number not in prepared.selected
        }
        for each in kept.values():
            each.version.reason = ""
        self._models.show(key, {**dropped, **kept, **made})
        replaced = {number: each for number, each in old.versions.items() if number not in kept}
        for number, each in replaced.items():
            each.model.begin_unload(REPLACED if number in prepared.selected else UNLOADED)
        self.retired += replaced.values()
        if made or replaced:
            self._changed.add(key)

    def _fail(
        self,
        key: str,
        error: RequestError,
        ensemble: PreparedModel | None = None,
        *,
        stays: bool = True,
    ) -> None:
        """Note why a model is not loaded; what serves of it goes on, if it can (`stays`)."""
        self.errors[key] = error
        reason = reason_of(error)
        served = self._models.served.get(key)
        if stays and served is not None and served.ready:
            self._models.show_failure(key, dict.fromkeys(served.ready, reason))
            return
        if served is not None:
            for running in served.versions.values():
                running.model.begin_unload()
            self.retired += served.versions.values()
        if not stays:
            reason = _gone(name_of(key), reason)
        implicit = self._is_implicit(key, asked=stays)
        self._models.served[key] = Served(ensemble=ensemble, implicit=implicit)
        self._models.show(key, {}, reason)

    def _has_served(self, key: str) -> bool:
        """Return whether an ensemble serves until now, or went with a model that it needs."""
        return self._models.is_ready(key) or is_unloaded(self._models.why_not_ready(key))

    def _is_implicit(self, key: str, *, asked: bool) -> bool:
        served = self._models.served.get(key)
        if asked and key not in self._implicit:
            return False
        return served is None or served.implicit


def _reason(made: Running | FailedVersion) -> str:
    return made.reason if isinstance(made, FailedVersion) else made.version.reason


def _gone(name: str, reason: str) -> str:
    """Return the reason of an ensemble that nobody asked to load, and that its models end.

    As with Triton it counts as unloaded, so that a load of another model that was asked for does
    not make the server unready.
    """
    return f"{UNLOADED}, since its models have changed: {without_model(name, reason)}"


def _load_error(name: str, failed: Made) -> RequestError:
    """Return the error of a load, with what became of each version that failed."""
    versions = "".join(
        f" version {number} is UNAVAILABLE: {without_model(name, _reason(each))};\n"
        for number, each in sorted(failed.items())
    )
    return invalid_argument(f"model '{name}' failed to load:{versions}")
