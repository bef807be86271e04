"""The repository extension over HTTP: the index, and loading and unloading of models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar, final

import trio

from ..protocol import repository_control
from ..protocol.errors import RequestError, invalid_argument
from ..protocol.http_request import HttpRequest
from ..protocol.http_response import JSON_CONTENT_TYPE, HttpResponse
from ..protocol.http_routes import Route, RouteName
from ..protocol.management_codec import repository_index
from ..protocol.tensors import Buffer
from .http_api import CODEC_THREADS_MAX, OFFLOAD_BYTES_MIN, HttpMethod, refused
from .model_control import LoadOverride, ModelControl
from .repository_index import RepositoryIndex

T = TypeVar("T")


@final
class HttpRepository:
    """Answers the calls of the extension; holds no state of its own but its bounds.

    A load goes on when its client leaves: see `ModelControl`.

    Args:
      index: What models there are.
      control: Loads and unloads them.
      input_bytes_max: Most bytes of a body.
    """

    def __init__(
        self, *, index: RepositoryIndex, control: ModelControl, input_bytes_max: int
    ) -> None:
        self._entries = index.entries
        self._control = control
        self._input_bytes_max = input_bytes_max
        self._threads = trio.CapacityLimiter(CODEC_THREADS_MAX)

    def mapping(self) -> Mapping[RouteName, HttpMethod]:
        """Return what `HttpApi.extend` takes."""
        return {
            RouteName.REPOSITORY_INDEX: self._index,
            RouteName.MODEL_LOAD: self._load,
            RouteName.MODEL_UNLOAD: self._unload,
        }

    def _index(self, request: HttpRequest, _: Route) -> Awaitable[HttpResponse]:
        self._check_size(request)
        return self._answer_index(ready_only=repository_control.parse_index_body(request.body))

    async def _answer_index(self, *, ready_only: bool) -> HttpResponse:
        body = repository_index(await self._entries(ready_only=ready_only))
        return HttpResponse(200, [JSON_CONTENT_TYPE], body)

    def _load(self, request: HttpRequest, route: Route) -> Awaitable[HttpResponse]:
        repository_control.refuse_repository_name(route.repository)
        self._check_size(request)
        return self._answer_load(route.model, request.body)

    async def _answer_load(self, name: str, body: Buffer) -> HttpResponse:
        try:
            override = LoadOverride(*await self._parsed(repository_control.parse_load_body, body))
            await self._control.load(name, override)
        except RequestError as error:
            return refused(error)
        return HttpResponse(200)

    def _unload(self, request: HttpRequest, route: Route) -> Awaitable[HttpResponse]:
        repository_control.refuse_repository_name(route.repository)
        self._check_size(request)
        return self._answer_unload(route.model, request.body)

    async def _answer_unload(self, name: str, body: Buffer) -> HttpResponse:
        try:
            unload_dependents = await self._parsed(repository_control.parse_unload_body, body)
            await self._control.unload(name, unload_dependents=unload_dependents)
        except RequestError as error:
            return refused(error)
        return HttpResponse(200)

    def _check_size(self, request: HttpRequest) -> None:
        """Refuse a body that came in chunks or behind a header length, which `admit` lets in."""
        if len(request.body) > self._input_bytes_max:
            raise invalid_argument(
                f"a request to the repository may have {self._input_bytes_max} bytes "
                f"(--http-max-input-size), got {len(request.body)}"
            )

    async def _parsed(self, parse: Callable[[Buffer], T], body: Buffer) -> T:
        if len(body) < OFFLOAD_BYTES_MIN:
            return parse(body)
        return await trio.to_thread.run_sync(parse, body, limiter=self._threads)
