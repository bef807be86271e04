"""The whole server without sockets and threads, on virtual time.

Everything is real but the devices, on which batches take virtual seconds, and the connections,
which are in memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.grpc_client import GrpcClient
from tests.support.http_client import HttpClient
from tests.support.memory_stream import connection
from tritrio.actors.core import Core, run_core
from tritrio.actors.frontend import Frontend
from tritrio.backends.base import Batch, InstancePlace
from tritrio.options import ServerOptions
from tritrio.parts import Parts, build_parts
from tritrio.protocol.statistics import ModelStatistics
from tritrio.server import core_options
from tritrio.testing.fake_device import FakeDevices, StepSeconds, at_once

DELAY_US = 15_625
DELAY_S = 1 / 64
"""Queue delay of the model "batched": exact in binary, so that times can be compared."""

_TENSORS = """
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
_IDENTITY = 'backend: "identity"\nmax_batch_size: 4\n' + _TENSORS

_REPEAT = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Answers a row [value, times] with [value] * times in one response, then the final flag."""

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            rows = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            for value, times in rows:
                if value < 0:
                    error = pb_utils.TritonError("a negative value")
                    sender.send(pb_utils.InferenceResponse(error=error))
                else:
                    tensor = pb_utils.Tensor("OUTPUT0", np.full((1, times), value, np.int32))
                    sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''


def write_models(repository: Path, *, only: tuple[str, ...] = ()) -> Path:
    """Write the models that scenarios ask for, all or some.

    batched: waits up to `DELAY_S` for a batch of 4; limited: the same with a queue of 2;
    plain: no batching; repeat: decoupled, one response [value] * times a row [value, times].
    """
    queue = "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: %d %s }"
    limited = "default_queue_policy { max_queue_size: 2 }"
    configs = {
        "batched": _IDENTITY + queue % (DELAY_US, ""),
        "limited": _IDENTITY + queue % (DELAY_US, limited),
        "plain": _IDENTITY,
        "repeat": 'backend: "python"\nmax_batch_size: 64\n'
        "model_transaction_policy { decoupled: true }\n" + _TENSORS,
    }
    for name in only or configs:
        directory = repository / name / "1"
        directory.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(configs[name])
        if name == "repeat":
            (directory / "model.py").write_text(_REPEAT)
    return repository


@dataclass(frozen=True)
class Execution:
    """One batch as it came to a device; `at_s` in seconds since the server was up."""

    at_s: float
    model: str
    ids: tuple[str, ...]


@dataclass
class MemoryServer:
    """A running server.

    Attributes:
      executions: What came to the devices.
      seconds: Model -> what a batch takes on it; may be changed.
    """

    core: Core
    parts: Parts
    nursery: trio.Nursery
    seconds: dict[str, float]
    executions: list[Execution]
    start_s: float = 0.0
    clients: list[HttpClient | GrpcClient] = field(default_factory=list)

    def __post_init__(self) -> None:
        models = self.core.router.measured_models()
        self._statistics = {model.name: model.statistics for model in models}

    def elapsed_s(self) -> float:
        return trio.current_time() - self.start_s

    def http(self, *, capacity_bytes: float = inf, frontend: Frontend | None = None) -> HttpClient:
        """Connect over HTTP/1.1, to the HTTP port or to another one that speaks it."""
        end, stream = connection(capacity_bytes)
        self.nursery.start_soon((frontend or self.parts.http).serve, stream)
        client = HttpClient(end)
        self.clients.append(client)
        return client

    def grpc(
        self, *, capacity_bytes: float = inf, reads: bool = True, **options: Any
    ) -> GrpcClient:
        """Connect over gRPC; a client that does not read leaves everything in the connection."""
        end, stream = connection(capacity_bytes)
        self.nursery.start_soon(self.parts.grpc.serve, stream)
        client = GrpcClient(end, **options)
        if reads:
            self.nursery.start_soon(client.run)
        self.clients.append(client)
        return client

    def statistics(self, model: str) -> ModelStatistics:
        return self._statistics[model]

    def counts(self, model: str) -> tuple[int, int, int]:
        """Requests that succeeded, failed and wait."""
        statistics = self.statistics(model)
        return statistics.success.count, statistics.fail.count, statistics.pending_count

    @property
    def used_bytes(self) -> int:
        return self.parts.budget.used_bytes

    def begin_shutdown(self) -> None:
        """Begin the stop as the server does."""
        self.core.begin_shutdown()
        self.parts.http.begin_shutdown()
        self.parts.grpc.begin_shutdown()

    async def drained(self) -> None:
        await self.parts.http.drained()
        await self.parts.grpc.drained()

    async def assert_nothing_is_left(self) -> None:
        """Check that closing every connection leaves no trace."""
        for client in self.clients:
            client.end.close()
        await wait_all_tasks_blocked()
        assert self.parts.http.connection_count == 0
        assert self.parts.grpc.connection_count == 0
        assert self.used_bytes == 0
        names = sorted(task.name.rsplit(".", 1)[1] for task in self.nursery.child_tasks)
        assert names == ["run", "run", "run_core"]  # both frontends, and the core


@asynccontextmanager
async def memory_server(
    repository: Path,
    *,
    seconds: Mapping[str, float] | None = None,
    step_seconds: StepSeconds = lambda _: 0.0,
    **options: Any,
) -> AsyncIterator[MemoryServer]:
    """Run a server; at the end every connection is closed, and nothing may be left of it.

    Args:
      repository: See `write_models`.
      seconds: Model -> virtual seconds a batch takes; 0 if not named.
      step_seconds: What a step of a model that generates text takes.
      options: Fields of `ServerOptions`.
    """
    takes_s = dict(seconds or {})
    executions: list[Execution] = []
    server: MemoryServer

    def seconds_of(place: InstancePlace, batch: Batch) -> float:
        model = place.name.rsplit("_", 1)[0].removesuffix("_0")
        ids = tuple(request.id for request in batch.requests)
        executions.append(Execution(server.elapsed_s(), model, ids))
        return takes_s.get(model, 0.0)

    server_options = ServerOptions(model_repositories=(repository,), **options)
    options_of_core = dataclasses.replace(
        core_options(server_options),
        device_factory=FakeDevices(seconds_of, step_seconds=step_seconds),
        run_in_thread=at_once,
        text_in_thread=at_once,
    )
    async with trio.open_nursery() as nursery:
        core: Core = await nursery.start(run_core, options_of_core)
        parts = build_parts(server_options, core)
        await nursery.start(parts.http.run, [])
        await nursery.start(parts.grpc.run, [])
        server = MemoryServer(core, parts, nursery, takes_s, executions, trio.current_time())
        yield server
        await server.assert_nothing_is_left()
        await core.stop()
        nursery.cancel_scope.cancel()
