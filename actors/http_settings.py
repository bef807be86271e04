"""What every HTTP connection of one frontend has in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..protocol.http_session import HttpLimits
from ._connection_watch import Patience
from .log_control import CallLog


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """What every HTTP connection of one frontend has in common.

    Attributes:
      limits: Bounds of the session.
      patience: Timeouts.
      cancel_on_eof: What the end of a client's direction means while it is owed an answer: True
        takes it for a client that left and cancels its requests; False answers a client that
        only shut its side down. The two look the same on the wire.
      calls: Where requests are logged.
    """

    limits: HttpLimits = field(default_factory=HttpLimits)
    patience: Patience = field(default_factory=Patience)
    cancel_on_eof: bool = True
    calls: CallLog = field(default_factory=CallLog)
