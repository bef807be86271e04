"""The front of a model version that uses the response cache: answer, wait for an equal, or execute.

It stands before the scheduler. Of equal requests that are not in the cache, the first is executed
and the others wait for its answer, so that a burst of them costs one execution. What is executed
is a request of the front's own: whoever leaves takes nothing from those who still wait. When the
first one leaves, its execution is inherited by who has waited longest, failure included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias, final

import trio

from ..memory.response_cache import CacheKey, Entry, input_bytes, request_key
from ..protocol.errors import RequestError
from ..protocol.requests import InferResponse
from ._cache_access import CacheAccess
from ._completion import Completion, nanoseconds
from ._flight import Flight, entry_of
from .messages import Infer
from .reply import Reply

Enqueue: TypeAlias = Callable[[Infer], None]
"""Hands a request to the scheduler, counts it as pending and sets `reply.on_close`.

Raises:
  RequestError: the scheduler cannot take it; counted, and nothing is sent on the reply.
"""

HASHED_ON_LOOP_BYTES_MAX: Final = 128 * 1024
"""Input bytes hashed where they arrive: about a quarter of a millisecond, in which the event loop
does nothing else. A hop to a thread costs less than hashing more, and lets the loop go on."""

HASHINGS_MAX: Final = 64
"""Requests of one model version that wait to be hashed on a thread; more skip the cache, since
hashing is then what is slow."""

FLIGHTS_MAX: Final = 4096
"""Different requests of one model version looked up, executed or inserted at a time; more skip the
cache. Any queue that waits for instances is full of them long before."""

FOLLOWERS_MAX: Final = 1024
"""Requests that wait for one equal to them; more are executed. If it fails they are all queued, and
a model that breaks on one request must not get its whole inbox full of that one at once."""


@final
class Caching:
    """Stands between the frontends and the scheduler of a model version that is not decoupled.

    Every request counts as one hit or one miss, unless its client leaves before that is known.
    Those who waited for an equal one count as hits, and their wait as time in the queue.

    Lifetime: `run` is needed for what happens on threads; without it a cache that blocks is not
    used, and large requests skip any cache. `close` ends it.

    Args:
      model_name: The model's name.
      model_version: Its version as decimal text.
      access: The server's cache.
      completion: Ends requests of this version.
      enqueue: The way to the scheduler.
      shares_executions: Whether requests may wait for an equal one that is queued. Not where
        queues have timeouts (see `has_queue_timeouts`), for time runs only in the queue.
      counts_own_timeouts: Whether that holds for a request that names a timeout, even if executions
        are shared (see the function of that name).
      namespace: The repository that tells it from models of the same name; "" without namespaces.
    """

    def __init__(
        self,
        *,
        model_name: str,
        model_version: str,
        access: CacheAccess,
        completion: Completion,
        enqueue: Enqueue,
        shares_executions: bool = True,
        counts_own_timeouts: bool = True,
        namespace: str = "",
    ) -> None:
        self._name = model_name
        self._version = model_version
        self._access = access
        self._load = access.load_name() + namespace
        self._completion = completion
        self._statistics = completion.statistics
        self._statistics.cached = True
        self._enqueue = enqueue
        self._shares_executions = shares_executions
        self._counts_own_timeouts = counts_own_timeouts
        self._flights: dict[CacheKey, Flight] = {}
        self._nursery: trio.Nursery | None = None
        self._closed = trio.Event()
        self._hashings = 0
        self._unsettled = 0
        self._settled = trio.Event()

    def __repr__(self) -> str:
        return f"<Caching of {self._name} version {self._version}: {len(self._flights)} in flight>"

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `close`; requests whose look-up that ends go to the scheduler."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await self._closed.wait()
            finally:
                self._nursery = None
                nursery.cancel_scope.cancel()

    def close(self) -> None:
        """End `run`; idempotent."""
        self._closed.set()

    async def settle(self) -> None:
        """Wait until no look-up goes on, which takes `LOOKUP_MAX_S`: all is with the scheduler."""
        while self._unsettled:
            self._settled = trio.Event()
            await self._settled.wait()

    def submit(self, infer: Infer) -> None:
        """Take a validated request; its reply gets exactly one final response.

        Raises:
          RequestError: the scheduler cannot take it; counted, and nothing is sent on the reply.
        """
        infer.queued_s = trio.current_time()
        request = infer.request
        if input_bytes(request) <= HASHED_ON_LOOP_BYTES_MAX:
            self._find(infer, request_key(self._name, self._version, self._load, request))
        elif self._nursery is not None and self._hashings < HASHINGS_MAX:
            self._statistics.pending_count += 1
            infer.reply.on_close = partial(self._drop_held, infer)
            self._hashings += 1
            self._unsettled += 1
            self._nursery.start_soon(self._hash, infer)
        else:
            self._execute_alone(infer)

    def _find(self, infer: Infer, key: CacheKey) -> None:
        """Answer a request, let it wait, or have it looked up or executed."""
        flight = self._flights.get(key)
        if flight is not None:
            self._join(flight, infer)
        elif len(self._flights) >= FLIGHTS_MAX:
            self._execute_alone(infer)
        elif self._access.blocking:
            self._start_lookup(infer, key)
        else:
            entry, lookup_ns = self._access.lookup_now(key)
            if entry is None:
                self._count_miss(lookup_ns)
                self._lead(Flight(key, infer), infer)
            else:
                self._statistics.pending_count += 1
                self._answer(infer, entry, lookup_ns)

    def _join(self, flight: Flight, infer: Infer) -> None:
        if flight.entry is not None:
            self._statistics.pending_count += 1
            self._answer(infer, flight.entry, 0)
        elif len(flight.followers) < FOLLOWERS_MAX and self._may_wait(flight, infer):
            self._statistics.pending_count += 1
            flight.followers[infer] = None
            infer.reply.on_close = partial(self._left, flight, infer)
        else:
            self._execute_alone(infer)

    def _may_wait(self, flight: Flight, infer: Infer) -> bool:
        """Whether it breaks no rule if a request waits for what is executed."""
        inner, request = flight.inner, infer.request
        return inner is None or (
            self._shares_executions
            and request.call is None  # else it could be what the execution waits for
            and inner.request.priority == request.priority
            and not (self._counts_own_timeouts and request.timeout_us)
        )

    # What happens on threads.

    async def _hash(self, infer: Infer) -> None:
        key: CacheKey | None = None
        try:
            key = await self._access.key(self._name, self._version, self._load, infer.request)
        finally:
            self._hashings -= 1
            if not infer.request.cancelled:
                self._statistics.pending_count -= 1
                if key is None:
                    self._execute_held(infer)
                else:
                    self._find_held(infer, key)
            self._settle_one()

    def _start_lookup(self, infer: Infer, key: CacheKey) -> None:
        if self._nursery is None:
            self._execute_alone(infer)
            return
        flight = self._flights[key] = Flight(key, infer)
        flight.lookup = trio.CancelScope()
        self._statistics.pending_count += 1
        infer.reply.on_close = partial(self._left, flight, infer)
        self._unsettled += 1
        self._nursery.start_soon(self._look_up, flight, flight.lookup)

    async def _look_up(self, flight: Flight, scope: trio.CancelScope) -> None:
        entry: Entry | None = None
        taken_ns = 0
        try:
            with scope:
                entry, taken_ns = await self._access.lookup(flight.key)
        finally:
            flight.lookup = None
            if flight.leader is not None:  # else everybody has left
                self._land(flight)
                if entry is None:
                    self._looked_up_in_vain(flight, flight.leader, taken_ns)
                else:
                    self._answer_all(flight.take_all(), entry, taken_ns)
            self._settle_one()

    def _looked_up_in_vain(self, flight: Flight, leader: Infer, lookup_ns: int) -> None:
        """Have the leader executed, and those who may not wait for it as well."""
        followers, flight.followers = flight.followers, {}
        self._statistics.pending_count -= 1
        self._count_miss(lookup_ns)
        try:
            self._lead(flight, leader)
        except RequestError as error:
            self._refuse(leader, error)
        for follower in followers:
            if flight.inner is None or not self._may_wait(flight, follower):
                self._resubmit(follower)
            else:
                flight.followers[follower] = None

    async def _insert(self, flight: Flight, entry: Entry) -> None:
        try:
            taken_ns = await self._access.insert(flight.key, entry)
            self._statistics.cache_miss.ns += taken_ns
        finally:
            self._land(flight)

    def _land(self, flight: Flight) -> None:
        """Let equal requests that come from now on look anew."""
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    def _settle_one(self) -> None:
        self._unsettled -= 1
        if not self._unsettled:
            self._settled.set()

    # Execution.

    def _lead(self, flight: Flight, leader: Infer) -> None:
        """Execute a request of our own that is equal to the leader's.

        Raises:
          RequestError: the scheduler cannot take it; the flight is none then.
        """
        request = leader.request
        copy = request.without_inputs(request.model_name, request.model_version)
        copy.inputs = request.inputs
        copy.batch_size = request.batch_size
        copy.spec = request.spec
        copy.trace = request.trace
        reply = Reply(copy)
        inner = Infer(copy, reply, leader.arrived_s)
        self._enqueue(inner)
        reply.notify = partial(self._executed, flight, reply)
        flight.inner = inner
        self._flights[flight.key] = flight
        leader.reply.on_close = partial(self._left, flight, leader)

    def _executed(self, flight: Flight, reply: Reply) -> None:
        """Pass the answer on; the leader, whose execution is counted, gets it first."""
        response = reply.receive_nowait()
        reply.close()
        self._land(flight)
        leader, *followers = flight.take_all()
        response.id = leader.request.id
        leader.reply.send(response)
        entry = None if response.error is not None else entry_of(response)
        if entry is None:
            for follower in followers:
                self._resubmit(follower)
            return
        if not self._access.blocking:
            self._statistics.cache_miss.ns += self._access.insert_now(flight.key, entry)
        elif self._nursery is not None:
            flight.entry = entry
            self._flights[flight.key] = flight
            self._nursery.start_soon(self._insert, flight, entry)
        self._answer_all(followers, entry, 0)

    def _execute_alone(self, infer: Infer) -> None:
        """Execute a request as if there were no cache.

        Raises:
          RequestError: the scheduler cannot take it.
        """
        self._count_miss(0)
        self._enqueue(infer)

    def _execute_held(self, infer: Infer) -> None:
        """As `_execute_alone`, for a request whose `submit` has returned already."""
        try:
            self._execute_alone(infer)
        except RequestError as error:
            self._refuse(infer, error)

    def _find_held(self, infer: Infer, key: CacheKey) -> None:
        try:
            self._find(infer, key)
        except RequestError as error:
            self._refuse(infer, error)

    def _resubmit(self, infer: Infer) -> None:
        """Execute a follower by itself."""
        if infer.request.cancelled:
            self._drop_held(infer)
            return
        self._statistics.pending_count -= 1
        self._execute_held(infer)

    def _refuse(self, infer: Infer, error: RequestError) -> None:
        """Answer with an error that is counted already."""
        infer.reply.send(InferResponse(self._name, self._version, infer.request.id, error=error))

    def _count_miss(self, lookup_ns: int) -> None:
        self._statistics.record_cache_miss(lookup_ns)
        if self._statistics.latencies is not None:
            self._statistics.latencies.add(trio.current_time(), cache_miss_ns=lookup_ns)

    # Answers from the cache, and clients that leave.

    def _answer_all(self, infers: list[Infer], entry: Entry, lookup_ns: int) -> None:
        for infer in infers:
            if infer.request.cancelled:
                self._drop_held(infer)  # an answer before this one made its client leave
            else:
                self._answer(infer, entry, lookup_ns)

    def _answer(self, infer: Infer, entry: Entry, lookup_ns: int) -> None:
        """End a held request with what the cache has, in its turn."""
        now_s = trio.current_time()
        infer.reply.on_close = None
        self._completion.dispatched([infer])
        self._statistics.last_inference_ms = time.time_ns() // 1_000_000
        queue_ns = max(0, nanoseconds(now_s - infer.queued_s) - lookup_ns)
        self._statistics.record_cache_hit(
            request_ns=nanoseconds(now_s - infer.arrived_s), queue_ns=queue_ns, lookup_ns=lookup_ns
        )
        if self._statistics.latencies is not None:
            self._statistics.latencies.add(now_s, queue_ns=queue_ns, cache_hit_ns=lookup_ns)
        self._completion.send(infer, entry.response(self._name, self._version, infer.request.id))

    def _drop_held(self, infer: Infer) -> None:
        self._completion.drop_pending(infer, trio.current_time())

    def _left(self, flight: Flight, infer: Infer) -> None:
        """A client has left; what is executed goes on while another waits for it."""
        if infer in flight.followers:
            del flight.followers[infer]
            self._drop_held(infer)
        elif infer is flight.leader:
            self._leader_left(flight, infer)
        # Else it has landed, and whoever hands the answers out sees the flag.

    def _leader_left(self, flight: Flight, infer: Infer) -> None:
        heir = flight.leader = next(iter(flight.followers), None)
        inner = flight.inner
        if heir is None:
            self._land(flight)
            if inner is not None:
                inner.reply.close()  # the scheduler counts that as the end of this request
                return
            assert flight.lookup is not None
            flight.lookup.cancel()
        else:
            del flight.followers[heir]
            if inner is not None:  # pending and counted for the leader so far, for the heir now
                self._count_miss(0)
        self._drop_held(infer)
