"""What answers HTTP requests, as the connections see it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeAlias

from ..protocol.http_request import HttpRequest
from ..protocol.http_response import HttpResponse
from ..protocol.http_session import HttpFailure
from ..protocol.requests import InferRequest, InferResponse
from .http_stream import HttpStream
from .reply import Reply

Answer: TypeAlias = HttpResponse | Reply | HttpStream
"""A response, whole or piece by piece, or where the response of an inference will come: see
`HttpService.finish`."""


class HttpService(Protocol):
    """What answers requests; see `HttpApi`."""

    def admit(self, request: HttpRequest) -> HttpFailure | None:
        """Look at a complete head before its body is received; may refuse the request."""

    def start(self, request: HttpRequest) -> Answer | Awaitable[Answer]:
        """Begin to answer a request, without waiting."""

    def finish(
        self, request: InferRequest, response: InferResponse
    ) -> HttpResponse | Awaitable[HttpResponse]:
        """Return the HTTP response to an inference that `start` submitted.

        An awaitable, to be awaited or closed, if encoding it is work for a thread.
        """
