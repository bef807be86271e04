"""What clients say when they load and unload models, and how the repository index is answered.

Source: the model repository extension as served by Triton. Where Triton takes a fault of the
client for one of its own, or passes it over, it is an INVALID_ARG here.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from .errors import ErrorCode, RequestError, invalid_argument
from .json_text import parse_object
from .pb.inference import ModelRepositoryParameter
from .tensors import Buffer
from .wording import quoted, shown

LoadParameters: TypeAlias = tuple[str | None, dict[str, bytes]]
"""The configuration as JSON text, or None; and path below the model's directory -> content."""

_CONFIG: Final = "config"
_FILE: Final = "file:"
_UNLOAD_DEPENDENTS: Final = "unload_dependents"
_KINDS: Final = ("bool_param", "int64_param", "string_param", "bytes_param")


def refuse_repository_name(name: str) -> None:
    """Raise UNSUPPORTED if a request names a repository."""
    if name:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            f"choosing a repository by name is not supported, got {quoted(name)}; leave it out",
        )


def parse_index_body(body: Buffer) -> bool:
    """Return whether only ready models are asked for.

    Raises:
      RequestError: INVALID_ARG; the body is not empty and says something else.
    """
    ready = _document(body).get("ready", False)
    if type(ready) is not bool:
        raise invalid_argument(f"member 'ready' must be a boolean, got {shown(ready)}")
    return ready


def parse_load_body(body: Buffer) -> LoadParameters:
    """Return what the body of a load request over HTTP says.

    Raises:
      RequestError: INVALID_ARG; names the parameter at fault.
    """
    parameters = _parameters(body)
    config = None
    files: list[tuple[str, bytes]] = []
    for key, value in parameters.items():
        if key == _CONFIG:
            config = _config_text(value)
        elif key.startswith(_FILE):
            files.append((key, _decoded(key, value)))
        else:
            raise _unknown_load_parameter(key)
    return config, _files_by_path(files)


def parse_load_message(parameters: Mapping[str, ModelRepositoryParameter]) -> LoadParameters:
    """Return what the parameters of a load request over gRPC say.

    Raises:
      RequestError: INVALID_ARG; names the parameter at fault.
    """
    config = None
    files: list[tuple[str, bytes]] = []
    for key, parameter in parameters.items():
        if key == _CONFIG:
            config = _choice(key, parameter, "string_param")
        elif key.startswith(_FILE):
            files.append((key, _choice(key, parameter, "bytes_param")))
        else:
            raise _unknown_load_parameter(key)
    return config, _files_by_path(files)


def parse_unload_body(body: Buffer) -> bool:
    """Return `unload_dependents` of an unload request over HTTP; other parameters mean nothing.

    Raises:
      RequestError: INVALID_ARG; it is no boolean, or the body is no request.
    """
    value = _parameters(body).get(_UNLOAD_DEPENDENTS, False)
    if type(value) is not bool:
        raise invalid_argument(
            f"parameter '{_UNLOAD_DEPENDENTS}' must be a boolean, got {shown(value)}"
        )
    return value


def parse_unload_message(parameters: Mapping[str, ModelRepositoryParameter]) -> bool:
    """Return `unload_dependents` of an unload request over gRPC; see `parse_unload_body`."""
    parameter = parameters.get(_UNLOAD_DEPENDENTS)
    value: bool = parameter is not None and _choice(_UNLOAD_DEPENDENTS, parameter, "bool_param")
    return value


def _document(body: Buffer) -> dict[str, Any]:
    return parse_object(bytes(body), "the request") if body else {}


def _parameters(body: Buffer) -> dict[str, Any]:
    parameters = _document(body).get("parameters", {})
    if type(parameters) is not dict:
        raise invalid_argument(f"member 'parameters' must be an object, got {shown(parameters)}")
    return parameters


def _config_text(value: object) -> str:
    if type(value) is str:
        return value
    hint = ""
    if type(value) is dict:
        hint = "; write the configuration as JSON text into a string, with its quotes escaped"
    raise invalid_argument(f"load parameter '{_CONFIG}' must be a string, got {shown(value)}{hint}")


def _decoded(key: str, value: object) -> bytes:
    """Return the content of a file, which travels as base64 (RFC 4648) without line ends."""
    if type(value) is not str:
        raise invalid_argument(
            f"load parameter {quoted(key)} must be a string in base64, got {shown(value)}"
        )
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError as fault:  # that of binascii, or text that is not ASCII
        raise invalid_argument(
            f"load parameter {quoted(key)} must be base64 without line ends, got "
            f"{len(value)} characters that are not: {str(fault).lower()}"
        ) from None


def _choice(key: str, parameter: ModelRepositoryParameter, kind: str) -> Any:
    value = getattr(parameter, kind)
    if value is None:
        given = [other for other in _KINDS if getattr(parameter, other) is not None]
        raise invalid_argument(
            f"parameter {quoted(key)} must be a {kind}, got {given[0] if given else 'no value'}"
        )
    return value


def _unknown_load_parameter(key: str) -> RequestError:
    return invalid_argument(
        f"a load request takes the parameters '{_CONFIG}' and '{_FILE}<version>/<path>', got "
        f"{quoted(key)}"
    )


def _files_by_path(files: list[tuple[str, bytes]]) -> dict[str, bytes]:
    by_path: dict[str, bytes] = {}
    for key, content in files:
        path = _path_of(key)
        if path in by_path:
            raise invalid_argument(f"load parameter {quoted(key)} is a file that came already")
        by_path[path] = content
    return by_path


def _path_of(key: str) -> str:
    """Return the path of a file below the model's directory, without detours."""
    text = key.removeprefix(_FILE)
    names: list[str] = []
    for name in text.split("/"):
        if name == "..":
            if not names:
                raise invalid_argument(
                    f"load parameter {quoted(key)} needs a path that stays inside of the model's "
                    "directory"
                )
            names.pop()
        elif name not in {"", "."}:
            names.append(name)
    if not names or text.endswith(("/", "/.", "/..")):
        raise invalid_argument(f"load parameter {quoted(key)} needs a path that ends in a file")
    return "/".join(names)
