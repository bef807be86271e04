"""Inference with tensors in shared memory.

Inputs are read before a request is queued, outputs written before its response is encoded. Few
bytes are copied on the event loop, many on a thread, so each such request has a task, which waits
for its copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar, TypeVarTuple, final

import trio

from ..memory.budget import BUDGET_USED_UP, ByteBudget
from ..memory.shared_memory import SharedMemoryRegions, SystemRegion
from ..protocol.errors import ErrorCode, FailureReason, RequestError
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.shared_tensors import RegionSlice, SharedTensors
from ..protocol.tensors import Buffer, Tensor
from .inference import count_refusal, submit
from .reply import Reply
from .router import Router
from .routing_table import ModelVersion

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

INLINE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a request or response that are copied on the event loop: a tenth of a millisecond."""

COPY_THREADS_MAX: Final = 2
"""Threads that copy at the same time; a few of them use up what a memory bus gives."""

_LEFT: Final = RequestError(ErrorCode.CANCELLED, "the client left", reason=FailureReason.CANCELED)


@final
class _Hold:
    """What is held for one request."""

    __slots__ = ("_budget", "_input_bytes", "_registered", "regions")

    def __init__(
        self,
        registered: SharedMemoryRegions,
        regions: dict[str, SystemRegion],
        budget: ByteBudget,
        input_bytes: int,
    ) -> None:
        self._registered = registered
        self._budget = budget
        self._input_bytes = input_bytes
        self.regions = regions

    def release(self) -> None:
        """Let the regions go, and give the room back."""
        self._registered.let_go(self.regions.values())
        self._budget.give_back(self._input_bytes)


@final
class RegionAccess:
    """Copies tensors from and to the registered regions.

    Args:
      router: Where models are found.
      regions: What clients have registered.
      budget: Has room for the inputs that are copied, as long as their request holds them.
    """

    def __init__(self, *, router: Router, regions: SharedMemoryRegions, budget: ByteBudget) -> None:
        self._router = router
        self._regions = regions
        self._budget = budget
        self._threads = trio.CapacityLimiter(COPY_THREADS_MAX)

    async def infer(
        self, version: ModelVersion, request: InferRequest, arrived_s: float
    ) -> InferResponse:
        """Return the only response to a request, its outputs written; see `submit` and `write`.

        Raises:
          RequestError: the request was refused, or an output cannot be written.
        """
        reply = await self.submit(version, request, arrived_s)
        try:
            response = await reply.receive()
            await self.write(request, response)
        finally:
            reply.close()
        return response

    async def submit(self, version: ModelVersion, request: InferRequest, arrived_s: float) -> Reply:
        """Read the inputs of a request, then hand it to its model's scheduler.

        The caller waits on the reply and closes it, which also lets go of the regions.

        Raises:
          RequestError: a region is unknown or too small, the budget is used up, or as the function
            `submit`; counted.
        """
        shared = _shared(request)
        try:
            regions = self._hold(shared)
            sizes = [place.byte_size for place in shared.inputs.values()]
            contents = await self._copy(sum(sizes), regions, _read_all, regions, shared.inputs)
            for name, raw in contents.items():
                empty = request.inputs[name]
                request.inputs[name] = Tensor(name, empty.datatype, empty.shape, raw=raw)
        except BaseException as error:
            shared.release()
            refusal = _LEFT if isinstance(error, trio.Cancelled) else error
            if isinstance(refusal, RequestError):
                count_refusal(version, refusal, arrived_s)
            raise
        try:
            # The version may have been replaced meanwhile, and take no more requests.
            version = self._router.table.find(request.model_name, request.model_version)
            return submit(version, request, arrived_s)
        except RequestError:
            shared.release()
            raise

    async def write(self, request: InferRequest, response: InferResponse) -> None:
        """Write those outputs of a response that go into regions; all of them fit, or none is.

        Args:
          request: Was submitted here, and its reply is not closed.
          response: Nothing is written of one with an error.

        Raises:
          RequestError: INTERNAL; an output is larger than its place. INVALID_ARG; a region's object
            has become shorter. UNAVAILABLE; it cannot be written.
        """
        if response.error is not None:
            return
        hold = _shared(request).hold
        assert isinstance(hold, _Hold), "a request that was not submitted here, or is released"
        outputs = _fitting_outputs(_shared(request), hold.regions, response)
        size = sum([len(raw) for *_, raw in outputs])
        await self._copy(size, hold.regions, _write_all, outputs)

    def _hold(self, shared: SharedTensors) -> dict[str, SystemRegion]:
        """Hold the regions of a request and room for its inputs, until it is released.

        Returns:
          Name -> region.

        Raises:
          RequestError: a region is unknown or too small, or the budget is used up.
        """
        places = (*shared.inputs.values(), *shared.outputs.values())
        regions = {place.region: self._regions.find(place) for place in places}
        input_bytes = sum([place.byte_size for place in shared.inputs.values()])
        if not self._budget.try_take(input_bytes):
            raise RequestError(ErrorCode.UNAVAILABLE, BUDGET_USED_UP)
        self._regions.hold(regions.values())
        shared.hold = _Hold(self._regions, regions, self._budget, input_bytes)
        return regions

    async def _copy(
        self,
        byte_size: int,
        regions: Mapping[str, SystemRegion],
        copy: Callable[[*Ts], T],
        *arguments: *Ts,
    ) -> T:
        """Copy so many bytes, at once or on a thread, for which the regions stay open."""
        if byte_size <= INLINE_BYTES_MAX:
            return copy(*arguments)
        self._regions.hold(regions.values())  # the request may end before the thread does
        try:
            result = await trio.to_thread.run_sync(copy, *arguments, limiter=self._threads)
            await trio.lowlevel.checkpoint_if_cancelled()  # a thread is not cut short
        finally:
            self._regions.let_go(regions.values())
        return result


