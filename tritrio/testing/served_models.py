"""Models on virtual time: no socket, no thread, and the same batchers and instances as ever."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from itertools import count
from math import inf
from pathlib import Path
from typing import Any, TypeAlias, final

import trio

from ..actors.core import Core, run_core
from ..actors.inference import submit
from ..actors.reply import Reply
from ..actors.routing_table import ModelState, ModelVersion
from ..backends.base import Batch, InstancePlace
from ..backends.llm.steps import StepPlan
from ..inprocess.requests import RequestOptions, make_request
from ..options import ServerOptions
from ..protocol.config_rules import instances
from ..protocol.requests import InferRequest, Parameters
from ..server import StartError, core_options
from ..serving import open_repositories
from .calls import Call
from .fake_device import FakeDevices, at_once


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ExecutedBatch:
    """One batch, as an instance got it.

    Attributes:
      at_s: When its execution began, in virtual seconds.
      ids: The ids of its requests, in their order.
      rows: Rows of all requests; those of a model that does not batch count as one each.
      reason: Why it left the queue, as `GET /v2/models/MODEL/batching` says it; None if the
        model's scheduler does not tell.
      model: The model's name; not compared.
      instance: The instance's name; not compared.
    """

    at_s: float
    ids: tuple[str, ...]
    rows: int
    reason: str | None = None
    model: str = dataclasses.field(default="", compare=False)
    instance: str = dataclasses.field(default="", compare=False)


ExecutionSeconds: TypeAlias = float | Callable[[ExecutedBatch], float]
"""What an execution takes, in virtual seconds."""


@final
class ServedModels:
    """Models that run, for one test; made by `serve_models`."""

    def __init__(self, execution_s: ExecutionSeconds) -> None:
        self._execution_s = execution_s
        self._batches: list[ExecutedBatch] = []
        self._calls: list[Call] = []
        self._places: dict[str, int] = {}  # id -> how many were sent before
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._changed = trio.Event()
        self._start_s = trio.current_time()
        self._core: Core
        self._nursery: trio.Nursery

    @property
    def now_s(self) -> float:
        """Virtual seconds since the models were loaded."""
        return trio.current_time() - self._start_s

    @property
    def batches(self) -> list[ExecutedBatch]:
        """What was executed so far, in the order in which it began.

        What began at the same time is in the order in which the first requests were sent.
        """
        places = self._places
        return sorted(self._batches, key=lambda batch: (batch.at_s, places.get(batch.ids[0], 0)))

    def batches_of(self, model: str) -> list[ExecutedBatch]:
        """Return what was executed by one model so far."""
        return [batch for batch in self.batches if batch.model == model]

    async def advance(self, duration_s: float) -> None:
        """Let time pass."""
        await trio.sleep(duration_s)

    def at(
        self,
        at_s: float,
        inputs: Mapping[str, Any],
        *,
        model: str | None = None,
        id: str | None = None,  # noqa: A002 - the field's name on every wire
        outputs: Sequence[str] = (),
        parameters: Parameters | None = None,
        priority: int = 0,
        timeout_us: int = 0,
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> Call:
        """Send a request at a virtual time; what is due at one time is sent in this order.

        Args:
          at_s: When, in virtual seconds; not in the past.
          inputs: Input name -> array, or what an array of the input's data type is made from; with
            the batch dimension if the model batches. BYTES elements arrive as bytes; text is UTF-8.
          model: The model's name; not needed where only one is served.
          id: The request's id; by default "1", "2" and so on.
          outputs: The outputs to return; all if empty.
          parameters: Custom parameters.
          priority: 0 is the model's default.
          timeout_us: How long it may wait in the queue, in microseconds; 0 is no limit.
          sequence_id: Its sequence; 0 is none.
          sequence_start: Whether it is the first of its sequence.
          sequence_end: Whether it is the last of its sequence.

        Raises:
          ValueError: the time is past, or it is not clear which model is meant.
          RequestError: there is no such model.
        """
        request = make_request(
            self._find(model).spec,
            "",
            inputs,
            RequestOptions(
                id=str(len(self._calls) + 1) if id is None else id,
                outputs=outputs,
                parameters=parameters,
                priority=priority,
                timeout_us=timeout_us,
                sequence_id=sequence_id,
                sequence_start=sequence_start,
                sequence_end=sequence_end,
            ),
        )
        call = Call(request, at_s, now_s=lambda: self.now_s, plan=self._plan)
        self._plan(at_s, lambda: call.begin(self._submit, self._nursery))
        self._calls.append(call)
        return call

    def _find(self, model: str | None) -> ModelVersion:
        if model is not None:
            return self._core.router.find(model, "")
        names = {version.name for version in self._core.router.measured_models()}
        if len(names) != 1:
            raise ValueError(f"expected model= as one of {sorted(names)}, got none")
        return self._core.router.find(names.pop(), "")

    def _submit(self, request: InferRequest) -> Reply:
        self._places.setdefault(request.id, len(self._places))
        version = self._core.router.find(request.model_name, "")
        return submit(version, request, trio.current_time())

    def _plan(self, at_s: float, action: Callable[[], None]) -> None:
        if at_s < self.now_s:
            raise ValueError(f"expected a time from now on, {self.now_s:g} s, got {at_s:g} s")
        heapq.heappush(self._due, (self._start_s + at_s, next(self._numbers), action))
        self._changed.set()

    async def _act_when_due(self) -> None:
        while True:
            self._changed = trio.Event()
            while self._due and self._due[0][0] <= trio.current_time():
                heapq.heappop(self._due)[2]()
            with trio.move_on_at(self._due[0][0] if self._due else inf):
                await self._changed.wait()

    def _begin_batch(self, place: InstancePlace, batch: Batch) -> float:
        """Note a batch that an instance begins, and return what it takes."""
        model = batch.requests[0].model_name
        executed = ExecutedBatch(
            at_s=self.now_s,
            ids=tuple(request.id for request in batch.requests),
            rows=sum(request.batch_size for request in batch.requests),
            reason=self._reason(model, place.name),
            model=model,
            instance=place.name,
        )
        self._batches.append(executed)
        return self._execution_s(executed) if callable(self._execution_s) else self._execution_s

    def _step_s(self, plan: StepPlan) -> float:
        """Return what a step takes; nothing if it asks the model for nothing."""
        if callable(self._execution_s) or not (plan.decodes or plan.prefills):
            return 0.0
        return self._execution_s

    def _reason(self, model: str, instance: str) -> str | None:
        """Return why the batch left that an instance has just got."""
        version = self._core.router.find(model, "")
        decisions = ((version.explain and version.explain()) or {}).get("decisions", ())
        active = [each.name for each in instances(version.config) if not each.group.passive]
        index = active.index(instance)
        return next((each["reason"] for each in decisions if each["instance"] == index), None)

    async def run(self, options: ServerOptions, nursery: trio.Nursery) -> None:
        """Load the models; they run in the nursery.

        Raises:
          StartError: a model cannot be loaded.
        """
        settings = dataclasses.replace(
            core_options(options),
            device_factory=FakeDevices(self._begin_batch, step_seconds=self._step_s),
            run_in_thread=at_once,
            text_in_thread=at_once,
        )
        self._nursery = nursery
        self._core = await nursery.start(run_core, settings)
        for entry in self._core.router.table.index():
            if entry.state is not ModelState.READY:
                raise StartError(f"model {entry.name} cannot be loaded: {entry.reason}")
        self._start_s = trio.current_time()
        nursery.start_soon(self._act_when_due)

    async def finish(self) -> None:
        """Wait for every request, and unload the models.

        Raises:
          RequestError: a request failed, and nobody asked for its answer.
        """
        for call in self._calls:
            await call.ended()
        await self._core.stop()
        for call in self._calls:
            if call.unnoticed_error is not None:
                raise call.unnoticed_error


@asynccontextmanager
async def serve_models(
    *models: Callable[..., Any] | Path | str,
    execution_s: ExecutionSeconds = 0.0,
    **options: Any,
) -> AsyncIterator[ServedModels]:
    """Run models on virtual time while the block runs; needs trio and a clock that jumps.

    At the end every request that is due is waited for, and what failed without anybody asking for
    its answer fails the test.

    Args:
      models: Functions and classes with the decorator `tritrio.model`, model repositories, or
        directories of one model.
      execution_s: What an execution takes, in virtual seconds; as a number, also what a step of a
        model that generates text takes.
      options: Fields of `ServerOptions`; addresses and ports mean nothing.

    Yields:
      The models.

    Raises:
      StartError: a model cannot be loaded.
    """
    served = ServedModels(execution_s)
    fault: BaseException | None = None
    with ExitStack() as stack:
        repositories = open_repositories(models, stack)
        async with trio.open_nursery() as nursery:
            try:
                await served.run(ServerOptions(model_repositories=repositories, **options), nursery)
                yield served
                await served.finish()
            except (trio.Cancelled, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - raised below, where no group wraps it
                fault = error
            nursery.cancel_scope.cancel()
    if fault is not None:
        raise fault
