"""JSON bodies of the shared memory calls.

Source: the system and CUDA shared memory extensions as served by Triton.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import orjson

from .errors import invalid_argument
from .json_text import dump_json, parse_object
from .wording import shown

_INT32_MAX = 2**31 - 1
_UINT64_MAX = 2**64 - 1
_REQUEST = "the shared memory register request"


class RegionEntry(Protocol):
    """One registered system region."""

    @property
    def name(self) -> str:
        """The region's name."""

    @property
    def key(self) -> str:
        """The name of its object."""

    @property
    def offset(self) -> int:
        """Where in the object it starts, in bytes."""

    @property
    def byte_size(self) -> int:
        """Its size in bytes."""


class SystemRegistration(NamedTuple):
    """What is to be registered: see `SharedMemoryRegions.register_system`."""

    key: str
    offset: int
    byte_size: int


def parse_system_registration(body: bytes) -> SystemRegistration:
    """Return what the body of a register call says.

    Raises:
      RequestError: INVALID_ARG; names the member at fault.
    """
    document = parse_object(body, _REQUEST)
    key = _member(document, "key")
    if type(key) is not str:
        raise invalid_argument(f"member 'key' of {_REQUEST} must be a string, got {shown(key)}")
    offset = _integer(document, "offset", _UINT64_MAX) if "offset" in document else 0
    return SystemRegistration(key, offset, _integer(document, "byte_size", _UINT64_MAX))


def parse_cuda_registration(body: bytes) -> bytes:
    """Return the handle in the body of a register call, the rest of which is only checked.

    Raises:
      RequestError: INVALID_ARG; names the member at fault.
    """
    document = parse_object(body, _REQUEST)
    handle = _member(document, "raw_handle")
    text = handle.get("b64") if type(handle) is dict else None
    if type(text) is not str:
        raise invalid_argument(
            f"member 'raw_handle' of {_REQUEST} must be an object with a CUDA IPC handle in base64 "
            f"as its member 'b64', got {shown(handle)}"
        )
    _integer(document, "byte_size", _UINT64_MAX)
    _integer(document, "device_id", _INT32_MAX)
    try:
        return binascii.a2b_base64(text.encode(), strict_mode=True)
    except ValueError:
        raise invalid_argument(
            f"member 'raw_handle' of {_REQUEST} must be a CUDA IPC handle in base64, got "
            f"{shown(text)}"
        ) from None


def system_status(regions: Iterable[RegionEntry]) -> bytes:
    """Return the answer to a status call."""
    entries = [
        {
            "name": region.name,
            "key": region.key,
            "offset": region.offset,
            "byte_size": region.byte_size,
        }
        for region in regions
    ]
    try:
        return orjson.dumps(entries)
    except orjson.JSONEncodeError:  # a lone surrogate, which the standard library escapes
        return dump_json(entries)


def _member(document: dict[str, Any], name: str) -> Any:
    if name not in document:
        raise invalid_argument(f"{_REQUEST} lacks the member '{name}'")
    return document[name]


def _integer(document: dict[str, Any], name: str, most: int) -> int:
    value = _member(document, name)
    if type(value) is not int or not 0 <= value <= most:
        raise invalid_argument(
            f"member '{name}' of {_REQUEST} must be an integer from 0 to {most}, got {shown(value)}"
        )
    return value
