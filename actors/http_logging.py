"""The log settings over HTTP: GET and POST on `/v2/logging`."""

from __future__ import annotations

from typing import final

from ..protocol.http_request import HttpRequest
from ..protocol.http_response import JSON_CONTENT_TYPE, HttpResponse
from ..protocol.http_routes import Route, RouteName
from ..protocol.log_settings import changed_by_json, settings_body
from .http_api import HttpMethod
from .log_control import LogControl


@final
class HttpLogging:
    """Reads and changes the settings of one server's log."""

    def __init__(self, control: LogControl) -> None:
        self._control = control

    def mapping(self) -> dict[RouteName, HttpMethod]:
        """Return what `HttpApi.extend` takes."""
        return {RouteName.LOGGING: self._logging}

    def _logging(self, request: HttpRequest, _: Route) -> HttpResponse:
        control = self._control
        if request.method == b"POST":
            control.update(changed_by_json(control.settings, bytes(request.body)))
        return HttpResponse(200, [JSON_CONTENT_TYPE], settings_body(control.settings))
