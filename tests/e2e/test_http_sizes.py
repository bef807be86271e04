"""Bodies at the size limit of every kind, to a real server."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.actors.bad_inference import write_models
from tests.support.server_process import ServerProcess, running_server

from .raw_http import Answer, connect, exchange, receive, request

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MIB = 1024**2
LENGTH = "Inference-Header-Content-Length"
INFER = "/v2/models/one/infer"
GOOD = json.dumps(
    {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1.5, -2]}]}
).encode()
SMALL_LIMIT = 1000


def started(directory: Path, *flags: str) -> Iterator[ServerProcess]:
    write_models(directory / "models")
    with running_server(directory / "models", directory / "log", *flags) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log()


@pytest.fixture(scope="module", params=["tritrio", "hypercorn"])
def limited(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server that takes `SMALL_LIMIT` bytes, on either HTTP server."""
    flags = [f"--http-server={request.param}", f"--http-max-input-size={SMALL_LIMIT}"]
    yield from started(tmp_path_factory.mktemp(request.param), *flags)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that takes 128 MiB."""
    flag = f"--http-max-input-size={128 * MIB}"
    yield from started(tmp_path_factory.mktemp("large"), flag)


def raw_of(size: int) -> tuple[str, bytes, dict[str, str]]:
    return "/v2/models/word/infer", b"a" * size, {LENGTH: "0"}


def json_of(size: int) -> tuple[str, bytes, dict[str, str]]:
    return INFER, GOOD.ljust(size), {}


def packed_of(size: int) -> tuple[str, bytes, dict[str, str]]:
    return INFER, gzip.compress(GOOD.ljust(size), 1), {"Content-Encoding": "gzip"}


def generate_of(size: int) -> tuple[str, bytes, dict[str, str]]:
    """A text such as base64 in a request to generate, of `size` bytes in all."""
    frame = json.dumps({"IN": ""})
    body = json.dumps({"IN": "QUJD" * ((size - len(frame)) // 4 + 1)}).encode()
    return "/v2/models/word/generate", body[: size - 2] + b'"}', {}


KINDS = {"json": json_of, "raw": raw_of, "gzip": packed_of, "generate": generate_of}


def send(server: ServerProcess, kind: str, size: int) -> Answer:
    """Send a body of that size, and then another request on the same connection if it is good."""
    path, body, headers = KINDS[kind](size)
    with connect(server.http_port) as connection:
        answer = exchange(connection, "POST", path, body, headers)
        if answer.status == 200:
            assert exchange(connection, "POST", INFER, GOOD).status == 200
    return answer


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_of_any_kind_may_be_as_large_as_the_flag_says_and_no_larger(
    limited: ServerProcess, kind: str
) -> None:
    for size in (SMALL_LIMIT - 1, SMALL_LIMIT):
        assert send(limited, kind, size).status == 200, size
    refused = send(limited, kind, SMALL_LIMIT + 1)
    assert refused.status == 400
    assert str(SMALL_LIMIT) in refused.error()
    assert "--http-max-input-size" in refused.error()
    assert send(limited, kind, SMALL_LIMIT).status == 200


@pytest.mark.parametrize("kind", ["json", "generate"])
def test_the_flag_raises_the_limit(large: ServerProcess, kind: str) -> None:
    assert send(large, kind, 64 * MIB + 1).status == 200


def test_the_raised_limit_holds_to_the_byte(large: ServerProcess) -> None:
    assert send(large, "json", 128 * MIB).status == 200
    with connect(large.http_port) as connection:
        head = {"Content-Length": str(128 * MIB + 1)}
        connection.sendall(request("POST", INFER, b"", head))
        refused = receive(connection)
    assert refused.status == 400
    assert str(128 * MIB) in refused.error()
