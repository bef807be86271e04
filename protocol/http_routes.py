"""Which call a method and a path mean.

Paths are matched as they came; names in them are percent-decoded afterwards, each once, so that
an encoded slash is part of a name. Matches are kept by path, so a repeated one is one look-up.
Source: the KServe v2 REST paths and their extensions as served by Triton, and the paths of
OpenAI's API.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum
from typing import Final, final
from urllib.parse import unquote_to_bytes

from .errors import RequestError, invalid_argument
from .wording import quoted

CACHED_PATHS_MAX: Final = 1024
"""Kept paths; a server has a few calls for each of its models."""
CACHED_PATH_BYTES_MAX: Final = 1024
"""Longer paths are matched each time; with the one above this bounds the cache to 2 MiB."""
VERSION_MAX: Final = 2**63 - 1
"""The highest version number."""

_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class RouteName(Enum):
    """The calls."""

    SERVER_METADATA = "server metadata"
    SERVER_LIVE = "server live"
    SERVER_READY = "server ready"
    MODEL_READY = "model ready"
    MODEL_METADATA = "model metadata"
    MODEL_CONFIG = "model config"
    MODEL_STATISTICS = "model statistics"
    MODEL_BATCHING = "model batching"
    MODEL_INFER = "model infer"
    MODEL_GENERATE = "model generate"
    MODEL_GENERATE_STREAM = "model generate stream"
    REPOSITORY_INDEX = "repository index"
    MODEL_LOAD = "model load"
    MODEL_UNLOAD = "model unload"
    SYSTEM_MEMORY_STATUS = "system shared memory status"
    SYSTEM_MEMORY_REGISTER = "system shared memory register"
    SYSTEM_MEMORY_UNREGISTER = "system shared memory unregister"
    CUDA_MEMORY_STATUS = "CUDA shared memory status"
    CUDA_MEMORY_REGISTER = "CUDA shared memory register"
    CUDA_MEMORY_UNREGISTER = "CUDA shared memory unregister"
    TRACE_SETTING = "trace setting"
    LOGGING = "logging"
    OPENAI_CHAT = "chat completions"
    OPENAI_COMPLETIONS = "completions"
    OPENAI_EMBEDDINGS = "embeddings"
    OPENAI_MODELS = "models"
    OPENAI_MODEL = "model"


class RouteFault(Enum):
    """Why a request means no call; the value is the status it is answered with."""

    NOT_FOUND = 404
    METHOD_NOT_ALLOWED = 405


_MODEL = rb"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_REPOSITORY = rb"/v2/repository(?:/(?P<repository>[^/]+))?"
_SYSTEM_MEMORY = rb"/v2/systemsharedmemory(?:/region/(?P<region>[^/]+))?"
_CUDA_MEMORY = rb"/v2/cudasharedmemory(?:/region/(?P<region>[^/]+))?"
_ROUTES: Final = tuple(
    (re.compile(pattern), methods.split(), name)
    for pattern, methods, name in (
        (rb"/v2", b"GET", RouteName.SERVER_METADATA),
        (rb"/v2/health/live", b"GET", RouteName.SERVER_LIVE),
        (rb"/v2/health/ready", b"GET", RouteName.SERVER_READY),
        (rb"/v2/logging", b"GET POST", RouteName.LOGGING),
        (rb"/v2/trace/setting", b"GET POST", RouteName.TRACE_SETTING),
        (rb"/v2/models/(?P<model>[^/]+)/trace/setting", b"GET POST", RouteName.TRACE_SETTING),
        (rb"/v2/models/stats", b"GET", RouteName.MODEL_STATISTICS),
        (_MODEL, b"GET", RouteName.MODEL_METADATA),
        (_MODEL + rb"/infer", b"POST", RouteName.MODEL_INFER),
        (_MODEL + rb"/generate", b"POST", RouteName.MODEL_GENERATE),
        (_MODEL + rb"/generate_stream", b"POST", RouteName.MODEL_GENERATE_STREAM),
        (_MODEL + rb"/ready", b"GET", RouteName.MODEL_READY),
        (_MODEL + rb"/config", b"GET", RouteName.MODEL_CONFIG),
        (_MODEL + rb"/stats", b"GET", RouteName.MODEL_STATISTICS),
        (_MODEL + rb"/batching", b"GET", RouteName.MODEL_BATCHING),  # ours
        (_REPOSITORY + rb"/index", b"POST", RouteName.REPOSITORY_INDEX),
        (_REPOSITORY + rb"/models/(?P<model>[^/]+)/load", b"POST", RouteName.MODEL_LOAD),
        (_REPOSITORY + rb"/models/(?P<model>[^/]+)/unload", b"POST", RouteName.MODEL_UNLOAD),
        (_SYSTEM_MEMORY + rb"/status", b"GET", RouteName.SYSTEM_MEMORY_STATUS),
        (_SYSTEM_MEMORY + rb"/register", b"POST", RouteName.SYSTEM_MEMORY_REGISTER),
        (_SYSTEM_MEMORY + rb"/unregister", b"POST", RouteName.SYSTEM_MEMORY_UNREGISTER),
        (_CUDA_MEMORY + rb"/status", b"GET", RouteName.CUDA_MEMORY_STATUS),
        (_CUDA_MEMORY + rb"/register", b"POST", RouteName.CUDA_MEMORY_REGISTER),
        (_CUDA_MEMORY + rb"/unregister", b"POST", RouteName.CUDA_MEMORY_UNREGISTER),
        (rb"/v1/chat/completions", b"POST", RouteName.OPENAI_CHAT),
        (rb"/v1/completions", b"POST", RouteName.OPENAI_COMPLETIONS),
        (rb"/v1/embeddings", b"POST", RouteName.OPENAI_EMBEDDINGS),
        (rb"/v1/models", b"GET", RouteName.OPENAI_MODELS),
        (rb"/v1/models/(?P<model>[^/]+)", b"GET", RouteName.OPENAI_MODEL),
    )
)


@final
class Route:
    """One call, as its path says it.

    Attributes:
      name: Which call.
      methods: The methods it takes.
      model: The model's name; "" where the path names none, which means all.
      region: The name of the shared memory region; "" where the path names none.
      version: Decimal text without leading zeros; "" for the latest.
      repository: The repository's name; "" where the path names none.
    """

    __slots__ = ("methods", "model", "name", "region", "repository", "version")

    def __init__(
        self,
        name: RouteName,
        methods: Collection[bytes],
        *,
        model: str = "",
        region: str = "",
        version: str = "",
        repository: str = "",
    ) -> None:
        self.name = name
        self.methods = methods
        self.model = model
        self.region = region
        self.version = version
        self.repository = repository


_routes: dict[bytes, Route] = {}


def match(method: bytes, path: bytes) -> Route | RouteFault:
    """Return the call, or why there is none.

    Args:
      method: In upper case.
      path: The path of the request target, percent-encoded; a query is ignored.

    Raises:
      RequestError: INVALID_ARG; a name is not valid UTF-8 or has a bad escape, or the version is
        not a positive integer.
    """
    route = _routes.get(path) or _find(path)
    if route is None:
        return RouteFault.NOT_FOUND
    if method not in route.methods:
        return RouteFault.METHOD_NOT_ALLOWED
    return route


def find(path: bytes) -> Route | None:
    """Return the call that a path means with the right method, or None; faults as `match`."""
    return _routes.get(path) or _find(path)


def _find(path: bytes) -> Route | None:
    bare = path.partition(b"?")[0]
    for pattern, methods, name in _ROUTES:
        found = pattern.fullmatch(bare)
        if found is None:
            continue
        groups = found.groupdict()
        route = Route(
            name,
            methods,
            model=decode_name(groups.get("model"), "model"),
            version=_version(decode_name(groups.get("version"), "version")),
            region=decode_name(groups.get("region"), "region"),
            repository=decode_name(groups.get("repository"), "repository"),
        )
        if len(path) <= CACHED_PATH_BYTES_MAX:
            if len(_routes) >= CACHED_PATHS_MAX:
                _routes.clear()
            _routes[path] = route
        return route
    return None


def decode_name(segment: bytes | None, what: str) -> str:
    """Undo the percent-encoding of one path segment, strictly; "" for None.

    Raises:
      RequestError: INVALID_ARG; it is not valid UTF-8 or has a bad escape.
    """
    if segment is None:
        return ""
    if b"%" in segment and _ESCAPE.search(segment):
        raise _bad_name(segment, what, "two hexadecimal digits behind each '%'")
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise _bad_name(segment, what, "UTF-8") from None


def _bad_name(segment: bytes, what: str, expected: str) -> RequestError:
    return invalid_argument(
        f"the {what} name in the path needs {expected}, got {quoted(segment.decode('latin-1'))}"
    )


def _version(text: str) -> str:
    if not text:
        return ""
    digits = text.lstrip("0") or "0"
    if (
        not (text.isascii() and text.isdigit())
        or len(digits) > len(str(VERSION_MAX))
        or int(digits) > VERSION_MAX
    ):
        raise invalid_argument(
            f"the version in the path must be an integer > 0 and at most {VERSION_MAX}, got "
            f"{quoted(text)}"
        )
    return digits
