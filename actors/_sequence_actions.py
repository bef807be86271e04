"""What a sequence policy wants to have done, and how it tells clients why not.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from ..protocol.errors import ErrorCode, FailureReason, RequestError, invalid_argument
from ..protocol.requests import InferRequest
from ..protocol.wording import quoted
from .messages import Infer


@final
@dataclass(frozen=True, slots=True)
class Dispatch:
    """A batch that leaves for an instance.

    Attributes:
      infers: Its requests; rows in this order.
      fresh: Those of them that leave the queue for the first time.
      fillers: Row -> request that nobody waits for; `infers` take the other rows.
    """

    infers: list[Infer]
    fresh: list[Infer]
    fillers: Mapping[int, InferRequest]


@final
class Refusal:
    """A request that ends without an execution.

    Attributes:
      infer: The request.
      error: Why.
      dispatched: Whether it was executed before and wanted to be again.
    """

    __slots__ = ("dispatched", "error", "infer")

    def __init__(self, infer: Infer, error: RequestError, dispatched: bool) -> None:
        self.infer = infer
        self.error = error
        self.dispatched = dispatched


@final
@dataclass(frozen=True, slots=True)
class SequenceSnapshot:
    """How full a sequence batcher is.

    Attributes:
      slots: Slots of all instances together.
      slots_used: Slots that hold a sequence, also an idle one.
      backlog: Sequences that wait for a slot.
      requests: Requests that wait or execute.
    """

    slots: int
    slots_used: int
    backlog: int
    requests: int


SEQUENCE_CANCELLED: Final = RequestError(
    ErrorCode.CANCELLED,
    "the request was cancelled, or an earlier or later one of its sequence was",
    reason=FailureReason.CANCELED,
)


def sequence_unknown(sequence_id: int | str, model_name: str) -> RequestError:
    """Return why a request without START cannot go on with its sequence."""
    return invalid_argument(
        f"sequence {_shown(sequence_id)} of model '{model_name}' is not under way: the first "
        "request of a sequence needs the START flag"
    )


def no_new_sequences(model_name: str) -> RequestError:
    """Return why a sequence cannot start while its model stops."""
    return RequestError(
        ErrorCode.UNAVAILABLE,
        f"the scheduler of model '{model_name}' takes no new sequences, because the model stops; "
        "sequences under way may continue",
        reason=FailureReason.REJECTED,
    )


def too_many_requests(requests_max: int, model_name: str) -> RequestError:
    """Return why a request cannot be queued."""
    return RequestError(
        ErrorCode.UNAVAILABLE,
        f"expected at most {requests_max} requests in the sequences of model '{model_name}', got "
        "one more",
        reason=FailureReason.REJECTED,
    )


def sequence_timed_out(sequence_id: int | str, model_name: str, waited_s: float) -> RequestError:
    """Return why the requests of a sequence that got no slot end."""
    return RequestError(
        ErrorCode.UNAVAILABLE,
        f"sequence {_shown(sequence_id)} of model '{model_name}' timed out: no slot came free for "
        f"it within {waited_s * 1e3:.1f} ms",
        reason=FailureReason.REJECTED,
    )


def sequence_lost(sequence_id: int | str, model_name: str) -> RequestError:
    """Return why the requests of a sequence end with its instance."""
    return RequestError(
        ErrorCode.UNAVAILABLE,
        f"the instance of model '{model_name}' that held sequence {_shown(sequence_id)} was lost, "
        "and with it the state of the sequence",
        reason=FailureReason.BACKEND,
    )


def _shown(sequence_id: int | str) -> str:
    return quoted(sequence_id) if isinstance(sequence_id, str) else str(sequence_id)
