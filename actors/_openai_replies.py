"""Waits for the responses to several requests that belong to one call."""

from __future__ import annotations

from collections import deque
from typing import final

import trio

from ..protocol.requests import InferResponse
from .reply import Reply


@final
class Replies:
    """The replies to the requests of one call; closing it closes them all."""

    def __init__(self) -> None:
        self._all: list[Reply] = []
        self._open: deque[int] = deque()
        self._news = trio.Event()

    def add(self, reply: Reply) -> None:
        """Wait for one more reply, which is owned from now on."""
        self._open.append(len(self._all))
        self._all.append(reply)
        reply.notify = self._wake

    def _wake(self) -> None:
        self._news.set()

    async def next(self) -> tuple[int, InferResponse] | None:
        """Return the next response, and which reply it is of; None when all have ended.

        Replies take turns, so none waits for another that has much to say.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._open:
            self._news = trio.Event()
            for _ in range(len(self._open)):
                index = self._open[0]
                self._open.rotate(-1)
                if self._all[index].has_response:
                    response = self._all[index].receive_nowait()
                    if response.final:
                        self._open.remove(index)
                    return index, response
            await self._news.wait()
        return None

    def close(self) -> None:
        """Cancel what has not ended; idempotent."""
        self._open.clear()
        for reply in self._all:
            reply.close()
