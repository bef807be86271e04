"""The REST handler: one HTTP request in, one HTTP response out, whatever server carries them.

Semantics: the KServe v2 REST protocol and its extensions as served by Triton.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter_ns
from typing import Final, TypeAlias, final

import orjson
import trio

from ..memory.budget import BUDGET_USED_UP, ByteBudget
from ..protocol import management_codec
from ..protocol.binary_codec import parse_header_length
from ..protocol.config_json import model_config_to_dict
from ..protocol.content_coding import (
    CODINGS,
    InflatedTooFarError,
    choose_response_coding,
    compress,
    decompress,
)
from ..protocol.errors import ErrorCode, FailureReason, RequestError, invalid_argument
from ..protocol.header_forwarding import HeaderForwarding
from ..protocol.http_request import HttpRequest
from ..protocol.http_response import (
    JSON_CONTENT_TYPE,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    BinaryHeaders,
    HttpResponse,
    error_response,
    octet_stream,
)
from ..protocol.http_routes import Route, RouteFault, RouteName, match
from ..protocol.http_session import HttpFailure
from ..protocol.json_codec import decode_infer, encode_infer_response, prints_much
from ..protocol.openai.gate import PREFIX, Gate
from ..protocol.requests import InferRequest, InferResponse
from ..protocol.restricted_apis import RestrictedRoutes
from ..protocol.tensors import Buffer
from . import _openai_routing
from ._http_sampling import sample_request
from .http_service import Answer
from .http_stream import HttpStream
from .inference import count_refusal, refuse_decoupled, submit
from .region_access import RegionAccess, require
from .reply import Reply
from .router import Router
from .routing_table import ModelVersion
from .server_info import ServerInfo
from .tracing import Tracing

OFFLOAD_BYTES_MIN: Final = 256 * 1024
"""JSON from this size on is decoded on a thread: below it decoding takes about a millisecond,
which the loop can spare, and a thread costs a tenth of that."""

CODEC_THREADS_MAX: Final = 2
"""Threads that decode and encode at the same time: both mostly hold the interpreter lock, so more
of them would only take turns."""

HttpMethod: TypeAlias = Callable[[HttpRequest, Route], Answer | Awaitable[Answer]]
"""Begins to answer one kind of call without waiting; may raise `RequestError`."""


@final
class HttpApi:
    """Answers requests; holds no state of its own but its bounds.

    Args:
      router: Where models are found.
      info: The server metadata.
      input_bytes_max: Most bytes of JSON, of one JSON tensor and of a raw body.
      budget: Bounds what compressed requests inflate to.
      regions: Where tensors in shared memory are; None for a server without.
      restricted: The calls that need a key; None for none.
      forwarding: Which headers become parameters of requests; None for none.
      tracing: Samples inferences.
      binary_headers: Makes the headers of responses with binary tensors.
      gate: Keeps requests out of OpenAI's API; None for a server without that.
    """

    def __init__(
        self,
        *,
        router: Router,
        info: ServerInfo,
        input_bytes_max: int,
        budget: ByteBudget,
        tracing: Tracing,
        regions: RegionAccess | None = None,
        restricted: RestrictedRoutes | None = None,
        forwarding: HeaderForwarding | None = None,
        binary_headers: BinaryHeaders = octet_stream,
        gate: Gate | None = None,
    ) -> None:
        self._gate = gate
        self._router = router
        self._binary_headers = binary_headers
        self._restricted = restricted
        self._forwarding = forwarding
        self._info = info
        self._budget = budget
        self._regions = regions
        self._tracing = tracing
        self._input_bytes_max = input_bytes_max
        self._codec_threads = trio.CapacityLimiter(CODEC_THREADS_MAX)
        self._methods: dict[RouteName, HttpMethod] = {
            RouteName.SERVER_LIVE: self._server_live,
            RouteName.SERVER_READY: self._server_ready,
            RouteName.SERVER_METADATA: self._server_metadata,
            RouteName.MODEL_READY: self._model_ready,
            RouteName.MODEL_METADATA: self._model_metadata,
            RouteName.MODEL_CONFIG: self._model_config,
            RouteName.MODEL_STATISTICS: self._model_statistics,
            RouteName.MODEL_BATCHING: self._model_batching,
            RouteName.MODEL_INFER: self._model_infer,
        }

    def extend(self, methods: Mapping[RouteName, HttpMethod]) -> None:
        """Answer these calls too; those that nobody answers are not found."""
        self._methods |= methods

    def admit(self, request: HttpRequest) -> HttpFailure | None:
        """Refuse a body that is too large before it is sent.

        Only what is known to be JSON or raw input has a limit; binary tensors behind a JSON part
        have none but the byte budget.
        """
        if self._tracing.active:
            request.received_ns = perf_counter_ns()
        if self._gate is not None and request.path.startswith(PREFIX):
            return _openai_routing.admit(self._gate, request)
        size = request.content_length
        if self._restricted is not None:
            refusal = self._restricted.refusal_of_body(request)
            if refusal is not None:
                return HttpFailure(403, refusal)
        if size is None or size <= self._input_bytes_max:
            return None
        if request.headers.get(b"inference-header-content-length", b"0") != b"0":
            return None
        return HttpFailure(
            400,
            f"a request of JSON or raw input may have {self._input_bytes_max} bytes "
            f"(--http-max-input-size), got {size}",
        )

    def start(self, request: HttpRequest) -> Answer | Awaitable[Answer]:
        """Begin to answer a request, without waiting.

        Returns:
          The response; or the reply of a submitted inference, which the caller finishes or
          closes; or, if there is work for a thread first, an awaitable of either. The awaitable
          has to be awaited or closed.
        """
        if self._gate is not None and request.path.startswith(PREFIX):
            return _openai_routing.start(self._gate, self._methods, request)
        if self._restricted is not None:  # before the verb, which may not say what there is
            refusal = self._restricted.refusal(request)
            if refusal is not None:
                return error_response(403, refusal)
        try:
            route = match(request.method, request.path)
            if type(route) is Route:
                method = self._methods.get(route.name)
                return NOT_FOUND if method is None else method(request, route)
        except RequestError as error:
            return refused(error)
        return NOT_FOUND if route is RouteFault.NOT_FOUND else METHOD_NOT_ALLOWED

    def finish(
        self, request: InferRequest, response: InferResponse
    ) -> HttpResponse | Awaitable[HttpResponse]:
        """Return the HTTP response to an inference that `start` submitted.

        An awaitable, which has to be awaited or closed, if there is work for a thread first.
        """
        if response.error is None and prints_much(response, request):
            return self._finish_on_thread(request, response)
        return self._encode(request, response)

    async def _finish_on_thread(
        self, request: InferRequest, response: InferResponse
    ) -> HttpResponse:
        return await trio.to_thread.run_sync(
            self._encode, request, response, limiter=self._codec_threads
        )

    def _encode(self, request: InferRequest, response: InferResponse) -> HttpResponse:
        error = response.error
        if error is None:
            try:
                parts, header_length = encode_infer_response(response, request)
            except RequestError as fault:
                error = fault
        if error is not None:
            return refused(error)
        if header_length is None:
            return HttpResponse(200, [JSON_CONTENT_TYPE], parts)
        return HttpResponse(200, self._binary_headers(header_length), parts)

    async def handle(self, request: HttpRequest) -> HttpResponse | HttpStream:
        """Answer one request; cancelling this cancels the inference it waits for."""
        return await self._wait(self.start(request))

    async def _wait(self, answer: Answer | Awaitable[Answer]) -> HttpResponse | HttpStream:
        if not isinstance(answer, (HttpResponse, HttpStream, Reply)):
            answer = await answer
        if not isinstance(answer, Reply):
            return answer
        try:
            finished = self.finish(answer.request, await answer.receive())
            return finished if isinstance(finished, HttpResponse) else await finished
        finally:
            answer.close()

    # Inference.

    def _model_infer(self, request: HttpRequest, route: Route) -> Answer | Awaitable[Answer]:
        accept_encoding = request.headers.get(b"accept-encoding")
        if accept_encoding is not None:
            coding = choose_response_coding(accept_encoding)
            if coding is not None:
                return self._infer_compressed(request, route, coding)
        return self._infer(request, route)

    async def _infer_compressed(self, request: HttpRequest, route: Route, coding: str) -> Answer:
        """Answer an inference with a compressed body; errors stay as they are."""
        try:
            answer = self._infer(request, route)
        except RequestError as error:
            return refused(error)
        response = await self._wait(answer)
        if isinstance(response, HttpResponse) and response.status == 200:
            body = response.body
            parts = [body] if isinstance(body, bytes) else body
            response.body = await trio.to_thread.run_sync(
                compress, parts, coding, limiter=self._codec_threads
            )
            response.headers.append((b"Content-Encoding", coding.encode()))
        return response

    def _infer(self, request: HttpRequest, route: Route) -> Answer | Awaitable[Answer]:
        arrived_s = trio.current_time()
        version = self._router.table.find(route.model, route.version)
        refuse_decoupled(version, "the infer endpoint")
        headers = request.headers
        body = request.body
        if b"content-encoding" in headers:
            return self._infer_on_thread(request, route, version, arrived_s)
        try:
            header_length = parse_header_length(
                headers.get(b"inference-header-content-length"), len(body)
            )
            json_bytes = len(body) if header_length is None else header_length
            if json_bytes >= OFFLOAD_BYTES_MIN:
                return self._infer_on_thread(request, route, version, arrived_s)
            infer = self._decode(body, header_length, route, version)
            if self._forwarding is not None:
                infer.parameters |= self._forwarding.http_parameters(request)
        except RequestError as error:
            count_refusal(version, error, arrived_s)
            raise
        if self._tracing.active:
            sample_request(self._tracing, request, infer)
        if infer.shared_memory is not None:
            return self._infer_in_regions(infer, version, arrived_s)
        return submit(version, infer, arrived_s)

    async def _infer_in_regions(
        self, infer: InferRequest, version: ModelVersion, arrived_s: float
    ) -> HttpResponse:
        """Answer a request with tensors in shared memory."""
        try:
            response = await require(self._regions).infer(version, infer, arrived_s)
        except RequestError as error:
            return refused(error)
        finished = self.finish(infer, response)
        return finished if isinstance(finished, HttpResponse) else await finished

    async def _infer_on_thread(
        self, request: HttpRequest, route: Route, version: ModelVersion, arrived_s: float
    ) -> Answer:
        """Decode a compressed or large body on a thread, then submit it.

        What a body has inflated to counts in the budget until the answer is there.
        """
        held_bytes = 0
        try:
            infer, inflated_bytes = await trio.to_thread.run_sync(
                self._expand_and_decode, request, route, version, limiter=self._codec_threads
            )
            await trio.lowlevel.checkpoint_if_cancelled()  # a thread is not cut short
            if not self._budget.try_take(inflated_bytes):
                raise RequestError(ErrorCode.UNAVAILABLE, BUDGET_USED_UP)
            held_bytes = inflated_bytes
        except trio.Cancelled:
            left = RequestError(
                ErrorCode.CANCELLED, "the client left", reason=FailureReason.CANCELED
            )
            count_refusal(version, left, arrived_s)
            raise
        except RequestError as error:
            count_refusal(version, error, arrived_s)
            response = refused(error)
            if error.code is ErrorCode.UNSUPPORTED and b"content-encoding" in request.headers:
                response.headers.append((b"Accept-Encoding", ", ".join(CODINGS).encode()))
            return response
        if self._tracing.active:
            sample_request(self._tracing, request, infer)
        try:
            # The version may have been replaced meanwhile, and take no more requests.
            version = self._router.table.find(route.model, route.version)
            refuse_decoupled(version, "the infer endpoint")
            if infer.shared_memory is not None:
                return await self._infer_in_regions(infer, version, arrived_s)
            answer = submit(version, infer, arrived_s)
            return await self._wait(answer) if held_bytes else answer
        except RequestError as error:
            return refused(error)
        finally:
            self._budget.give_back(held_bytes)

    def _expand_and_decode(
        self, request: HttpRequest, route: Route, version: ModelVersion
    ) -> tuple[InferRequest, int]:
        """Return the request, and the bytes that its body takes beyond what came."""
        headers = request.headers
        body = self._expand(request.body, headers.get(b"content-encoding", b""))
        header_length = parse_header_length(
            headers.get(b"inference-header-content-length"), len(body)
        )
        infer = self._decode(body, header_length, route, version)
        if self._forwarding is not None:
            infer.parameters |= self._forwarding.http_parameters(request)
        return infer, 0 if body is request.body else len(body)

    def _expand(self, body: Buffer, coding: bytes) -> Buffer:
        limit_bytes = self._input_bytes_max
        room_bytes = self._budget.limit_bytes - self._budget.used_bytes
        try:
            return decompress(body, coding, min(limit_bytes, room_bytes))
        except InflatedTooFarError:
            if limit_bytes <= room_bytes:
                raise
            raise RequestError(ErrorCode.UNAVAILABLE, BUDGET_USED_UP) from None

    def _decode(
        self, body: Buffer, header_length: int | None, route: Route, version: ModelVersion
    ) -> InferRequest:
        if not body and header_length is None:
            raise invalid_argument("expected an inference request as JSON, got an empty body")
        return decode_infer(
            body,
            header_length=header_length,
            spec=version.spec,
            model_name=route.model,
            model_version=route.version,
            limit_bytes=self._input_bytes_max,
        )

    # Health, metadata and the rest.

    def _server_live(self, _: HttpRequest, __: Route) -> HttpResponse:
        return HttpResponse(200 if self._router.live() else 400)

    def _server_ready(self, _: HttpRequest, __: Route) -> HttpResponse:
        return HttpResponse(200 if self._router.ready() else 400)

    def _server_metadata(self, _: HttpRequest, __: Route) -> HttpResponse:
        info = self._info
        return _json(management_codec.server_metadata(info.name, info.version, info.extensions))

    def _model_ready(self, _: HttpRequest, route: Route) -> HttpResponse | Awaitable[Answer]:
        try:
            version = self._router.table.find(route.model, route.version)
        except RequestError as error:
            raise invalid_argument(error.message) from None  # one status for all that is not ready
        check = version.check_ready
        return HttpResponse(200) if check is None else _checked(check)

    def _model_metadata(self, _: HttpRequest, route: Route) -> HttpResponse:
        table = self._router.table
        version = table.find(route.model, route.version)
        versions = [version.version] if route.version else table.versions_ready(route.model)
        return _json(management_codec.model_metadata(version.spec, versions))

    def _model_config(self, _: HttpRequest, route: Route) -> HttpResponse:
        version = self._router.table.find(route.model, route.version)
        return _json(orjson.dumps(model_config_to_dict(version.config)))

    def _model_statistics(self, _: HttpRequest, route: Route) -> HttpResponse:
        entries = self._router.table.statistics_of(route.model, route.version)
        return _json(management_codec.statistics(entries))

    def _model_batching(self, _: HttpRequest, route: Route) -> HttpResponse:
        version = self._router.table.find(route.model, route.version)
        explanation = None if version.explain is None else version.explain()
        return _json(management_codec.batching(version.name, version.version, explanation))


def _json(body: bytes) -> HttpResponse:
    return HttpResponse(200, [JSON_CONTENT_TYPE], body)


def refused(error: RequestError) -> HttpResponse:
    """Return the answer that reports why a request failed."""
    return error_response(error.code.http_status, error.message, retry_after_s=error.retry_after_s)


async def _checked(check: Callable[[], Awaitable[bool]]) -> HttpResponse:
    return HttpResponse(200 if await check() else 400)
