"""Leads requests to OpenAI's API to what answers them, with errors in its shape."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from ..protocol.errors import RequestError
from ..protocol.http_request import HttpRequest
from ..protocol.http_routes import Route, RouteName, match
from ..protocol.http_session import HttpFailure
from ..protocol.openai.errors import OpenAiError, from_request_error
from ..protocol.openai.gate import Gate
from ..protocol.wording import quoted
from .http_service import Answer


def admit(gate: Gate, request: HttpRequest) -> HttpFailure | None:
    """Refuse a request before its body is sent; see `HttpService.admit`."""
    refusal = gate.refusal_of_body(request)
    if refusal is None:
        return None
    return HttpFailure(refusal.status, refusal.message, refusal.response())


def start(
    gate: Gate,
    methods: Mapping[RouteName, Callable[[HttpRequest, Route], Answer | Awaitable[Answer]]],
    request: HttpRequest,
) -> Answer | Awaitable[Answer]:
    """Begin to answer a request; see `HttpService.start`."""
    refusal = gate.refusal(request)
    if refusal is not None:
        return refusal.response()
    try:
        route = match(request.method, request.path)
        if isinstance(route, Route):
            method = methods.get(route.name)
            if method is not None:
                return method(request, route)
    except RequestError as error:
        return from_request_error(error).response()
    what = quoted(f"{request.method.decode('latin-1')} {request.path.decode('latin-1')}")
    status = 404 if isinstance(route, Route) else route.value
    return OpenAiError(status, f"there is no call {what}", code="unknown_url").response()
