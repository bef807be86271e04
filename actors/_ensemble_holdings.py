"""What the tensors take that one request of an ensemble holds.  Pure: no trio, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof
from typing import Final, final

from ..memory.budget import BUDGET_USED_UP, ByteBudget, Lease
from ..protocol.dtypes import BYTES
from ..protocol.errors import ErrorCode, FailureReason, RequestError
from ..protocol.tensors import Tensor

COUNTED_MIN_BYTES: Final = 1024
"""Smaller tensors are not counted: they take no more than the objects around them, of which there
are few a request, and counting them would cost more time than it tells."""

BUDGET_RETRY_S: Final = 1.0
"""When to try again after the budget was used up: ensembles let go of tensors with every step."""


@final
class Holdings:
    """Charges the outputs of steps to the server's byte budget until nobody needs them any more.

    What a request came with is not counted: whoever sent it holds that.

    Args:
      budget: Where the bytes come from; None counts nothing.
    """

    __slots__ = ("_held", "_lease")

    def __init__(self, budget: ByteBudget | None) -> None:
        self._lease = None if budget is None else Lease(budget)
        self._held: dict[Tensor, tuple[int, int]] = {}  # its users, its bytes

    def take(self, tensor: Tensor) -> None:
        """Charge an output of a step, which has one user from now on.

        Raises:
          RequestError: UNAVAILABLE; the budget has no room for it.
        """
        if self._lease is None:
            return
        if tensor in self._held:  # a cached response may answer several steps
            self.share(tensor)
            return
        size_bytes = _bytes_of(tensor)
        if size_bytes < COUNTED_MIN_BYTES:
            return
        if not self._lease.settle(self._lease.held_bytes + size_bytes):
            raise RequestError(
                ErrorCode.UNAVAILABLE,
                BUDGET_USED_UP,
                reason=FailureReason.REJECTED,
                retry_after_s=BUDGET_RETRY_S,
            )
        self._held[tensor] = (1, size_bytes)

    def share(self, tensor: Tensor) -> None:
        """Note one more user of a tensor, if it is counted."""
        held = self._held.get(tensor)
        if held is not None:
            self._held[tensor] = (held[0] + 1, held[1])

    def let_go(self, tensors: Iterable[Tensor]) -> None:
        """Note that one user of each tensor is done with it; the last one gives its bytes back."""
        for tensor in tensors:
            users, size_bytes = self._held.get(tensor, (0, 0))
            if users > 1:
                self._held[tensor] = (users - 1, size_bytes)
            elif users:
                assert self._lease is not None
                del self._held[tensor]
                self._lease.settle(self._lease.held_bytes - size_bytes)

    def clear(self) -> None:
        """Give everything back; idempotent."""
        self._held.clear()
        if self._lease is not None:
            self._lease.settle(0)


def _bytes_of(tensor: Tensor) -> int:
    """Return what the elements take, without making a form of them that there is not."""
    if tensor.datatype == BYTES and tensor.given_raw is None:
        return tensor.array.nbytes + sum(map(getsizeof, tensor.array.ravel().tolist()))
    return tensor.byte_size
