"""Where a request goes: the model versions there are, as an immutable snapshot.

A frontend looks a version up with one or two dictionary reads. Whatever changes makes a new table
(see `router`), so a look-up never sees half a change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Protocol, final

import trio

from ..backends.llm.text import Text
from ..backends.openai_settings import OpenAiSettings
from ..protocol.errors import ErrorCode, FailureReason, RequestError, invalid_argument
from ..protocol.model_spec import ModelSpec
from ..protocol.pb.inference import ModelConfig
from ..protocol.statistics import ModelStatistics
from ..protocol.version_policy import VERSION_MAX
from ..protocol.wording import quoted
from ._completion import nanoseconds
from ._model_keys import ModelNames, key_of, name_of, printed
from .messages import Cancel, Infer, SchedulerMessage


class ModelState(Enum):
    """The life cycle of a model version, in the terms of the repository index."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


class Submits(Protocol):
    """What may stand in front of a scheduler."""

    def submit(self, infer: Infer) -> None:
        """Take a validated request; see `ModelVersion.submit`."""


UNLOADED = "unloaded"
"""The reason of a version that was unloaded on request; it does not count for readiness."""


def is_unloaded(reason: str) -> bool:
    """Return whether this is the reason of a version that was unloaded, and did not fail.

    Those of ensembles that went with a model say so behind `UNLOADED`; those of failures begin with
    the display name of an error code.
    """
    return reason.startswith(UNLOADED)


@final
class ModelVersion:
    """One version of a model, as the frontends see it.

    Attributes:
      spec: What its requests are checked against.
      config: Its final configuration.
      statistics: Its counters.
      state: Its life cycle; changed by its model subtree only.
      reason: Why it is UNAVAILABLE, or why a load that should have replaced it failed; else empty.
      load_duration_s: How long its load took, in seconds.
      namespace: The repository that tells it from models of the same name; "" without namespaces.
      loaded: Whether its load succeeded, whatever became of it since.
      caching: Takes its requests in front of the scheduler, or None.
      check_ready: Returns whether it is READY and its model says so too, within a few seconds; None
        if the model has no say in it.
      text: The tokenizer of its model, if that generates text; set once it is loaded.
      tokens_max: Most tokens of a text with its prompt, likewise; None if that is not known.
      openai: What it says for OpenAI's API.
      explain: Returns how its scheduler forms batches, as JSON values; None if it forms none.
    """

    def __init__(
        self,
        *,
        spec: ModelSpec,
        config: ModelConfig,
        statistics: ModelStatistics,
        inbox: trio.MemorySendChannel[SchedulerMessage],
        namespace: str = "",
    ) -> None:
        self.spec = spec
        self.config = config
        self.statistics = statistics
        self.state = ModelState.LOADING
        self.reason = ""
        self.load_duration_s = 0.0
        self.namespace = namespace
        self.loaded = False
        self.caching: Submits | None = None
        self.check_ready: Callable[[], Awaitable[bool]] | None = None
        self.text: Text | None = None
        self.tokens_max: int | None = None
        self.openai = OpenAiSettings()
        self.explain: Callable[[], dict[str, Any] | None] | None = None
        self._inbox = inbox

    def __repr__(self) -> str:
        return f"<ModelVersion {self.name} version {self.version} {self.state.value}>"

    @property
    def name(self) -> str:
        """The model's name."""
        return self.spec.name

    @property
    def version(self) -> str:
        """The version as decimal text."""
        return self.spec.version

    @property
    def key(self) -> str:
        """What tells its model from all others; see `_model_keys`."""
        return key_of(self.namespace, self.name)

    @property
    def metric_tags(self) -> dict[str, str]:
        """The `metric_tags` of the configuration."""
        return self.config.metric_tags

    def submit(self, infer: Infer) -> None:
        """Take a validated request; its reply gets exactly one final response.

        Closing the reply before that cancels the request. A cached response is there at once.

        Raises:
          RequestError: the scheduler cannot take it; counted, and nothing is sent on the reply.
        """
        if self.caching is None:
            self.enqueue(infer)
        else:
            self.caching.submit(infer)

    def enqueue(self, infer: Infer) -> None:
        """Hand a request to the scheduler; see `submit`."""
        try:
            self._inbox.send_nowait(infer)
        except (trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError) as fault:
            waited_s = trio.current_time() - infer.arrived_s
            self.statistics.record_failure(FailureReason.REJECTED, nanoseconds(waited_s))
            full = isinstance(fault, trio.WouldBlock)
            raise RequestError(
                ErrorCode.UNAVAILABLE,
                f"model '{self.name}' version {self.version} takes no more requests: "
                + ("too many arrive at once" if full else "it has stopped"),
                reason=FailureReason.REJECTED,
            ) from None
        self.statistics.pending_count += 1
        infer.reply.on_close = partial(self._cancel, infer)

    def _cancel(self, infer: Infer) -> None:
        # A batcher whose inbox was full looks at the `cancelled` flags by itself.
        with suppress(trio.WouldBlock, trio.BrokenResourceError, trio.ClosedResourceError):
            self._inbox.send_nowait(Cancel(infer))


