"""The SageMaker endpoint: routes that lead to the REST handler, and models on request."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from typing import Final, final

from ..protocol.cloud_calls import no_such_route, readdress
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
    SagemakerSettings,
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

PASSED_ON: Final = {SagemakerName.PING, SagemakerName.INVOCATIONS, SagemakerName.INVOKE}
"""What the REST handler answers."""

LOAD_BYTES_MAX: Final = 64 * 1024
"""A request to load has a name and a path, which file systems keep below 5 KiB together."""


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
        head = replace(request)  # `start` needs it as it came
        with suppress(RequestError):  # which it is answered with once its body is there
            call = match(request.method, request.path)
            if isinstance(call, SagemakerCall):
                self._readdress(head, call, request.content_length)
        failure = self._api.admit(head)
        request.received_ns = head.received_ns
        return failure

    def start(self, request: HttpRequest) -> Answer | Awaitable[Answer]:
        """Begin to answer a request, without waiting; see `HttpApi.start`."""
        try:
            call = match(request.method, request.path)
            if call is RouteFault.METHOD_NOT_ALLOWED:
                return METHOD_NOT_ALLOWED
            if isinstance(call, RouteFault):
                return no_such_route(request, ROUTES)
            if self._restricted is not None:  # before anything is said of a model
                asked = replace(request, path=self._settings.v2_call(call).path)
                refusal = self._restricted.refusal(asked)
                if refusal is not None:
                    return error_response(403, refusal)
            if call.name in PASSED_ON:
                return self._pass_on(call, request)
        except RequestError as error:
            return refused(error)
        return self._manage(call, request)

    def finish(
        self, request: InferRequest, response: InferResponse
    ) -> HttpResponse | Awaitable[HttpResponse]:
        """Return the HTTP response to an inference; see `HttpApi.finish`."""
        return self._api.finish(request, response)

    def _readdress(self, request: HttpRequest, call: SagemakerCall, body_bytes: int | None) -> None:
        """Make a request that of the v2 call that does the same.

        Raises:
          RequestError: INVALID_ARG; its Content-Type is at fault.
        """
        v2_call = self._settings.v2_call(call, request.headers.get(TARGET_MODEL, b""))
        readdress(request, v2_call, BINARY.length_of(request, body_bytes))

    def _pass_on(self, call: SagemakerCall, request: HttpRequest) -> Answer | Awaitable[Answer]:
        """Have the REST handler answer."""
        if call.name is SagemakerName.INVOCATIONS and not self._settings.default_model:
            return error_response(
                404,
                "the model of /invocations is not known: SAGEMAKER_TRITON_DEFAULT_MODEL_NAME is "
                "not set",
            )
        if call.name is SagemakerName.INVOKE and call.model not in self._models.loaded:
            return _not_loaded(call.model)
        self._readdress(request, call, len(request.body))
        if call.name is SagemakerName.INVOKE:
            return self._invoke(request)
        return self._api.start(request)

    def _manage(
        self, call: SagemakerCall, request: HttpRequest
    ) -> HttpResponse | Awaitable[HttpResponse]:
        """Answer what is asked about models that come and go."""
        loaded = self._models.loaded
        if call.name is SagemakerName.LIST:
            return HttpResponse(200, [JSON_CONTENT_TYPE], models_body(loaded))
        if call.name is SagemakerName.LOAD:
            return self._load(request)
        if call.model not in loaded:
            return _not_loaded(call.model)
        if call.name is SagemakerName.UNLOAD:
            return self._unload(call.model)
        body = model_body(call.model, loaded[call.model])
        return HttpResponse(200, [JSON_CONTENT_TYPE], body)

    async def _invoke(self, request: HttpRequest) -> HttpResponse | HttpStream:
        response = await self._api.handle(request)
        if isinstance(response, HttpResponse) and response.status != 200:
            assert isinstance(response.body, bytes)
            return replace(response, status=failure_status(response.body.decode()))
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
        try:
            await self._models.unload(name)
        except RequestError as error:
            return refused(error)
        return HttpResponse(200)


def _not_loaded(name: str) -> HttpResponse:
    return error_response(404, f"model {quoted(name)} is not loaded")
