"""A sequence batcher and real instances on fake devices, on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.fake_device import FakeDeviceDiedError, FakeDevices, Seconds
from tests.support.remembering import Remembering, RememberingInstance, numbered
from tritrio.actors._completion import CUT_OFF, Completion
from tritrio.actors._completion_order import CompletionOrder
from tritrio.actors._sequence_config import sequence_policy
from tritrio.actors.instance import Instance
from tritrio.actors.messages import (
    Cancel,
    Execute,
    Infer,
    InstanceGone,
    SchedulerMessage,
    Stop,
)
from tritrio.actors.reply import Reply
from tritrio.actors.sequence_batcher import SequenceBatcher
from tritrio.backends.base import InstancePlace
from tritrio.protocol.config_rules import instances
from tritrio.protocol.model_spec import ModelSpec
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferResponse
from tritrio.protocol.sequence_tensors import SequenceTensors
from tritrio.protocol.statistics import ModelStatistics

INBOX_CAPACITY = 8192


class Sequences:
    """A sequence batcher and its instances, ready for requests.

    Args:
      config: The normalised configuration.
      seconds: What a batch takes on an instance.
      ends_s: What it takes to tell a model of ends.
      inbox: The capacity of the batcher's inbox.

    Attributes:
      restarts_after_s: How long the restart of an instance that died takes; None is for ever.
    """

    def __init__(
        self,
        config: pb.ModelConfig,
        seconds: Seconds | float = 0.0,
        *,
        ends_s: float = 0.0,
        inbox: int = INBOX_CAPACITY,
    ) -> None:
        self.config = config
        self.spec = ModelSpec.from_config(config, 1)
        assert config.sequence_batching is not None
        self.model = Remembering(
            implicit=bool(config.sequence_batching.state),
            state_shape=(1, 1) if config.max_batch_size else (1,),
        )
        self.statistics = ModelStatistics()
        strategy = config.sequence_batching.oldest
        ordered = strategy is not None and strategy.preserve_ordering
        self.completion = Completion(
            "model", "1", self.statistics, CompletionOrder() if ordered else None
        )
        self.to_batcher, receive = trio.open_memory_channel[SchedulerMessage](inbox)
        count = len(list(instances(config)))
        self.links = [trio.open_memory_channel[Execute](1) for _ in range(count)]
        self.policy = sequence_policy(
            config, self.spec, tensors=SequenceTensors(config, {}), instances=count
        )
        self.batcher = SequenceBatcher(
            inbox=receive,
            to_inbox=self.to_batcher,
            outboxes=[outbox for outbox, _ in self.links],
            policy=self.policy,
            completion=self.completion,
            hears_ends=lambda _: True,
        )
        self.devices = FakeDevices(seconds, other_s=ends_s)
        self.restarts_after_s: float | None = 0.0
        self.start_s = trio.current_time()
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    for index in range(len(self.links)):
                        nursery.start_soon(self._run_instance, index)
                    await nursery.start(self.batcher.run)
                    task_status.started()
        finally:
            self.batcher.close()
            for _, inbox in self.links:
                self._answer_unreceived(inbox)
            self.ended.set()

    def _answer_unreceived(self, inbox: trio.MemoryReceiveChannel[Execute]) -> None:
        """Answer a batch that was sent and never received, as the slot of an instance does."""
        with inbox, suppress(trio.WouldBlock, trio.EndOfChannel):
            for infer in inbox.receive_nowait().infers:
                self.completion.fail(infer, CUT_OFF, trio.current_time())

    async def _run_instance(self, index: int) -> None:
        place = InstancePlace(f"model_{index}")
        while True:
            device = self.devices(place)
            device.start()
            instance = Instance(
                index=index,
                name=place.name,
                inbox=self.links[index][1],
                outbox=self.to_batcher,
                device=device,
                model=RememberingInstance(self.model, index),
                completion=self.completion,
                decoupled=self.spec.decoupled,
            )
            try:
                await instance.run()
            except FakeDeviceDiedError:
                await self.to_batcher.send(InstanceGone(index))
                if self.restarts_after_s is None:
                    return
                await trio.sleep(self.restarts_after_s)
            else:
                return

    def submit(
        self, number: int, sequence_id: int | str, flags: str = "", **attributes: Any
    ) -> Reply:
        """Hand one request in, as a model version does."""
        request = numbered(number, sequence_id, flags, **attributes)
        infer = Infer(request, Reply(request), trio.current_time())
        self.to_batcher.send_nowait(infer)
        self.statistics.pending_count += 1
        infer.reply.on_close = lambda: self.cancel(infer)
        return infer.reply

    def cancel(self, infer: Infer) -> None:
        with suppress(trio.WouldBlock, trio.BrokenResourceError):
            self.to_batcher.send_nowait(Cancel(infer))

    async def ask(
        self, number: int, sequence_id: int | str, flags: str = "", **attributes: Any
    ) -> InferResponse:
        """Hand one request in and wait for its answer."""
        return await self.submit(number, sequence_id, flags, **attributes).receive()

    async def stop(self, drain_s: float) -> None:
        """Stop as a model does, and wait for the end."""
        self.scope.deadline = min(self.scope.deadline, trio.current_time() + drain_s)
        with suppress(trio.BrokenResourceError):  # it has ended
            await self.to_batcher.send(Stop())
        await self.ended.wait()

    def elapsed_s(self) -> float:
        return trio.current_time() - self.start_s

    def left_s(self) -> list[float]:
        """When each batch ended, since the start."""
        return [end_s - self.start_s for end_s, _, _ in self.model.executed]


@asynccontextmanager
async def sequences(
    config: pb.ModelConfig,
    *,
    seconds: Seconds | float = 0.0,
    ends_s: float = 0.0,
    drain_s: float = 60.0,
    inbox: int = INBOX_CAPACITY,
) -> AsyncIterator[Sequences]:
    """Serve a model of sequences on virtual time; at the end it drains."""
    served = Sequences(config, seconds, ends_s=ends_s, inbox=inbox)
    async with trio.open_nursery() as nursery:
        await nursery.start(served.run)
        await wait_all_tasks_blocked()  # so that all instances are idle
        yield served
        await served.stop(drain_s)
    assert served.statistics.pending_count == 0
    snapshot = served.batcher.snapshot()
    assert (snapshot.requests, snapshot.backlog) == (0, 0)