@dataclass(frozen=True, slots=True)
class FailedVersion:
    """A version whose configuration cannot be served; attributes as of `ModelVersion`."""

    version: str
    reason: str
    state: ModelState = ModelState.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """What is known of one model.

    Attributes:
      key: The model's key; see `_model_keys`.
      versions: Its selected versions, and those that were served before, ascending.
      reason: Why none was selected; "" if some were, or if it was never loaded.
    """

    key: str
    versions: tuple[ModelVersion | FailedVersion, ...] = ()
    reason: str = ""

    @property
    def wanted(self) -> bool:
        """Whether it was asked for, and not unloaded since."""
        return self.reason not in {"", UNLOADED} or any(
            each.reason != UNLOADED and each.state is not ModelState.UNLOADING
            for each in self.versions
        )

    @property
    def unloaded(self) -> bool:
        """Whether it was unloaded since it was asked for."""
        return bool(self.versions or self.reason) and not self.wanted


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of the repository index.

    Attributes:
      key: The model's key; see `_model_keys`.
      version: Decimal text, or None where no version is known.
      state: Its state; UNKNOWN for a model that was never loaded.
      reason: Why it is UNAVAILABLE, as "<display name of the code>: <message>".
    """

    key: str
    version: str | None
    state: ModelState
    reason: str = field(default="")

    @property
    def name(self) -> str:
        """The model's name."""
        return name_of(self.key)

    @property
    def printed(self) -> str:
        """What the log calls the model."""
        return printed(self.key)

    @property
    def failed(self) -> bool:
        """Whether it should serve and cannot."""
        return self.state is ModelState.UNAVAILABLE and not is_unloaded(self.reason)


