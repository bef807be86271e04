"""The Vertex AI endpoint: two routes that lead to the calls of the REST handler."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from typing import Final, final

from prometheus_client import CollectorRegistry

from ..protocol.cloud_calls import no_such_route, readdress
from ..protocol.errors import RequestError, invalid_argument
from ..protocol.http_request import HttpRequest
from ..protocol.http_response import METHOD_NOT_ALLOWED, HttpResponse, error_response
from ..protocol.http_session import HttpFailure
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.vertex_ai import BINARY, REDIRECT, VertexAiFault, VertexAiRoutes
from ..protocol.wording import quoted
from .http_api import HttpApi, refused
from .http_service import Answer
from .metrics_collector import CONTENT_TYPE, render_in_turns
from .router import Router

FORBIDDEN: Final = error_response(
    403, "calls that load or unload models or register shared memory cannot be redirected to"
)
"""Shared, so never changed."""


@final
class HttpVertexAi:
    """Answers what comes to the endpoint; an `HttpService` around the REST handler.

    Args:
      api: Answers the calls.
      routes: The endpoint's.
      metrics: Every metric of the server.
    """

    def __init__(self, api: HttpApi, routes: VertexAiRoutes, metrics: CollectorRegistry) -> None:
        self._api = api
        self._routes = routes
        self._metrics = metrics

    def admit(self, request: HttpRequest) -> HttpFailure | None:
        """Refuse a body that is too large before it is sent; see `HttpApi.admit`."""
        call = replace(request)  # `start` needs it as it came
        with suppress(RequestError):  # which it is answered with once its body is there
            self._readdress(call, request.content_length)
        failure = self._api.admit(call)
        request.received_ns = call.received_ns
        return failure

    def start(self, request: HttpRequest) -> Answer | Awaitable[Answer]:
        """Begin to answer a request, without waiting; see `HttpApi.start`."""
        try:
            refusal = self._readdress(request, len(request.body))
        except RequestError as error:
            return refused(error)
        if refusal is not None:
            return refusal
        return self._api.start(request) if request.path else self._scrape()

    def finish(
        self, request: InferRequest, response: InferResponse
    ) -> HttpResponse | Awaitable[HttpResponse]:
        """Return the HTTP response to an inference; see `HttpApi.finish`."""
        return self._api.finish(request, response)

    def _readdress(self, request: HttpRequest, body_bytes: int | None) -> HttpResponse | None:
        """Make a request that of a v2 call, or return why it is none.

        Raises:
          RequestError: INVALID_ARG; its Content-Type is at fault.
        """
        call = self._routes.call(request)
        match call:
            case VertexAiFault.NO_ROUTE:
                return no_such_route(request, "health or of predictions")
            case VertexAiFault.METHOD_NOT_ALLOWED:
                return METHOD_NOT_ALLOWED
            case VertexAiFault.FORBIDDEN:
                return FORBIDDEN
            case VertexAiFault.NO_REDIRECT:
                value = request.headers[REDIRECT].decode("latin-1")
                return error_response(
                    400,
                    "expected X-Vertex-Ai-Triton-Redirect to name a call without its first slash, "
                    f"such as v2/models/MODEL/stats, got {quoted(value)}",
                )
        assert not isinstance(call, VertexAiFault)
        readdress(request, call, BINARY.length_of(request, body_bytes))
        return None

    async def _scrape(self) -> HttpResponse:
        body = await render_in_turns(self._metrics)
        return HttpResponse(200, [(b"Content-Type", CONTENT_TYPE.encode())], body)


def vertex_ai_model(router: Router, name: str) -> str:
    """Return the model that predictions are for.

    Args:
      router: Where models are found.
      name: The model that is asked for; "" for the only one there is.

    Raises:
      RequestError: INVALID_ARG; it is not READY, or there is not exactly one.
    """
    ready = sorted({entry.name for entry in router.table.index(ready_only=True)})
    if name and name not in ready:
        raise invalid_argument(
            f"--vertex-ai-default-model names {quoted(name)}, which is not among the models that "
            "are ready"
        )
    if not name and len(ready) != 1:
        raise invalid_argument(
            "the Vertex AI endpoint needs --vertex-ai-default-model, unless exactly one model is "
            f"ready; there are {len(ready)}"
        )
    return name or ready[0]
