"""What the headers of a gRPC call say, and the header blocks we answer with.

As lenient as grpc-core: `te` may be missing, a timeout that cannot be read means no deadline.
Source: the document "gRPC over HTTP2".
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Collection
from math import ceil
from typing import Final, TypeAlias

from grpclib.const import Status
from grpclib.metadata import decode_bin_value, encode_grpc_message, encode_metadata

from .grpc_compression import ACCEPTED_ENCODINGS, IDENTITY, is_supported
from .http2_frames import encode_fields

Metadata: TypeAlias = Collection[tuple[str, str | bytes]]

STATUS_MESSAGE_BYTES_MAX: Final = 4096
"""Percent-encoded; clients take 8 KiB of headers or more, and fail the call over larger ones."""
TIMEOUT_DIGITS_MAX: Final = 8
"""By the specification; more would not be a number of any clock."""

_CONTENT_TYPE: Final = "application/grpc"
_SECONDS: Final = {b"H": 3600, b"M": 60, b"S": 1}
_PARTS_OF_A_SECOND: Final = {b"m": 10**3, b"u": 10**6, b"n": 10**9}
_NOT_METADATA: Final = frozenset((b"content-type", b"te"))
_RESPONSE_FIELDS: Final = [(":status", "200"), ("content-type", _CONTENT_TYPE)]
_CUT_ESCAPE: Final = re.compile("%[0-9A-F]?$")

RESPONSE_HEADERS: Final = {IDENTITY: encode_fields(_RESPONSE_FIELDS)} | {
    encoding: encode_fields([*_RESPONSE_FIELDS, ("grpc-encoding", encoding)])
    for encoding in ("gzip", "deflate")
}
"""The header block in front of the first message, by the coding of the messages."""
NOT_POST: Final = encode_fields([(":status", "405"), ("allow", "POST"), ("content-length", "0")])
NOT_GRPC: Final = encode_fields([(":status", "415"), ("content-length", "0")])

_OK: Final = [("grpc-status", "0")]
OK_TRAILERS: Final = encode_fields(_OK)
"""The header block behind the last message of a call that went well."""
_OK_ALONE: Final = encode_fields([*_RESPONSE_FIELDS, *_OK])


class CallHead:
    """The headers of one call, made sense of. Calls with the same headers share it.

    Attributes:
      path: The method, as "/package.Service/Method"; not checked.
      timeout_s: Time the client gives the call, in seconds, or None.
      encoding: How its compressed messages are coded.
      accept_encoding: The codings it takes, as it listed them.
      refusal: The header block of the answer where the request is no gRPC, or None.
      fault: Why the call cannot be started: status, sentence and trailing metadata, or None.
    """

    __slots__ = (
        "_fields",
        "_metadata",
        "accept_encoding",
        "encoding",
        "fault",
        "path",
        "refusal",
        "timeout_s",
    )

    def __init__(self, fields: list[tuple[bytes, bytes]]) -> None:
        known = dict(fields)
        self._fields = fields
        self._metadata: dict[str, list[str | bytes]] | None = None
        self.path = _text(known[b":path"])
        self.timeout_s = _parse_timeout(known.get(b"grpc-timeout"))
        self.encoding = _text(known.get(b"grpc-encoding", b"identity"))
        self.accept_encoding = _text(known.get(b"grpc-accept-encoding", b"identity"))
        self.refusal: bytes | None = None
        self.fault: tuple[Status, str, bool] | None = None
        if known[b":method"] != b"POST":
            self.refusal = NOT_POST
        elif not _is_grpc(known.get(b"content-type", b"")):
            self.refusal = NOT_GRPC
        elif not is_supported(self.encoding):
            self.fault = (
                Status.UNIMPLEMENTED,
                f"grpc-encoding must be one of {ACCEPTED_ENCODINGS}, got {self.encoding}.",
                True,
            )
        else:
            self._check_binary()

    def _check_binary(self) -> None:
        for name, value in self._fields:
            if name[-4:] == b"-bin":
                try:
                    _decode_binary(value)
                except binascii.Error:
                    message = f"The metadata {_text(name)} must be base64."
                    self.fault = (Status.INTERNAL, message, False)

    @property
    def metadata(self) -> dict[str, list[str | bytes]]:
        """The client's metadata: values by lower-case key, bytes for keys that end in "-bin".

        Without what belongs to the protocol. Shared by calls, so it must not be changed.
        """
        if self._metadata is None:
            metadata: dict[str, list[str | bytes]] = {}
            for name, value in self._fields:
                if name[:1] == b":" or name[:5] == b"grpc-" or name in _NOT_METADATA:
                    continue
                values = metadata.setdefault(_text(name), [])
                if name[-4:] == b"-bin":
                    values += _decode_binary(value)
                else:
                    values.append(_text(value))
            self._metadata = metadata
        return self._metadata


def trailers(
    status: Status,
    message: str = "",
    metadata: Metadata = (),
    *,
    alone: bool,
    list_encodings: bool = False,
    retry_after_s: float | None = None,
) -> bytes:
    """Return the header block that ends a call.

    Args:
      status: The outcome.
      message: Says more about it; cut to what clients take.
      metadata: Trailing metadata of the application.
      alone: Whether no response headers went before ("trailers-only").
      list_encodings: Whether to say which codings are accepted.
      retry_after_s: When the call may be tried again, in seconds (proposal A6 of gRPC).

    Raises:
      ValueError: A metadata key or value cannot be sent.
      TypeError: A "-bin" value is not bytes, or another one not str.
    """
    if status is Status.OK and not message and not metadata:
        return _OK_ALONE if alone else OK_TRAILERS
    fields = list(_RESPONSE_FIELDS) if alone else []
    fields.append(("grpc-status", str(status.value)))
    if message:
        text = encode_grpc_message(message[:STATUS_MESSAGE_BYTES_MAX])
        fields.append(("grpc-message", _CUT_ESCAPE.sub("", text[:STATUS_MESSAGE_BYTES_MAX])))
    if list_encodings:
        fields.append(("grpc-accept-encoding", ACCEPTED_ENCODINGS))
    if retry_after_s is not None:
        fields.append(("grpc-retry-pushback-ms", str(ceil(retry_after_s * 1000))))
    fields += encode_metadata(metadata)
    return encode_fields(fields)


def _text(octets: bytes) -> str:
    return octets.decode("utf-8", "replace")


def _is_grpc(content_type: bytes) -> bool:
    """Accept "application/grpc" and "application/grpc+proto", with parameters or without."""
    kind = content_type.split(b";", 1)[0].strip().lower()
    return kind in (b"application/grpc", b"application/grpc+proto")


def _parse_timeout(value: bytes | None) -> float | None:
    if value is None:
        return None
    digits, unit = value[:-1], value[-1:]
    if not digits.isdigit() or len(digits) > TIMEOUT_DIGITS_MAX:
        return None
    if unit in _SECONDS:
        return float(int(digits) * _SECONDS[unit])
    return int(digits) / _PARTS_OF_A_SECOND[unit] if unit in _PARTS_OF_A_SECOND else None


def _decode_binary(value: bytes) -> list[bytes]:
    """Decode the values of a "-bin" field, which may be several, joined by commas."""
    return [decode_bin_value(part.strip()) for part in value.split(b",")]
