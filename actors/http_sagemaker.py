"""The SageMaker endpoint: routes that lead to the REST handler, and models on request."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, final
from urllib.parse import quote

from ..protocol.cloud_calls import model_path, no_such_route, readdress
from ..protocol.errors import ErrorCode, RequestError
from ..protocol.http_request import HttpRequest
from ..protocol.http_response import (
    JSON_CONTENT_TYPE,
    METHOD_NOT_ALLOWED,
    HttpResponse,
    error_response,
)
from ..protocol.http_routes import RouteFault
from ..protocol.http_session import HttpFailure
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.restricted_apis import RestrictedRoutes
from ..protocol.sagemaker import (
    BINARY,
    TARGET_MODEL,
    SagemakerCall,
    SagemakerName,
    failure_status,
    match,
    model_body,
    models_body,
    parse_load_body,
)
from ..protocol.wording import quoted
from .http_api import HttpApi, refused
from .http_service import Answer
from .http_stream import HttpStream
from .sagemaker_models import SagemakerModels

ROUTES: Final = "ping, invocations, or models"

LOAD_BYTES_MAX: Final = 64 * 1024
"""A request to load has a name and a path, which file systems keep below 5 KiB together."""


@dataclass(frozen=True, slots=True)
class SagemakerSettings:
    """What the platform tells the server.

    Attributes:
      default_model: The model that `/invocations` is for; "" if nobody said it.
      inference_type: The call that `/invocations` is: "infer", "generate" or "generate_stream".
      ping_mode: Whether `/ping` asks for a server that is "ready", or one that is "live".
    """

    default_model: str = ""
    inference_type: str = "infer"
    ping_mode: str = "ready"


@final
class HttpSagemaker:
    """Answers what comes to the endpoint; an `HttpService` around the REST handler.

    Args:
      api: Answers the calls; makes the endpoint's headers for binary tensors.
      models: Loads and unloads models.
      settings: What the platform says.
      restricted: The calls that need a key; None for none.
    """

    def __init__(
        self,
        api: HttpApi,
        models: SagemakerModels,
        settings: SagemakerSettings,
        *,
        restricted: RestrictedRoutes | None,
    ) -> None:
        self._api = api
        self._models = models
        self._settings = settings
        self._restricted = restricted

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
            call = self._readdress(request, len(request.body))
        except RequestError as error:
            return refused(error)
        if not isinstance(call, SagemakerCall):
            return call
        if call.name in (SagemakerName.PING, SagemakerName.INVOCATIONS):
            return self._api.start(request)
        if self._restricted is not None:
            refusal = self._restricted.refusal(request)
            if refusal is not None:
                return error_response(403, refusal)
        return self._start_model(call, request)

    def finish(
        self, request: InferRequest, response: InferResponse
    ) -> HttpResponse | Awaitable[HttpResponse]:
        """Return the HTTP response to an inference; see `HttpApi.finish`."""
        return self._api.finish(request, response)

    def _readdress(
        self, request: HttpRequest, body_bytes: int | None
    ) -> SagemakerCall | HttpResponse:
        """Make a request that of the v2 call that does the same, or return why it is none.

        Raises:
          RequestError: INVALID_ARG; its path or its Content-Type is at fault.
        """
        call = match(request.method, request.path)
        if call is RouteFault.METHOD_NOT_ALLOWED:
            return METHOD_NOT_ALLOWED
        if isinstance(call, RouteFault):
            return no_such_route(request, ROUTES)
        settings = self._settings
        length: bytes | None = None
        match call.name:
            case SagemakerName.PING:
                v2 = b"GET", b"/v2/health/" + settings.ping_mode.encode()
            case SagemakerName.INVOCATIONS:
                if not settings.default_model:
                    return error_response(
                        404,
                        "the model of /invocations is not known: "
                        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME is not set",
                    )
                v2 = b"POST", model_path(settings.default_model, settings.inference_type)
            case SagemakerName.INVOKE:
                target = request.headers.get(TARGET_MODEL, b"").decode("utf-8", "replace")
                v2 = b"POST", model_path(target or call.model, "infer")
            case SagemakerName.LOAD | SagemakerName.UNLOAD:
                name = quote(call.model or "-", safe="").encode()
                v2 = b"POST", b"/v2/repository/models/%b/%b" % (name, call.name.value.encode())
            case SagemakerName.LIST | SagemakerName.GET:
                v2 = b"POST", b"/v2/repository/index"
        if call.name in (SagemakerName.INVOCATIONS, SagemakerName.INVOKE):
            length = BINARY.length_of(request, body_bytes)
        readdress(request, *v2, length)
        return call

    # Models on request.

    def _start_model(
        self, call: SagemakerCall, request: HttpRequest
    ) -> HttpResponse | Awaitable[Answer]:
        loaded = self._models.loaded
        match call.name:
            case SagemakerName.LIST:
                return HttpResponse(200, [JSON_CONTENT_TYPE], models_body(loaded))
            case SagemakerName.LOAD:
                return self._load(request)
        if call.model not in loaded:
            return error_response(404, f"model {quoted(call.model)} is not loaded")
        match call.name:
            case SagemakerName.GET:
                body = model_body(call.model, loaded[call.model])
                return HttpResponse(200, [JSON_CONTENT_TYPE], body)
            case SagemakerName.UNLOAD:
                return self._unload(call.model)
        return self._invoke(request)

    async def _invoke(self, request: HttpRequest) -> HttpResponse | HttpStream:
        response = await self._api.handle(request)
        if isinstance(response, HttpResponse) and response.status not in {200, 403}:
            assert isinstance(response.body, bytes)
            response.status = failure_status(response.body.decode())
        return response

    async def _load(self, request: HttpRequest) -> HttpResponse:
        if len(request.body) > LOAD_BYTES_MAX:
            return error_response(
                400,
                f"a request to load a model may have {LOAD_BYTES_MAX} bytes, got "
                f"{len(request.body)}",
            )
        try:
            await self._models.load(*parse_load_body(request.body))
        except RequestError as error:
            known = error.code is ErrorCode.ALREADY_EXISTS
            return error_response(409 if known else failure_status(error.message), error.message)
        return HttpResponse(200)

    async def _unload(self, name: str) -> HttpResponse:
        await self._models.unload(name)
        return HttpResponse(200)