def require(access: RegionAccess | None) -> RegionAccess:
    """Return the access to regions of a server that has any.

    Raises:
      RequestError: UNAVAILABLE; this one was built without.
    """
    if access is None:
        raise _unsupported()
    return access


def require_regions(regions: SharedMemoryRegions | None) -> SharedMemoryRegions:
    """Return the regions of a server that has any.

    Raises:
      RequestError: UNAVAILABLE; this one was built without.
    """
    if regions is None:
        raise _unsupported()
    return regions


def _unsupported() -> RequestError:
    return RequestError(ErrorCode.UNAVAILABLE, "this server has no support for shared memory")


def _shared(request: InferRequest) -> SharedTensors:
    assert request.shared_memory is not None, "a request without tensors in regions"
    return request.shared_memory


def _read_all(
    regions: Mapping[str, SystemRegion], places: Mapping[str, RegionSlice]
) -> dict[str, bytes]:
    return {
        name: regions[place.region].read(place.offset, place.byte_size)
        for name, place in places.items()
    }


def _write_all(outputs: list[tuple[SystemRegion, int, Buffer]]) -> None:
    for region, offset, raw in outputs:
        region.write(offset, raw)


def _fitting_outputs(
    shared: SharedTensors, regions: Mapping[str, SystemRegion], response: InferResponse
) -> list[tuple[SystemRegion, int, Buffer]]:
    """Return region, offset and data of what is to be written, once it is known to fit."""
    outputs: list[tuple[SystemRegion, int, Buffer]] = []
    for tensor in response.outputs:
        place = shared.outputs.get(tensor.name)
        if place is None:
            continue
        if tensor.byte_size > place.byte_size:
            raise RequestError(
                ErrorCode.INTERNAL,
                f"output '{tensor.name}' was given {place.byte_size} bytes of shared memory, but "
                f"needs {tensor.byte_size}",
            )
        outputs.append((regions[place.region], place.offset, tensor.raw))
    return outputs
