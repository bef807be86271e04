"""The generate calls over HTTP: one response as JSON, or any number of them as they come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias, final

import trio

from ..protocol.errors import ErrorCode, RequestError, invalid_argument
from ..protocol.generate_codec import (
    check_coding,
    decode_generate,
    encode_generate,
    server_sent_event,
)
from ..protocol.http_request import HttpRequest
from ..protocol.http_response import JSON_CONTENT_TYPE, HttpResponse
from ..protocol.http_routes import Route, RouteName
from ..protocol.json_codec import prints_much
from ..protocol.load_report import FORMAT_HEADER, load_report
from ..protocol.requests import InferRequest, InferResponse, Parameters
from ._http_sampling import sample_request
from .http_api import CODEC_THREADS_MAX, OFFLOAD_BYTES_MIN, HttpMethod, refused
from .http_service import Answer
from .http_stream import HttpStream
from .inference import count_refusal, submit
from .reply import Reply
from .router import Router
from .routing_table import ModelVersion
from .tracing import Tracing

EVENT_STREAM: Final = (b"Content-Type", b"text/event-stream; charset=utf-8")

Forward: TypeAlias = Callable[[HttpRequest], Parameters]
"""Returns the headers of a request that become parameters; may raise `RequestError`."""

_Encode: TypeAlias = Callable[[InferResponse, Reply], Awaitable[bytes]]


@final
class GenerateMethods:
    """Answers the generate calls; holds no state of its own but its bounds.

    Args:
      router: Where models are found.
      input_bytes_max: Most bytes of a request, and of its inputs together.
      tracing: Samples inferences.
      forward: Takes parameters from headers; None takes none.
    """

    def __init__(
        self,
        *,
        router: Router,
        input_bytes_max: int,
        tracing: Tracing,
        forward: Forward | None = None,
    ) -> None:
        self._router = router
        self._input_bytes_max = input_bytes_max
        self._forward = forward
        self._tracing = tracing
        self._codec_threads = trio.CapacityLimiter(CODEC_THREADS_MAX)

    def mapping(self) -> Mapping[RouteName, HttpMethod]:
        """Return the calls; see `HttpApi.extend`."""
        return {
            RouteName.MODEL_GENERATE: self._generate,
            RouteName.MODEL_GENERATE_STREAM: self._generate_stream,
        }

    def _generate(self, request: HttpRequest, route: Route) -> Awaitable[Answer]:
        return self._only_response(request, route)

    def _generate_stream(self, request: HttpRequest, route: Route) -> Awaitable[Answer]:
        return self._all_responses(request, route)

    async def _only_response(self, request: HttpRequest, route: Route) -> Answer:
        try:
            version, reply = await self._submit(request, route)
        except RequestError as error:
            return refused(error)
        try:
            body = await self._encode(await _exactly_one(reply), reply)
            return HttpResponse(200, [JSON_CONTENT_TYPE, *_load_report(request, version)], body)
        except RequestError as error:
            return refused(error)
        finally:
            reply.close()

    async def _all_responses(self, request: HttpRequest, route: Route) -> Answer:
        """Begin a stream; its status is that of the first response, so that has to be there."""
        try:
            version, reply = await self._submit(request, route)
        except RequestError as error:
            return refused(error)
        stream = _EventStream(reply, self._encode)
        try:
            await stream.begin()
            stream.headers += _load_report(request, version)
        except BaseException:
            stream.close()
            raise
        return stream

    async def _submit(self, request: HttpRequest, route: Route) -> tuple[ModelVersion, Reply]:
        arrived_s = trio.current_time()
        version = self._router.table.find(route.model, route.version)
        try:
            check_coding(request.headers.get(b"content-encoding", b""))
            if len(request.body) < OFFLOAD_BYTES_MIN:
                infer = self._decode(request, route, version)
            else:
                infer = await trio.to_thread.run_sync(
                    self._decode, request, route, version, limiter=self._codec_threads
                )
                # It may have been replaced meanwhile, and take no more requests.
                version = self._router.table.find(route.model, route.version)
        except RequestError as error:
            count_refusal(version, error, arrived_s)
            raise
        if self._tracing.active:
            sample_request(self._tracing, request, infer)
        return version, submit(version, infer, arrived_s)

    def _decode(self, request: HttpRequest, route: Route, version: ModelVersion) -> InferRequest:
        infer = decode_generate(
            request.body,
            spec=version.spec,
            model_name=route.model,
            model_version=route.version,
            limit_bytes=self._input_bytes_max,
        )
        if self._forward is not None:
            infer.parameters |= self._forward(request)
        return infer

    async def _encode(self, response: InferResponse, reply: Reply) -> bytes:
        """Return a response as JSON, encoded on a thread if there is much of it."""
        if response.error is not None:
            raise response.error
        if not prints_much(response, reply.request):
            return encode_generate(response)
        return await trio.to_thread.run_sync(encode_generate, response, limiter=self._codec_threads)


def _load_report(request: HttpRequest, version: ModelVersion) -> list[tuple[bytes, bytes]]:
    return load_report(request.headers.get(FORMAT_HEADER, b""), version.statistics.llm)


async def _exactly_one(reply: Reply) -> InferResponse:
    """Wait until a request has had all its responses, which has to be one.

    Raises:
      RequestError: there is another number of them; a second one ends the request at once.
    """
    only: InferResponse | None = None
    while True:
        response = await reply.receive()
        if not response.empty:
            if only is not None:
                raise invalid_argument(
                    f"generate gives exactly one response, but model '{response.model_name}' gave "
                    "more; use generate_stream"
                )
            only = response
        if response.final:
            break
    if only is None:
        raise RequestError(
            ErrorCode.INTERNAL,
            f"generate gives exactly one response, but model '{response.model_name}' gave none; "
            "use generate_stream",
        )
    return only


@final
class _EventStream(HttpStream):
    """The responses of one request as server-sent events.

    The first decides the status, so it has to be there before the stream is begun.
    """

    def __init__(self, reply: Reply, encode: _Encode) -> None:
        super().__init__(200, [EVENT_STREAM])
        self._reply = reply
        self._encode = encode
        self._first: bytes | None = None
        self._ended = False

    async def begin(self) -> None:
        """Wait for the first response; without any the stream is empty."""
        self.status, self._first = await self._next()

    async def next_piece(self) -> bytes | None:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        _, piece = await self._next()
        return piece

    async def _next(self) -> tuple[int, bytes | None]:
        """Return the status and the event of the next response, or None behind the last."""
        while not self._ended:
            response = await self._reply.receive()
            self._ended = response.final
            if response.empty:
                continue
            try:
                return 200, server_sent_event(await self._encode(response, self._reply))
            except RequestError as error:
                return self._failed(error)
        return 200, None

    def _failed(self, error: RequestError) -> tuple[int, bytes]:
        self.reason = error.message
        failed = refused(error)
        assert isinstance(failed.body, bytes)
        return failed.status, server_sent_event(failed.body)

    def last_words(self, reason: str) -> bytes:
        return self._failed(RequestError(ErrorCode.UNAVAILABLE, reason))[1]

    def close(self) -> None:
        self._ended = True
        self._reply.close()
