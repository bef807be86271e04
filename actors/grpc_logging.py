"""The log settings over gRPC: the method LogSettings."""

from __future__ import annotations

from typing import final

from grpclib.const import Handler

from ..protocol.log_settings import changed_by_message, settings_message
from ..protocol.pb import inference as pb
from .grpc_unary import unary_handlers
from .log_control import LogControl


@final
class GrpcLogging:
    """Reads and changes the settings of one server's log."""

    def __init__(self, control: LogControl) -> None:
        self._control = control

    def mapping(self) -> dict[str, Handler]:
        """Return path -> grpclib handler."""
        return unary_handlers({"LogSettings": self._log_settings})

    async def _log_settings(self, request: pb.LogSettingsRequest) -> pb.LogSettingsResponse:
        control = self._control
        control.update(changed_by_message(control.settings, request))
        return settings_message(control.settings)
