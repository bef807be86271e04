"""When is a gRPC client pinged, told to go, or cut off, and how often may it ping?  Pure.

Source: gRPC's documents on keep-alive and on connection age, with the answers of a live Triton
where those leave a choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import final

IDLE_PING_INTERVAL_S = 7200.0
"""Least seconds between pings of a client without calls, unless such pings are permitted: what TCP
keeps connections alive with, so that no more often than that is worth anybody's while."""

AGE_JITTER = 0.1
"""Ages differ by up to this part, so that clients that came together do not leave together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcKeepAlive:
    """When a gRPC server pings, and what it takes; names and defaults are Triton's.

    Attributes:
      time_s: Seconds without anything from a client until it is pinged.
      timeout_s: Seconds that it has to answer before its connection is closed.
      permit_without_calls: Whether connections without calls are pinged, and may ping, too.
      pings_without_data_max: Pings in a row without anything else sent between; 0 for no limit.
      ping_interval_min_s: Least seconds between a client's pings without anything sent between.
      ping_strikes_max: Pings that come too soon before the connection is closed; 0 for no limit.
      connection_age_max_s: Seconds after which a connection is told to go; 0 for never.
      connection_age_grace_s: Seconds that its calls have then; 0 for no limit.
    """

    time_s: float = 7200.0
    timeout_s: float = 20.0
    permit_without_calls: bool = False
    pings_without_data_max: int = 2
    ping_interval_min_s: float = 300.0
    ping_strikes_max: int = 2
    connection_age_max_s: float = 0.0
    connection_age_grace_s: float = 0.0


class KeepAliveAction(Enum):
    """What a connection has to do."""

    NOTHING = auto()
    PING = auto()
    """Ask whether the client is there."""
    CUT = auto()
    """Close: the client did not answer."""
    RETIRE = auto()
    """Tell the client to open its next calls elsewhere."""
    EXPIRE = auto()
    """End the calls that are left, and close."""


@final
class KeepAlivePolicy:
    """Of one connection. Its clock is the caller's ticks, to which everything is exact.

    Args:
      settings: The server's.
      now_s: When the connection was accepted.
      jitter: From -1 to 1; makes the age of this connection differ from others'.
    """

    __slots__ = (
        "_age_end_s",
        "_client_pinged_s",
        "_heard",
        "_heard_s",
        "_pinged_s",
        "_pings",
        "_retired_s",
        "_sent",
        "_settings",
        "_strikes",
    )

    def __init__(self, settings: GrpcKeepAlive, now_s: float, *, jitter: float) -> None:
        age_s = settings.connection_age_max_s or inf
        self._settings = settings
        self._age_end_s = now_s + age_s * (1 + AGE_JITTER * jitter)
        self._retired_s: float | None = None
        self._heard = 0
        self._heard_s = now_s
        self._sent: int | None = 0  # None between a ping and the tick that sees it sent
        self._pings = 0
        self._pinged_s: float | None = None
        self._client_pinged_s = -inf
        self._strikes = 0

    def tick(self, now_s: float, *, heard: int, sent: int, has_calls: bool) -> KeepAliveAction:
        """Return what is to be done now.

        Args:
          now_s: The time.
          heard: Any number that changes whenever the client is heard of.
          sent: Any number that changes whenever something is sent to it.
          has_calls: Whether calls are in flight.
        """
        self._note(now_s, heard, sent)
        settings = self._settings
        if self._retired_s is not None:
            grace_s = settings.connection_age_grace_s or inf
            if now_s >= self._retired_s + grace_s:
                return KeepAliveAction.EXPIRE
        elif now_s >= self._age_end_s:
            self._retired_s = now_s
            return KeepAliveAction.RETIRE
        if self._pinged_s is not None:
            if now_s >= self._pinged_s + settings.timeout_s:
                return KeepAliveAction.CUT
        elif (
            now_s >= self._heard_s + settings.time_s
            and (has_calls or settings.permit_without_calls)
            and (
                self._pings < settings.pings_without_data_max or not settings.pings_without_data_max
            )
        ):
            self._pinged_s = now_s
            self._pings += 1
            self._sent = None
            return KeepAliveAction.PING
        return KeepAliveAction.NOTHING

    def _note(self, now_s: float, heard: int, sent: int) -> None:
        if heard != self._heard:
            self._heard = heard
            self._heard_s = now_s
            self._pinged_s = None
        if self._sent is None:
            self._sent = sent
        elif sent != self._sent:
            self._sent = sent
            self._pings = 0

    def client_pinged(self, now_s: float, *, repeated: bool, has_calls: bool) -> bool:
        """Take note of a ping of the client, which is answered in any case.

        Args:
          now_s: The time.
          repeated: Whether nothing but idle talk has passed since its last ping.
          has_calls: Whether calls are in flight.

        Returns:
          Whether it was one too many, so that the connection has to end.
        """
        settings = self._settings
        if not repeated:
            self._client_pinged_s = -inf
            self._strikes = 0
        interval_s = settings.ping_interval_min_s
        if not (has_calls or settings.permit_without_calls):
            interval_s = IDLE_PING_INTERVAL_S
        early = now_s < self._client_pinged_s + interval_s
        self._client_pinged_s = now_s
        if early:
            self._strikes += 1
        return 0 < settings.ping_strikes_max < self._strikes
