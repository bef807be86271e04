"""The shared memory calls over HTTP: register, unregister and status of regions.

Semantics: the system and CUDA shared memory extensions as served by Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias, final

from ..memory.shared_memory import SharedMemoryRegions
from ..protocol.errors import invalid_argument
from ..protocol.http_request import HttpRequest
from ..protocol.http_response import JSON_CONTENT_TYPE, HttpResponse
from ..protocol.http_routes import Route, RouteName
from ..protocol.shared_memory_codec import (
    parse_cuda_registration,
    parse_system_registration,
    system_status,
)
from .http_api import HttpMethod
from .region_access import require_regions

_Call: TypeAlias = Callable[[SharedMemoryRegions, HttpRequest, Route], HttpResponse]


@final
class HttpSharedMemory:
    """Answers the shared memory calls.

    Args:
      regions: The registered regions; None for a server without, which says so to every call.
    """

    def __init__(self, regions: SharedMemoryRegions | None) -> None:
        self._regions = regions

    def mapping(self) -> dict[RouteName, HttpMethod]:
        """Return the methods for `HttpApi.extend`."""
        calls: dict[RouteName, _Call] = {
            RouteName.SYSTEM_MEMORY_STATUS: _system_status,
            RouteName.SYSTEM_MEMORY_REGISTER: _system_register,
            RouteName.SYSTEM_MEMORY_UNREGISTER: _system_unregister,
            RouteName.CUDA_MEMORY_STATUS: _cuda_status,
            RouteName.CUDA_MEMORY_REGISTER: _cuda_register,
            RouteName.CUDA_MEMORY_UNREGISTER: _cuda_unregister,
        }
        return {name: partial(self._answer, call) for name, call in calls.items()}

    def _answer(self, call: _Call, request: HttpRequest, route: Route) -> HttpResponse:
        return call(require_regions(self._regions), request, route)


def _system_status(regions: SharedMemoryRegions, _: HttpRequest, route: Route) -> HttpResponse:
    return _json(system_status(regions.system_regions(route.region)))


def _system_register(
    regions: SharedMemoryRegions, request: HttpRequest, route: Route
) -> HttpResponse:
    regions.require_allowed()
    name = _name(route, "register")
    regions.register_system(name, *parse_system_registration(bytes(request.body)))
    return HttpResponse(200)


def _system_unregister(regions: SharedMemoryRegions, _: HttpRequest, route: Route) -> HttpResponse:
    regions.unregister_system(route.region)
    return HttpResponse(200)


def _cuda_status(regions: SharedMemoryRegions, _: HttpRequest, route: Route) -> HttpResponse:
    regions.check_cuda_region(route.region)
    return _json(b"[]")


def _cuda_register(
    regions: SharedMemoryRegions, request: HttpRequest, route: Route
) -> HttpResponse:
    regions.require_allowed()
    name = _name(route, "register")
    regions.register_cuda(name, parse_cuda_registration(bytes(request.body)))
    return HttpResponse(200)


def _cuda_unregister(regions: SharedMemoryRegions, _: HttpRequest, __: Route) -> HttpResponse:
    regions.unregister_cuda()
    return HttpResponse(200)


def _name(route: Route, call: str) -> str:
    if not route.region:
        raise invalid_argument(
            f"the path lacks the name of the shared memory region: expected .../region/NAME/{call}"
        )
    return route.region


def _json(body: bytes) -> HttpResponse:
    return HttpResponse(200, [JSON_CONTENT_TYPE], body)
