"""What every gRPC connection of one frontend has in common."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from ..protocol.grpc_session import GrpcLimits
from ..protocol.restricted_apis import RestrictedMethods
from ._connection_watch import Patience
from ._keep_alive_policy import GrpcKeepAlive
from .log_control import CallLog

CODEC_THREADS_MAX = 2
"""Threads that inflate and compress messages at the same time, of all connections: the processors
are the models'."""


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """What every gRPC connection of one frontend has in common.

    Attributes:
      limits: Bounds of the session.
      patience: Timeouts. Channels may idle for two hours, as Triton's keep-alive allows.
      keep_alive: When pings are sent, and how many are taken.
      codec_threads: Bounds the threads that inflate and compress messages.
      restricted: The calls that need a key; None for none.
      calls: Where calls are logged.
    """

    limits: GrpcLimits = field(default_factory=GrpcLimits)
    patience: Patience = field(default_factory=lambda: Patience(idle_s=7200.0))
    keep_alive: GrpcKeepAlive = field(default_factory=GrpcKeepAlive)
    codec_threads: trio.CapacityLimiter = field(
        default_factory=lambda: trio.CapacityLimiter(CODEC_THREADS_MAX)
    )
    restricted: RestrictedMethods | None = None
    calls: CallLog = field(default_factory=CallLog)
