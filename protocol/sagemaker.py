"""What requests to the SageMaker endpoint mean, and what they are answered with.  Pure.

`/ping` and `/invocations` serve one model; `/models` serves many, each loaded on request from a
directory that the platform has unpacked. Source: the SageMaker endpoint of Triton.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import quote

import orjson

from .cloud_calls import BinaryType, V2Call, model_path
from .errors import invalid_argument
from .http_routes import RouteFault, decode_name
from .tensors import Buffer
from .wording import quoted, shown

BINARY: Final = BinaryType("sagemaker")
TARGET_MODEL: Final = b"x-amzn-sagemaker-target-model"

PING_MODES: Final = ("ready", "live")
INFERENCE_TYPES: Final = ("infer", "generate", "generate_stream")
FORBIDDEN_PLACES: Final = ("/dev", "/proc", "/sys")
"""Where no repository may lie: what is there is no data."""

_OUT_OF_MEMORY = re.compile(
    r"out[ _]of[ _]memory|failed to allocate|MemoryError|no space left on device"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_NOT_INITIALIZED",
    re.IGNORECASE,
)


class SagemakerName(Enum):
    """The calls."""

    PING = "ping"
    INVOCATIONS = "invocations"
    LIST = "list"
    LOAD = "load"
    GET = "get"
    UNLOAD = "unload"
    INVOKE = "invoke"


@dataclass(frozen=True, slots=True)
class SagemakerCall:
    """One call, as its path says it; `model` is "" where the path names none."""

    name: SagemakerName
    model: str = ""


@dataclass(frozen=True, slots=True)
class SagemakerSettings:
    """What the platform tells the server.

    Attributes:
      default_model: The model that `/invocations` is for; "" if nobody said it.
      inference_type: What `/invocations` is, of `INFERENCE_TYPES`.
      ping_mode: What `/ping` asks, of `PING_MODES`.
    """

    default_model: str = ""
    inference_type: str = "infer"
    ping_mode: str = "ready"

    def v2_call(self, call: SagemakerCall, target: bytes = b"") -> V2Call:
        """Return the call of the v2 protocol that does the same.

        Args:
          call: The call.
          target: The value of the header `TARGET_MODEL`: the model of an invocation, where that is
            not the one in the path, but a step of it.
        """
        match call.name:
            case SagemakerName.PING:
                return V2Call(b"GET", b"/v2/health/" + self.ping_mode.encode())
            case SagemakerName.INVOCATIONS:
                return V2Call(b"POST", model_path(self.default_model, self.inference_type))
            case SagemakerName.INVOKE:
                model = target.decode("utf-8", "replace") or call.model
                return V2Call(b"POST", model_path(model, "infer"))
            case SagemakerName.LOAD | SagemakerName.UNLOAD:
                # A request to load has the name in its body, which does not matter for its kind.
                name = quote(call.model or "-", safe="").encode()
                path = b"/v2/repository/models/%b/%b" % (name, call.name.value.encode())
                return V2Call(b"POST", path)
            case SagemakerName.LIST | SagemakerName.GET:
                return V2Call(b"POST", b"/v2/repository/index")


_ROUTES: Final = tuple(
    (re.compile(pattern), methods)
    for pattern, methods in (
        (rb"/ping", {b"GET": SagemakerName.PING}),
        (rb"/invocations", {b"POST": SagemakerName.INVOCATIONS}),
        (rb"/models/?", {b"GET": SagemakerName.LIST, b"POST": SagemakerName.LOAD}),
        (
            rb"/models/(?P<model>[^/]+)",
            {b"GET": SagemakerName.GET, b"DELETE": SagemakerName.UNLOAD},
        ),
        (rb"/models/(?P<model>[^/]+)/invoke", {b"POST": SagemakerName.INVOKE}),
    )
)


def match(method: bytes, path: bytes) -> SagemakerCall | RouteFault:
    """Return the call, or why there is none.

    Args:
      method: In upper case.
      path: Percent-encoded, without a query.

    Raises:
      RequestError: INVALID_ARG; the name of the model is not valid UTF-8 or has a bad escape.
    """
    for pattern, methods in _ROUTES:
        found = pattern.fullmatch(path)
        if found is not None:
            name = methods.get(method)
            if name is None:
                return RouteFault.METHOD_NOT_ALLOWED
            return SagemakerCall(name, decode_name(found.groupdict().get("model"), "model"))
    return RouteFault.NOT_FOUND


def parse_load_body(body: Buffer) -> tuple[str, str]:
    """Return the name of the model and the directory that a request to load names.

    Raises:
      RequestError: INVALID_ARG; it is no JSON object with both as text, or the directory is none
        that a model may come from.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid_argument(f"expected a JSON object with model_name and url: {error}") from None
    if not isinstance(document, dict):
        raise invalid_argument(
            f"expected a JSON object with model_name and url, got {shown(document)}"
        )
    name, url = document.get("model_name"), document.get("url")
    for key, value in (("model_name", name), ("url", url)):
        if not isinstance(value, str) or not value:
            raise invalid_argument(
                f"expected {key} to be text that is not empty, got {shown(value)}"
            )
    assert isinstance(name, str)
    assert isinstance(url, str)
    check_place(url, url)
    return name, url


def check_place(path: str, url: str) -> None:
    """Check that a path may be a repository's.

    Args:
      path: As given, or with every link followed.
      url: As given, for the message.

    Raises:
      RequestError: INVALID_ARG; it is relative, climbs, or lies where the system's own files do.
    """
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise invalid_argument(
            f"expected url to be an absolute path without '..', got {quoted(url)}"
        )
    if path.lstrip("/").split("/")[0] in {place.lstrip("/") for place in FORBIDDEN_PLACES}:
        raise invalid_argument(
            f"expected url to lie outside {', '.join(FORBIDDEN_PLACES)}, got {quoted(url)}"
        )


def model_body(name: str, url: str) -> bytes:
    """Return the JSON text about one model."""
    return orjson.dumps({"modelName": name, "modelUrl": url})


def models_body(models: Mapping[str, str]) -> bytes:
    """Return the JSON text about all models; name -> directory."""
    listed = [{"modelName": name, "modelUrl": url} for name, url in models.items()]
    return orjson.dumps({"models": listed})


def failure_status(message: str) -> int:
    """Return the status of a load or an inference that failed: 507 where memory ran out."""
    return 507 if _OUT_OF_MEMORY.search(message) else 400
