"""Calls that need a key: which kind of call each is, and whether a client has shown the key.

A group `<api>[,<api>...]:<key>=<value>` restricts kinds of calls to clients that send the header
<key> with that value. Over gRPC the metadata key is `triton-grpc-protocol-<key>`.
Source: `--http-restricted-api` and `--grpc-restricted-protocol` of Triton.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hmac import compare_digest
from typing import Final, final

from .errors import RequestError, invalid_argument
from .http_request import HttpRequest
from .http_routes import RouteName, find
from .wording import quoted

GRPC_KEY_PREFIX: Final = "triton-grpc-protocol-"

DROPPED_BODY_BYTES_MAX: Final = 64 * 1024
"""Bodies up to this size are received of HTTP clients without the key, and dropped, so that the
connection serves their next request; larger ones, and those of unknown size, end it."""

HTTP_APIS: Final[Mapping[RouteName, str]] = {
    RouteName.SERVER_LIVE: "health",
    RouteName.SERVER_READY: "health",
    RouteName.MODEL_READY: "health",
    RouteName.SERVER_METADATA: "metadata",
    RouteName.MODEL_METADATA: "metadata",
    RouteName.MODEL_CONFIG: "model-config",
    RouteName.MODEL_STATISTICS: "statistics",
    RouteName.MODEL_BATCHING: "statistics",
    RouteName.MODEL_INFER: "inference",
    RouteName.MODEL_GENERATE: "inference",
    RouteName.MODEL_GENERATE_STREAM: "inference",
    RouteName.REPOSITORY_INDEX: "model-repository",
    RouteName.MODEL_LOAD: "model-repository",
    RouteName.MODEL_UNLOAD: "model-repository",
    RouteName.SYSTEM_MEMORY_STATUS: "shared-memory",
    RouteName.SYSTEM_MEMORY_REGISTER: "shared-memory",
    RouteName.SYSTEM_MEMORY_UNREGISTER: "shared-memory",
    RouteName.CUDA_MEMORY_STATUS: "shared-memory",
    RouteName.CUDA_MEMORY_REGISTER: "shared-memory",
    RouteName.CUDA_MEMORY_UNREGISTER: "shared-memory",
    RouteName.TRACE_SETTING: "trace",
    RouteName.LOGGING: "logging",
    RouteName.OPENAI_CHAT: "inference",
    RouteName.OPENAI_COMPLETIONS: "inference",
    RouteName.OPENAI_EMBEDDINGS: "inference",
    RouteName.OPENAI_MODELS: "metadata",
    RouteName.OPENAI_MODEL: "metadata",
}
"""Which API each HTTP route belongs to."""

_METHODS: Final = {
    "health": ("ServerLive", "ServerReady", "ModelReady"),
    "metadata": ("ServerMetadata", "ModelMetadata"),
    "model-config": ("ModelConfig",),
    "statistics": ("ModelStatistics",),
    "inference": ("ModelInfer", "ModelStreamInfer"),
    "model-repository": ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    "shared-memory": tuple(
        f"{kind}SharedMemory{action}"
        for kind in ("System", "Cuda")
        for action in ("Status", "Register", "Unregister")
    ),
    "trace": ("TraceSetting",),
    "logging": ("LogSettings",),
}

GRPC_APIS: Final[Mapping[str, str]] = {
    f"/inference.GRPCInferenceService/{method}": api
    for api, methods in _METHODS.items()
    for method in methods
} | {
    "/grpc.health.v1.Health/Check": "health",
    # It says what the server offers, as the metadata do.
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": "metadata",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": "metadata",
}
"""Which API each gRPC method belongs to."""

API_NAMES: Final = tuple(_METHODS)

_HTTP_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_GRPC_NAME = re.compile(r"[0-9a-z_.-]+")


@final
class _Key:
    """What a client must send.

    Attributes:
      name: Of the header or the metadata, in lower case.
      value: What it must be, as bytes.
    """

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: bytes) -> None:
        self.name = name
        self.value = value


def _parse(groups: Iterable[str], *, grpc: bool) -> dict[str, _Key]:
    """Return the key of each restricted API."""
    option = "--grpc-restricted-protocol" if grpc else "--http-restricted-api"
    keys: dict[str, _Key] = {}
    for group in groups:
        apis, colon, pair = group.partition(":")
        name, equals, value = pair.partition("=")
        name = (GRPC_KEY_PREFIX * grpc + name.strip()).lower()
        if not (colon and equals and value):
            raise invalid_argument(
                f"{option} must be <api>[,<api>...]:<key>=<value>, got something else for "
                f"{quoted(apis)}"  # not what follows, which may be the secret
            )
        pattern = _GRPC_NAME if grpc else _HTTP_NAME
        if name == GRPC_KEY_PREFIX or not pattern.fullmatch(name) or name.endswith("-bin"):
            raise invalid_argument(
                f"{option} needs a key that is the name of a header of text, got {quoted(name)}"
            )
        key = _Key(name, value.encode(errors="surrogateescape"))
        for api in apis.split(","):
            api = api.strip()  # noqa: PLW2901 - blanks around a comma say nothing
            if api not in API_NAMES:
                raise invalid_argument(
                    f"{option} names the API {quoted(api)}, expected one of {', '.join(API_NAMES)}"
                )
            if api in keys:
                raise invalid_argument(
                    f"{option} names the API '{api}' more than once, and it can have one key only"
                )
            keys[api] = key
    return keys


def _shows(given: Sequence[bytes], key: _Key) -> bool:
    """Whether a client has sent the key: each of its values must be right.

    Which of several values counts differs from one proxy to the next, so none may be wrong. The
    time a comparison takes does not say how much of a value is right.
    """
    right = bool(given)
    for value in given:
        right &= compare_digest(value, key.value)
    return right


@final
class RestrictedRoutes:
    """The HTTP calls that need a key.

    Args:
      groups: The groups, as on the command line.

    Raises:
      RequestError: INVALID_ARG; a group is malformed, or an API is unknown or in several.
    """

    def __init__(self, groups: Iterable[str]) -> None:
        keys = _parse(groups, grpc=False)
        self._keys = {
            route: (key, key.name.encode())
            for route, api in HTTP_APIS.items()
            if (key := keys.get(api)) is not None
        }

    def restricts(self, route: RouteName) -> bool:
        """Return whether a call needs a key."""
        return route in self._keys

    def refusal(self, request: HttpRequest) -> str | None:
        """Return why a request is refused, or None; its verb and its body do not matter."""
        try:
            route = find(request.path)
        except RequestError:
            return None  # it means no call, as the client will be told
        found = None if route is None else self._keys.get(route.name)
        if route is None or found is None:
            return None
        key, key_name = found
        given = [value for name, value in request.raw_headers if name.lower() == key_name]
        if _shows(given, key):
            return None
        what = route.name.value
        return f"calls for {what} are restricted: they need the right header '{key.name}'"

    def refusal_of_body(self, request: HttpRequest) -> str | None:
        """Return why a request is refused before its body is sent, or None to receive it."""
        size = request.content_length
        if size is None:
            announced = b"transfer-encoding" in request.headers
        else:
            announced = size > DROPPED_BODY_BYTES_MAX
        return self.refusal(request) if announced else None


@final
class RestrictedMethods:
    """The gRPC calls that need a key.

    Args:
      groups: The groups, as on the command line.

    Raises:
      RequestError: INVALID_ARG; a group is malformed, or an API is unknown or in several.
    """

    def __init__(self, groups: Iterable[str]) -> None:
        keys = _parse(groups, grpc=True)
        self._keys = {
            path: key for path, api in GRPC_APIS.items() if (key := keys.get(api)) is not None
        }

    def refusal(self, path: str, metadata: Mapping[str, Sequence[str | bytes]]) -> str | None:
        """Return why a call is refused, or None.

        Args:
          path: "/package.Service/Method".
          metadata: The client's, by lower-case key.
        """
        key = self._keys.get(path)
        if key is None:
            return None
        given = [
            value.encode(errors="surrogateescape") if isinstance(value, str) else value
            for value in metadata.get(key.name, ())
        ]
        if _shows(given, key):
            return None
        method = path.rpartition("/")[2]
        return f"calls of {method} are restricted: they need the right metadata '{key.name}'"


def restricted_routes(groups: Sequence[str]) -> RestrictedRoutes | None:
    """Return the HTTP calls that need a key, or None where none does."""
    return RestrictedRoutes(groups) if groups else None


def restricted_methods(groups: Sequence[str]) -> RestrictedMethods | None:
    """Return the gRPC calls that need a key, or None where none does."""
    return RestrictedMethods(groups) if groups else None
