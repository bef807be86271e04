"""The trace settings over HTTP."""

from __future__ import annotations

from typing import final

import orjson

from ..protocol.errors import RequestError, invalid_argument
from ..protocol.http_request import HttpRequest
from ..protocol.http_response import JSON_CONTENT_TYPE, HttpResponse
from ..protocol.http_routes import Route, RouteName
from ..protocol.json_text import parse_object
from ..protocol.trace_settings import json_from_texts, update_from_json
from .http_api import HttpMethod
from .router import Router
from .tracing import Tracing


@final
class TraceSettingApi:
    """Answers `/v2/trace/setting` and `/v2/models/<model>/trace/setting`."""

    def __init__(self, *, router: Router, tracing: Tracing) -> None:
        self._router = router
        self._tracing = tracing

    def mapping(self) -> dict[RouteName, HttpMethod]:
        """Return the calls; see `HttpApi.extend`."""
        return {RouteName.TRACE_SETTING: self._answer}

    def _answer(self, request: HttpRequest, route: Route) -> HttpResponse:
        check_model(self._router, route.model)
        if request.method == b"POST":
            document = parse_object(bytes(request.body), "the trace settings")
            self._tracing.update(route.model, update_from_json(document))
        settings = json_from_texts(self._tracing.texts(route.model))
        return HttpResponse(200, [JSON_CONTENT_TYPE], orjson.dumps(settings))


def check_model(router: Router, model: str) -> None:
    """Check that the model of a setting is there; "" means no model.

    Raises:
      RequestError: INVALID_ARG; it is not, or not ready.
    """
    if model:
        try:
            router.table.find(model)
        except RequestError as error:
            raise invalid_argument(error.message) from None
