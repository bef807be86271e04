"""The ensemble actor: one per version of an ensemble. Inbox `SchedulerMessage`, no outboxes.

It takes the place of a batcher. Each request is a task that hands requests to the composing models
and waits for their responses (see `_ensemble_request`).
"""

from __future__ import annotations

from typing import TypeAlias, final

import trio

from ..backends.model_outputs import forms_of
from ..memory.budget import ByteBudget
from ..protocol.errors import ErrorCode, FailureReason, RequestError
from ..protocol.model_spec import ModelSpec
from ._completion import Completion
from ._ensemble_graph import EnsembleGraph
from ._ensemble_limits import InflightLimit
from ._ensemble_request import EnsembleParts, EnsembleRequest, Find
from .messages import Infer, SchedulerMessage, Stop

Inbox: TypeAlias = trio.MemoryReceiveChannel[SchedulerMessage]

RUNNING_MAX = 8192
"""Requests of one ensemble that run at a time: each is a task of some ten kilobytes, besides its
tensors. More of them are refused. As many as the inbox of a scheduler holds."""


@final
class Ensemble:
    """Runs the requests of one ensemble, each in a task of its own.

    Lifetime: owns the inbox. After `Stop` the requests that run go on to their ends, and no
    further ones are taken; a cancellation cuts them off. However it ends, every request it still
    holds is answered.

    Args:
      inbox: What it receives.
      completion: How requests end.
      graph: The data flow. With a limit for each step, as many requests run as all steps together
        may: a full pipeline does not wait, and nothing piles up between a fast and a slow step.
      spec: What requests are checked against.
      find: Returns the READY version of a model by name and version, or raises.
      budget: Charged for the outputs of steps while they are held; None counts nothing.
    """

    def __init__(
        self,
        *,
        inbox: Inbox,
        completion: Completion,
        graph: EnsembleGraph,
        spec: ModelSpec,
        find: Find,
        budget: ByteBudget | None = None,
    ) -> None:
        self._inbox = inbox
        self._completion = completion
        self._parts = EnsembleParts(
            graph=graph,
            spec=spec,
            completion=completion,
            find=find,
            budget=budget,
            places=InflightLimit(graph.inflight_max * len(graph.steps)),
            limits=[InflightLimit(graph.inflight_max) for _ in graph.steps],
            to_client={name: form.to_client for name, form in forms_of(spec).items()},
        )
        self._running = 0
        self._stopping = False
        self._receiving = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<Ensemble {self._parts.graph.name} with {self._running} running>"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until told to stop and every request has ended."""
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                with self._receiving:
                    while self._running or not self._stopping:
                        self._handle(await self._inbox.receive(), nursery)
        finally:
            self.close()

    def explain(self) -> None:
        """Return None: its steps form batches with those of other requests."""

    def close(self) -> None:
        """Answer what is left in the inbox, and close it; idempotent."""
        now_s = trio.current_time()
        try:
            while True:
                message = self._inbox.receive_nowait()
                if isinstance(message, Infer):
                    self._completion.refuse_pending(message, self._stopped(), now_s)
        except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
            pass
        self._inbox.close()

    def _handle(self, message: SchedulerMessage, nursery: trio.Nursery) -> None:
        if isinstance(message, Stop):
            self._stopping = True
        elif isinstance(message, Infer):
            self._take(message, nursery)
        # A request that runs hears of its cancellation by its reply, one in the inbox by its flag.

    def _take(self, infer: Infer, nursery: trio.Nursery) -> None:
        now_s = trio.current_time()
        if infer.request.cancelled:
            self._completion.drop_pending(infer, now_s)
        elif self._stopping:
            self._completion.refuse_pending(infer, self._stopped(), now_s)
        elif self._running >= RUNNING_MAX:
            error = _unavailable(f"{self._parts.graph} runs {RUNNING_MAX} requests already")
            self._completion.refuse_pending(infer, error, now_s)
        else:
            infer.queued_s = now_s
            self._completion.dispatched([infer])
            self._running += 1
            nursery.start_soon(self._serve, EnsembleRequest(self._parts, infer))

    async def _serve(self, request: EnsembleRequest) -> None:
        try:
            await request.run()
        finally:
            self._running -= 1
            if self._stopping and not self._running:
                self._receiving.cancel()

    def _stopped(self) -> RequestError:
        return _unavailable(f"{self._parts.graph} takes no more requests, because it stops")


def _unavailable(text: str) -> RequestError:
    return RequestError(ErrorCode.UNAVAILABLE, text, reason=FailureReason.REJECTED)
