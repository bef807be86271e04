"""In which order are responses released?  Pure: no trio, no clock, no I/O.

Source: Triton `ModelDynamicBatching.preserve_ordering`: in the order in which the requests left
the queue, whichever instance is faster.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias, final

from ..protocol.requests import InferResponse
from .messages import Infer

Released: TypeAlias = list[tuple[Infer, InferResponse]]


class _Entry:
    __slots__ = ("done", "infer", "responses")

    def __init__(self, infer: Infer) -> None:
        self.infer = infer
        self.responses: list[InferResponse] = []
        self.done = False


@final
class CompletionOrder:
    """Holds responses back until all requests that were dispatched earlier have ended.

    It holds at most what the instances of one model version execute at a time.
    """

    def __init__(self) -> None:
        self._order: deque[_Entry] = deque()
        self._entries: dict[Infer, _Entry] = {}

    def __len__(self) -> int:
        return len(self._order)

    @property
    def first(self) -> Infer | None:
        """The begun request whose responses are released at once."""
        order = self._order
        return order[0].infer if order else None

    def is_first(self, infer: Infer) -> bool:
        """Whether a begun request is that one."""
        return self.first is infer

    def begin(self, infer: Infer) -> None:
        """Note that a request leaves the queue; its responses come after all noted before."""
        entry = self._entries[infer] = _Entry(infer)
        self._order.append(entry)

    def respond(self, infer: Infer, response: InferResponse) -> Released:
        """Take one response of a begun request; return what may be sent now, in order."""
        entry = self._entries[infer]
        entry.responses.append(response)
        if response.final:
            entry.done = True
            del self._entries[infer]
        released: Released = []
        order = self._order
        while order:
            head = order[0]
            released += [(head.infer, response) for response in head.responses]
            head.responses.clear()
            if not head.done:
                break
            order.popleft()
        return released
