"""A served model version behind the response cache, on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, TypeVarTuple

import trio

from tests.support.builders import Served, infer_request, model_config, serving
from tests.support.limits import TICK_S
from tritrio.actors._cache_access import CacheAccess
from tritrio.actors.caching import Caching
from tritrio.actors.messages import Infer
from tritrio.actors.reply import Reply
from tritrio.memory.response_cache import CacheFaultError, Entry, LocalCache, ResponseCache
from tritrio.protocol.pb import inference as pb
from tritrio.protocol.requests import InferRequest, InferResponse

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualThreads:
    """Runs each job on the loop, after virtual seconds.

    Attributes:
      seconds: What a job takes from now on.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    async def __call__(self, job: Callable[[*Ts], T], /, *args: *Ts) -> T:
        await trio.sleep(self.seconds)
        return job(*args)


class NetworkCache:
    """A cache somewhere else, which several servers may share.

    Attributes:
      entries: What is in it.
      fault: Whether it cannot be used.
      lookups: Calls of `lookup`.
    """

    blocking = True

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.fault = False
        self.lookups = 0

    def lookup(self, key: bytes) -> Entry | None:
        self.lookups += 1
        self._check()
        return self.entries.get(key)

    def insert(self, key: bytes, entry: Entry) -> None:
        self._check()
        self.entries.setdefault(key, entry.owned())

    def close(self) -> None:
        self.entries.clear()

    def _check(self) -> None:
        if self.fault:
            raise CacheFaultError("redis at host:1: no route")


def access_to(
    cache: ResponseCache,
    *,
    calls: VirtualThreads | None = None,
    hashing: VirtualThreads | None = None,
) -> CacheAccess:
    """Access on virtual threads."""
    return CacheAccess(
        cache,
        call_in_thread=calls or VirtualThreads(),
        hash_in_thread=hashing or VirtualThreads(),
    )


class Front:
    """A model version and the front before it."""

    def __init__(self, served: Served, caching: Caching, access: CacheAccess) -> None:
        self.served = served
        self.caching = caching
        self.access = access
        self.statistics = served.version.statistics

    def send(self, request: InferRequest) -> Reply:
        """Hand in a request, as a frontend does."""
        infer = Infer(request, Reply(request), trio.current_time())
        self.caching.submit(infer)
        return infer.reply

    def submit(self, number: int, request_id: str, **attributes: Any) -> Reply:
        """Hand in a request whose elements are `number`."""
        request = infer_request(number, **attributes)
        request.id = request_id
        return self.send(request)

    async def ask(self, number: int, request_id: str, **attributes: Any) -> InferResponse:
        """Hand in a request and wait for its answer."""
        return await answer_of(self.submit(number, request_id, **attributes))

    async def landed(self) -> None:
        """Wait until everything is executed and inserted."""
        while self.caching._flights:  # noqa: ASYNC110 - no part of the product waits for that
            await trio.sleep(TICK_S)

    def counts(self) -> dict[str, int]:
        """The counts of the statistics that a cache changes, if they are not 0."""
        statistics = self.statistics
        counts = {
            "success": statistics.success.count,
            "fail": statistics.fail.count,
            "queue": statistics.queue.count,
            "compute": statistics.compute_infer.count,
            "hit": statistics.cache_hit.count,
            "miss": statistics.cache_miss.count,
            "inferences": statistics.inference_count,
            "executions": statistics.execution_count,
            "pending": statistics.pending_count,
        }
        return {name: count for name, count in counts.items() if count}


async def answer_of(reply: Reply) -> InferResponse:
    """Wait for the answer."""
    try:
        return await reply.receive()
    finally:
        reply.close()


@asynccontextmanager
async def caching_front(
    config: pb.ModelConfig | None = None,
    *,
    access: CacheAccess | None = None,
    shares_executions: bool = True,
    counts_own_timeouts: bool = True,
    namespace: str = "",
    **options: Any,
) -> AsyncIterator[Front]:
    """Serve a model behind a cache; at the end nothing may be left of any request.

    Args:
      config: Of the model; one that batches nothing if not given.
      access: To the cache; a local one with room for everything if not given.
      shares_executions: As `Caching` takes it.
      counts_own_timeouts: Likewise.
      namespace: Likewise.
      options: What `serving` takes.
    """
    access = access or access_to(LocalCache(2**20))
    async with serving(config or model_config(), **options) as served:
        caching = Caching(
            model_name="model",
            model_version="1",
            access=access,
            completion=served.model._scheduler._completion,  # type: ignore[attr-defined]
            enqueue=served.version.submit,
            shares_executions=shares_executions,
            counts_own_timeouts=counts_own_timeouts,
            namespace=namespace,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(caching.run)
            front = Front(served, caching, access)
            yield front
            await caching.settle()
            caching.close()
    assert front.statistics.pending_count == 0
    assert not caching._flights
