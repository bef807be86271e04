"""Cases of gRPC framing."""

from __future__ import annotations

import gzip
import zlib

from .cases import Case, Differs
from .raw_grpc import READY, RawCall, framed


def coded(coding: str | None, body: bytes) -> RawCall:
    return RawCall(body, (("grpc-encoding", coding),))


def with_header(name: str, value: str | None) -> RawCall:
    return RawCall(framed(READY), ((name, value),))


def strict(reference: str, ours: str) -> Differs:
    """Ours keeps to the gRPC protocol; the reference's library is laxer, or drops the stream."""
    return Differs(reference, ours, "grpc-framing")


CASES: list[Case[RawCall]] = [
    Case("a plain call", RawCall(framed(READY)), "OK"),
    Case("gzip", coded("gzip", framed(gzip.compress(READY), flag=1)), "OK"),
    Case("deflate", coded("deflate", framed(zlib.compress(READY), flag=1)), "OK"),
    Case("identity", coded("identity", framed(READY)), "OK"),
    Case("gzip, but not this message", coded("gzip", framed(READY)), "OK"),
    Case(
        "an unknown coding",
        coded("snappy", framed(READY, flag=1)),
        Differs("RESET 2", "UNIMPLEMENTED", "grpc-codings"),
    ),
    Case(
        "an unknown coding, not used",
        coded("snappy", framed(READY)),
        Differs("RESET 2", "UNIMPLEMENTED", "grpc-codings"),
    ),
    Case(
        "compressed without a coding", coded(None, framed(READY, flag=1)), strict("OK", "INTERNAL")
    ),
    Case(
        "compressed as identity", coded("identity", framed(READY, flag=1)), strict("OK", "INTERNAL")
    ),
    Case("rubbish as gzip", coded("gzip", framed(b"rubbish", flag=1)), "INTERNAL"),
    Case("gzip cut off", coded("gzip", framed(gzip.compress(READY)[:-9], flag=1)), "INTERNAL"),
    Case("a flag of 2", RawCall(framed(READY, flag=2)), strict("OK", "INTERNAL")),
    Case("no message", RawCall(b""), "INTERNAL"),
    Case("a prefix cut off", RawCall(b"\0\0\0"), "INTERNAL"),
    Case("a message cut off", RawCall(framed(READY, length=100)), "INTERNAL"),
    Case("two messages", RawCall(framed(READY) * 2), "OK"),
    Case("an empty message", RawCall(framed(b"")), "OK"),
    Case("no te", with_header("te", None), strict("UNKNOWN", "OK")),
    Case("application/grpc+proto", with_header("content-type", "application/grpc+proto"), "OK"),
    Case(
        "the content type of JSON",
        with_header("content-type", "application/json"),
        strict("RESET 2", "HTTP 415"),
    ),
    Case("no content type", with_header("content-type", None), strict("OK", "HTTP 415")),
    Case("GET", with_header(":method", "GET"), strict("UNKNOWN", "HTTP 405")),
    Case("a timeout", with_header("grpc-timeout", "10S"), "OK"),
    Case("a timeout of nonsense", with_header("grpc-timeout", "soon"), strict("RESET 2", "OK")),
    Case("a path without a service", with_header(":path", "/x"), "UNIMPLEMENTED"),
]
