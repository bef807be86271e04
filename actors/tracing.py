"""Which requests are traced, and what becomes of their traces."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from time import perf_counter_ns
from typing import Protocol, final

import trio

from ..protocol.errors import ErrorCode, RequestError
from ..protocol.requests import InferRequest
from ..protocol.trace import Trace
from ..protocol.trace_config import OPENTELEMETRY, TraceConfig
from ..protocol.trace_context import TraceContext
from ..protocol.trace_settings import TraceSetting, TraceSettings, Update
from ..protocol.wording import installing
from ._trace_files import TraceFiles
from ._worker_threads import RunInThread


class TraceSink(Protocol):
    """Where traces go."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do what goes on beside the requests, until cancelled or stopped."""

    async def stop(self) -> None:
        """Let go of everything, in bounded time."""

    def new_context(self, caller: TraceContext | None) -> TraceContext | None:
        """Return a new span of the caller's trace, or of one of its own; None without spans."""

    def begun(self, setting: TraceSetting) -> None:
        """Note that a trace was begun."""

    def ended(self, trace: Trace) -> None:
        """Take a trace that has ended."""

    def replaced(self, settings: Iterable[TraceSetting]) -> None:
        """Note that settings are not in force any more."""


@final
class Tracing:
    """Owns the settings of a server, and samples its requests.

    Lifetime: `run` once, and `stop` after the last request. Everything is on the event loop.

    Args:
      config: What is traced from the start.
      run_in_thread: Writes files.

    Attributes:
      active: Whether any request may be traced. While it is False, nothing else is asked.

    Raises:
      RequestError: UNSUPPORTED; OpenTelemetry is not installed.
    """

    def __init__(self, config: TraceConfig, run_in_thread: RunInThread) -> None:
        self._settings = TraceSettings(config)
        self._numbers = itertools.count(1)
        self._makes_spans = config.mode == OPENTELEMETRY
        self._sink = _open_sink(config, run_in_thread)
        self.active = self._settings.traces

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write or send what is due until cancelled or stopped."""
        await self._sink.run(task_status=task_status)

    async def stop(self) -> None:
        """Write or send everything, in bounded time; nothing is traced any more."""
        self.active = False
        await self._sink.stop()

    def texts(self, model: str = "") -> dict[str, list[str]]:
        """Return a model's setting, or the global one: setting -> values."""
        return self._settings.texts(model)

    def update(self, model: str, update: Update) -> None:
        """Change a model's setting, or with "" the global one.

        Raises:
          RequestError: see `TraceSettings.update`; nothing has changed.
        """
        self._sink.replaced(self._settings.update(model, update))
        self.active = self._settings.traces

    def sample(
        self,
        request: InferRequest,
        activities: tuple[str, ...],
        started_ns: int,
        caller: TraceContext | None = None,
    ) -> Trace | None:
        """Decide whether a client's request is traced; if so, it has its trace from now on.

        Args:
          request: Decoded, not validated yet. Whoever submits it has to.
          activities: The names of the frontend's, of which the first two are noted.
          started_ns: When receiving it began.
          caller: The span of the client that waits for it; it is always traced then.
        """
        setting = self._settings.of(request.model_name)
        if not setting.sample(forced=self._makes_spans and caller is not None):
            return None
        if setting.count_left == 0:
            self.active = self._settings.traces
        root = self._sink.new_context(caller)
        trace = Trace(
            self,
            next(self._numbers),
            setting,
            context=None if root is None else self._sink.new_context(root),
            caller=None if root is None else caller,
            root=root,
        )
        trace.stamp(activities[0], started_ns)
        trace.stamp(activities[1], perf_counter_ns())
        request.trace = trace
        return trace

    def child(self, parent: Trace) -> Trace:
        """Return a trace of a request that is made for another one; callable from any thread."""
        context = None if parent.context is None else self._sink.new_context(parent.context)
        return Trace(
            self,
            next(self._numbers),
            parent.setting,
            parent=parent,
            context=context,
            caller=parent.context,
        )

    def begun(self, trace: Trace) -> None:
        """Note that a trace will be `finished`."""
        self._sink.begun(trace.setting)

    def finished(self, trace: Trace) -> None:
        """Take a trace to which nothing will be added."""
        self._sink.ended(trace)


def _open_sink(config: TraceConfig, run_in_thread: RunInThread) -> TraceSink:
    if config.mode != OPENTELEMETRY:
        return TraceFiles(config.file, run_in_thread)
    try:
        from ._trace_spans import TraceSpans  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            f"the trace mode {OPENTELEMETRY} needs the extra 'tracing' ({installing('tracing')}): "
            f"{error}",
        ) from None
    return TraceSpans(config)
