"""What the log says of faults that a model repeats."""

from __future__ import annotations

import logging
from typing import Final, final

_LOGGER: Final = logging.getLogger("tritrio.model")


@final
class FaultLog:
    """Tells the operator ever more rarely: a broken model fails as often as it is asked.

    The faults 1, 2, 4, 8 and so on are logged. Used on one thread.
    """

    def __init__(self) -> None:
        self._count = 0

    def note(self, fault: str, error: BaseException | None = None) -> None:
        """Count a fault, and perhaps log it.

        Args:
          fault: One sentence.
          error: Whose traceback is to be seen; None where the sentence says enough.
        """
        self._count += 1
        if self._count & (self._count - 1) == 0:
            _LOGGER.error("%s (faults so far: %d)", fault, self._count, exc_info=error)