@final
class RoutingTable:
    """An immutable snapshot of all models.

    Args:
      models: Model key -> entry.
      exiting: Whether the server shuts down, so that every look-up fails.

    Attributes:
      names: Which models a name stands for.
    """

    def __init__(self, models: Mapping[str, ModelEntry], *, exiting: bool = False) -> None:
        self._models = models
        self._exiting = exiting
        self._ready: dict[str, dict[str, ModelVersion]] = {}
        self._latest: dict[str, ModelVersion] = {}
        self.names = ModelNames(models)
        self._ready_of: dict[str, dict[str, ModelVersion]] = {}  # by name, if only one has it
        self._latest_of: dict[str, ModelVersion] = {}
        if exiting:
            return
        for key, entry in models.items():
            for version in entry.versions:
                if isinstance(version, ModelVersion) and version.state is ModelState.READY:
                    self._ready.setdefault(key, {})[version.version] = version
                    self._latest[key] = version
        if self.names.are_keys:
            self._ready_of, self._latest_of = self._ready, self._latest
            return
        for name, key in self.names.unique().items():
            if key in self._ready:
                self._ready_of[name] = self._ready[key]
                self._latest_of[name] = self._latest[key]

    def find(self, name: str, version: str = "") -> ModelVersion:
        """Return a READY version of a model.

        Args:
          name: The model's name.
          version: Decimal text; empty for the highest READY version.

        Raises:
          RequestError: there is none (see "Model lookup" in the KServe v2 HTTP interface), or
            models in several namespaces have this name.
        """
        found = self._ready_of.get(name, {}).get(version) if version else self._latest_of.get(name)
        if found is None:
            if self._exiting:
                raise RequestError(ErrorCode.UNAVAILABLE, "the server is exiting")
            found = self._find_unusual(name, version, self.names.key(name))
        return found

    def find_within(self, namespace: str, name: str, version: str) -> ModelVersion:
        """Return a READY version for a model of a namespace; see `find`."""
        if not namespace:
            return self.find(name, version)
        key = self.names.key(name, namespace)
        found = self._ready.get(key, {}).get(version) if version else self._latest.get(key)
        return self._find_unusual(name, version, key) if found is None else found

    def is_ready(self, key: str) -> bool:
        """Return whether the model of a key has a READY version."""
        return key in self._ready

    def _find_unusual(self, name: str, version: str, key: str) -> ModelVersion:
        """Find a version that is spelled oddly, or raise why there is none."""
        number = _version_number(version) if version else None
        entry = self._models.get(key)
        if entry is None:
            raise RequestError(
                ErrorCode.NOT_FOUND, f"expected the name of a known model, got {quoted(name)}"
            )
        if number is None and not (entry.versions or entry.reason):
            raise RequestError(
                ErrorCode.NOT_FOUND,
                f"model {quoted(name)} is not loaded; with explicit model control a load request "
                "or --load-model loads it",
            )
        if number is None:
            raise RequestError(
                ErrorCode.NOT_FOUND,
                f"no version of model {quoted(name)} is available; the repository index says why",
            )
        found = self._ready.get(key, {}).get(str(number))
        if found is not None:
            return found
        if any(known.version == str(number) for known in entry.versions):
            raise RequestError(
                ErrorCode.UNAVAILABLE, f"model {quoted(name)} version {number} is not ready"
            )
        raise RequestError(ErrorCode.NOT_FOUND, f"model {quoted(name)} has no version {number}")

    def versions_ready(self, name: str) -> list[str]:
        """Return the READY versions of a model, ascending, as decimal text."""
        return list(self._ready_of.get(name, {}))

    def ready_versions(self) -> list[ModelVersion]:
        """Return every READY version of every model, by key and version."""
        return [version for key in sorted(self._ready) for version in self._ready[key].values()]

    def serving_versions(self) -> list[ModelVersion]:
        """Return every version that has requests, may get some, or failed while it served.

        Also while the server exits, since then it is watched as well.
        """
        return [
            version
            for _, entry in self._sorted()
            for version in entry.versions
            if isinstance(version, ModelVersion)
            and version.loaded
            and not is_unloaded(version.reason)
        ]

    def statistics_of(self, name: str = "", version: str = "") -> list[ModelVersion]:
        """Return the READY versions whose statistics are asked for.

        Args:
          name: A model's name, or empty for all models.
          version: Decimal text, or empty for all READY versions.

        Raises:
          RequestError: the model or the version is not READY, or models in several namespaces
            have this name.
        """
        if not name:
            return self.ready_versions()
        ready = self._ready_of.get(name)
        if ready is None:
            self.names.key(name)
            raise invalid_argument(f"expected the name of a ready model, got {quoted(name)}")
        if not version:
            return list(ready.values())
        found = ready.get(str(_version_number(version)))
        if found is None:
            raise invalid_argument(
                f"version {quoted(version)} of model {quoted(name)} is not available"
            )
        return [found]

    def index(
        self, *, ready_only: bool = False, present: Collection[str] | None = None
    ) -> list[IndexEntry]:
        """Return the repository index, by key and version.

        Args:
          ready_only: Whether to leave out all that is not READY.
          present: The keys of the models that lie in a repository now; None if nobody looked. They
            are listed even if nothing else is known of them, and others only if they failed.
        """
        entries: list[IndexEntry] = []
        for key, entry in self._sorted():
            if entry.reason or not entry.versions:
                state = ModelState.UNAVAILABLE if entry.reason else ModelState.UNKNOWN
                entries.append(IndexEntry(key, None, state, entry.reason))
            entries += [
                IndexEntry(key, known.version, known.state, known.reason)
                for known in entry.versions
            ]
        if present is not None:
            entries = [entry for entry in entries if entry.key in present or entry.failed]
            new = set(present).difference(self._models)
            entries += [IndexEntry(key, None, ModelState.UNKNOWN) for key in new]
            entries.sort(key=lambda entry: entry.key)  # the versions stay in their order
        if ready_only:
            return [entry for entry in entries if entry.state is ModelState.READY]
        return entries

    def all_ready(self) -> bool:
        """Return whether everything that should serve does: the strict sense of readiness."""
        return not any(entry.state is ModelState.LOADING or entry.failed for entry in self.index())

    def _sorted(self) -> Iterable[tuple[str, ModelEntry]]:
        return sorted(self._models.items())


def _version_number(version: str) -> int:
    """Parse the version of a request; unlike in a repository, zeros in front do no harm."""
    digits = version.lstrip("0") or "0"
    if not (version.isascii() and version.isdigit()) or len(digits) > len(str(VERSION_MAX)):
        raise invalid_argument(
            f"expected a version that is an integer greater than 0, got {quoted(version)}"
        )
    return int(digits)
