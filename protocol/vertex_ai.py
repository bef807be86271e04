"""What requests to the Vertex AI endpoint mean, as calls of the v2 protocol.  Pure.

There are two routes, which the platform names: one for health, one for predictions. A header on the
latter redirects a request to another call, since the platform lets nothing else through.
Source: the Vertex AI endpoint of Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from .cloud_calls import BinaryType, V2Call, model_path
from .errors import RequestError
from .http_request import HttpRequest
from .http_routes import RouteName, find

REDIRECT: Final = b"x-vertex-ai-triton-redirect"
BINARY: Final = BinaryType("vertex-ai")

_REDIRECTED: Final = frozenset(
    {
        RouteName.SERVER_METADATA,
        RouteName.SERVER_LIVE,
        RouteName.SERVER_READY,
        RouteName.MODEL_READY,
        RouteName.MODEL_METADATA,
        RouteName.MODEL_CONFIG,
        RouteName.MODEL_STATISTICS,
        RouteName.MODEL_INFER,
        RouteName.REPOSITORY_INDEX,
        RouteName.SYSTEM_MEMORY_STATUS,
        RouteName.CUDA_MEMORY_STATUS,
        RouteName.TRACE_SETTING,
        RouteName.LOGGING,
    }
)
_FORBIDDEN: Final = frozenset(
    {
        RouteName.MODEL_LOAD,
        RouteName.MODEL_UNLOAD,
        RouteName.SYSTEM_MEMORY_REGISTER,
        RouteName.SYSTEM_MEMORY_UNREGISTER,
        RouteName.CUDA_MEMORY_REGISTER,
        RouteName.CUDA_MEMORY_UNREGISTER,
    }
)


class VertexAiFault(Enum):
    """Why a request means no call."""

    NO_ROUTE = "the path is neither route"
    NO_REDIRECT = "nothing can be redirected there"
    FORBIDDEN = "it is redirected to what changes the server"
    METHOD_NOT_ALLOWED = "the route takes another method"


METRICS: Final = V2Call(b"GET", b"")
"""The metrics, which have a port of their own in place of a path."""


@dataclass(frozen=True, slots=True)
class VertexAiRoutes:
    """The routes of one server, and the model that predictions are for.

    Attributes:
      predict: The path of predictions, percent-encoded.
      health: The path of health checks, likewise.
      model: The model's name.
    """

    predict: bytes
    health: bytes
    model: str

    def call(self, request: HttpRequest) -> V2Call | VertexAiFault:
        """Return the call that a request means, or why it means none."""
        method, path = request.method, request.path
        if path == self.health:
            if method != b"GET":
                return VertexAiFault.METHOD_NOT_ALLOWED
            return V2Call(b"GET", b"/v2/health/ready")
        if path != self.predict:
            return VertexAiFault.NO_ROUTE
        if method != b"POST":
            return VertexAiFault.METHOD_NOT_ALLOWED
        redirect = request.headers.get(REDIRECT)
        if redirect is None:
            return V2Call(b"POST", model_path(self.model, "infer"))
        return _redirected(redirect, request)


def _redirected(value: bytes, request: HttpRequest) -> V2Call | VertexAiFault:
    """Return the call that a redirection means: a path without the slash before it."""
    if value == b"metrics":
        return METRICS
    path = b"/" + value
    try:
        route = find(path)
    except RequestError:
        return VertexAiFault.NO_REDIRECT
    if route is not None and route.name in _FORBIDDEN:
        return VertexAiFault.FORBIDDEN
    if route is None or route.name not in _REDIRECTED or b"?" in value:
        return VertexAiFault.NO_REDIRECT
    # The platform sends everything as a POST: settings are read with an empty one.
    reads = b"GET" in route.methods and not (b"POST" in route.methods and request.body)
    return V2Call(b"GET" if reads else b"POST", path)
