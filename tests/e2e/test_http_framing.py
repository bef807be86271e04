"""HTTP by hand against a real server, on both HTTP servers: framing, sizes, codings, verbs.

Where hypercorn differs it is its own HTTP/1.1 parser that decides, before or instead of us; each
place says how.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess, running_server

from .models import copy_example
from .raw_http import (
    Answer,
    ask,
    connect,
    exchange,
    infer_body,
    is_closed,
    receive,
    request,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

INFER = "/v2/models/identity/infer"
BODY = infer_body([1, 2, 3], [1, 3])
MIB = 1024**2
LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(scope="module", params=["tritrio", "hypercorn"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp(request.param)
    repository = directory / "models"
    copy_example(repository, "identity")
    with running_server(repository, directory / "log", f"--http-server={request.param}") as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


@pytest.fixture
def own(server: ServerProcess) -> bool:
    """Whether it is our own HTTP server."""
    assert isinstance(server.process.args, list)
    return "--http-server=tritrio" in server.process.args


def assert_answers(answer: Answer) -> None:
    assert answer.status == 200, answer.body
    assert answer.json()["outputs"][0]["data"] == [1.0, 2.0, 3.0]


def refusal(
    server: ServerProcess, status: int, method: str, path: str, body: bytes, **headers: str
) -> str:
    """The error text of a refused request, on a connection that stays usable."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    with connect(server.http_port) as connection:
        answer = exchange(connection, method, path, body, fields)
        assert answer.status == status, answer.body
        assert_answers(exchange(connection, "POST", INFER, BODY))
    return answer.error()


# The length of the JSON part.


@pytest.mark.parametrize("value", ["-1", "abc", str(len(BODY) + 1), str(2**40), "1e2", "+3"])
def test_header_length_out_of_range_is_refused(server: ServerProcess, value: str) -> None:
    text = refusal(server, 400, "POST", INFER, BODY, Inference_Header_Content_Length=value)
    assert LENGTH.lower() in text.lower()
    assert value in text
    assert str(len(BODY)) in text or "integer" in text


# Content codings.


@pytest.mark.parametrize("coding", ["gzip", "deflate", "GZIP"])
def test_json_length_counts_decompressed_bytes(server: ServerProcess, coding: str) -> None:
    body = zlib.compress(BODY) if coding == "deflate" else gzip.compress(BODY)
    headers = {"Content-Encoding": coding, LENGTH: str(len(BODY))}
    with connect(server.http_port) as connection:
        assert_answers(exchange(connection, "POST", INFER, body, headers))
        headers[LENGTH] = str(len(BODY) + 1)
        answer = exchange(connection, "POST", INFER, body, headers)
        assert answer.status == 400
        assert str(len(BODY) + 1) in answer.error()
        assert_answers(exchange(connection, "POST", INFER, BODY))


@pytest.mark.parametrize("coding", ["br", "gzip, deflate", "zstd"])
def test_unknown_content_coding_is_refused(server: ServerProcess, coding: str) -> None:
    text = refusal(server, 501, "POST", INFER, BODY, Content_Encoding=coding)
    assert coding in text


@pytest.mark.parametrize("coding", ["", "identity"])
def test_no_content_coding_has_two_names(server: ServerProcess, coding: str) -> None:
    with connect(server.http_port) as connection:
        answer = exchange(connection, "POST", INFER, BODY, {"Content-Encoding": coding})
    assert_answers(answer)


@pytest.mark.parametrize("cut", [b"", b"\x1f\x8b", gzip.compress(BODY)[:-9], b"rubbish"])
def test_broken_gzip_is_refused(server: ServerProcess, cut: bytes) -> None:
    refusal(server, 400, "POST", INFER, cut, Content_Encoding="gzip")


@pytest.mark.parametrize("accepted", ["br", "*", "*;q=0", "gzip;q=0", "identity", "gzip;q=x", ","])
def test_answer_is_plain_where_no_known_coding_is_accepted(
    server: ServerProcess, accepted: str
) -> None:
    with connect(server.http_port) as connection:
        answer = exchange(connection, "POST", INFER, BODY, {"Accept-Encoding": accepted})
    assert_answers(answer)
    assert "content-encoding" not in answer.headers


# Chunks.


def chunked(body: bytes, chunk_bytes: int) -> bytes:
    chunks = (body[at : at + chunk_bytes] for at in range(0, len(body), chunk_bytes))
    framed = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return framed + b"0\r\n\r\n"


def test_chunks_up_to_the_limit_are_a_body_like_any_other(server: ServerProcess) -> None:
    body = BODY.ljust(65_536)
    with connect(server.http_port) as connection:
        message = request("POST", INFER, chunked(body, 1), {"Transfer-Encoding": "chunked"})
        connection.sendall(message)
        assert_answers(receive(connection))
        assert_answers(exchange(connection, "POST", INFER, BODY))


def test_one_chunk_more_is_refused(server: ServerProcess, own: bool) -> None:
    body = BODY.ljust(65_537)
    with connect(server.http_port) as connection:
        message = request("POST", INFER, chunked(body, 1), {"Transfer-Encoding": "chunked"})
        connection.sendall(message)
        answer = receive(connection)
        if own:
            assert answer.status == 400
            assert "65536" in answer.error()
            assert is_closed(connection)
        else:  # an ASGI application does not see chunks; the byte budget alone bounds them
            assert_answers(answer)


# Sizes.


@pytest.mark.parametrize("kind", ["json", "raw"])
@pytest.mark.parametrize("over_bytes", [-4, 0, 4])
def test_body_may_have_64_mib(server: ServerProcess, kind: str, over_bytes: int) -> None:
    size = 64 * MIB + over_bytes
    body = BODY.ljust(size) if kind == "json" else bytes(size)
    headers = {LENGTH: "0"} if kind == "raw" else {}
    with connect(server.http_port) as connection:
        if over_bytes > 0:
            # It is refused on its head, so the client is told before it has sent everything.
            head = request("POST", INFER, b"", {**headers, "Content-Length": str(size)})
            connection.sendall(head)
            answer = receive(connection)
            assert answer.status == 400
            text = answer.error()
            assert str(64 * MIB) in text
            assert "--http-max-input-size" in text
            return
        answer = exchange(connection, "POST", INFER, body, headers)
        assert answer.status == 200, answer.body[:200]
        if kind == "raw":
            assert answer.body.endswith(body[-1000:])
            assert len(answer.body) == size + int(answer.headers[LENGTH.lower()])
        else:
            assert_answers(answer)


@pytest.mark.parametrize("http_server", ["tritrio", "hypercorn"])
def test_size_limit_is_a_flag(http_server: str, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    copy_example(repository, "identity")
    flags = [f"--http-server={http_server}", "--http-max-input-size=1000"]
    with running_server(repository, tmp_path / "log", *flags) as limited:
        assert_answers(ask(limited.http_port, "POST", INFER, BODY.ljust(1000)))
        answer = ask(limited.http_port, "POST", INFER, BODY.ljust(1001))
        assert answer.status == 400
        assert "1000" in answer.error()


# What is taken for JSON.


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "text/plain", "application/json", ""]
)
def test_json_is_json_whatever_it_is_called(server: ServerProcess, content_type: str) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    with connect(server.http_port) as connection:
        assert_answers(exchange(connection, "POST", INFER, BODY, headers))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"inputs": [],}',
        b"\xef\xbb\xbf" + BODY,
        BODY.decode().encode("utf-16"),
        BODY + BODY,
        b"null",
        b"[]",
        b"1",
        b"\xff\xfe\x00",
        bytes(10 * MIB),
        b"[" * 100_000,
    ],
    ids=lambda body: repr(body[:12]),
)
def test_rubbish_is_refused_with_400(server: ServerProcess, body: bytes) -> None:
    text = refusal(server, 400, "POST", INFER, body)
    assert re.search(r"at byte \d+ of \d+, near '|got an empty body|nested 100 deep", text), text
    assert len(text) < 300


# Expect.


def test_small_body_is_asked_for(server: ServerProcess) -> None:
    with connect(server.http_port) as connection:
        head = request(
            "POST", INFER, b"", {"Expect": "100-continue", "Content-Length": str(len(BODY))}
        )
        connection.sendall(head)
        interim = b""
        while b"\r\n\r\n" not in interim:
            interim += connection.recv(1)
        assert interim.startswith(b"HTTP/1.1 100")
        connection.sendall(BODY)
        assert_answers(receive(connection))


def test_too_large_a_body_is_not_asked_for(server: ServerProcess, own: bool) -> None:
    with connect(server.http_port) as connection:
        fields = {"Expect": "100-continue", "Content-Length": str(64 * MIB + 1)}
        connection.sendall(request("POST", INFER, b"", fields))
        if own:
            assert connection.recv(12) == b"HTTP/1.1 400"
        else:  # hypercorn asks for every body before the application sees the request
            assert connection.recv(12) == b"HTTP/1.1 100"


def test_unknown_expectation_fails(server: ServerProcess, own: bool) -> None:
    with connect(server.http_port) as connection:
        answer = exchange(connection, "POST", INFER, BODY, {"Expect": "wonders"})
    if own:
        assert answer.status == 417
        assert "100-continue" in answer.error()
    else:  # h11 takes no notice of it
        assert_answers(answer)


# Old, hurried and careless clients.


def test_http_1_0_gets_an_answer_and_the_end(server: ServerProcess) -> None:
    with connect(server.http_port) as connection:
        head = f"POST {INFER} HTTP/1.0\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
        connection.sendall(head + BODY)
        assert_answers(receive(connection))
        assert is_closed(connection)


def test_http_1_1_without_a_host_is_refused(server: ServerProcess, own: bool) -> None:
    with connect(server.http_port) as connection:
        connection.sendall(b"GET /v2 HTTP/1.1\r\n\r\n")
        answer = receive(connection)
    assert answer.status == 400
    if own:  # h11 answers with an empty body
        assert "host" in answer.error().lower()


def test_half_closed_client_gets_its_answer_where_the_flag_says_so(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    copy_example(repository, "identity")
    flag = "--http-half-close=true"
    with (
        running_server(repository, tmp_path / "log", flag) as patient,
        connect(patient.http_port) as connection,
    ):
        connection.sendall(request("POST", INFER, BODY))
        connection.shutdown(socket.SHUT_WR)
        assert_answers(receive(connection))
        assert is_closed(connection)


# Verbs.


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", INFER),
        ("PUT", INFER),
        ("POST", "/v2/health/live"),
        ("POST", "/v2/health/ready"),
        ("DELETE", "/v2"),
        ("PUT", "/v2/repository/models/identity/load"),
        ("GET", "/v2/repository/index"),
        *(
            (method, path)
            for method in ("HEAD", "OPTIONS")
            for path in ("/v2", "/v2/health/ready", "/v2/models/identity", INFER)
        ),
    ],
)
def test_wrong_verb_is_405(server: ServerProcess, method: str, path: str) -> None:
    with connect(server.http_port) as connection:
        answer = exchange(connection, method, path)
        assert answer.status == 405
        if method == "HEAD":
            assert answer.body == b""
        else:
            assert answer.error()
        assert_answers(exchange(connection, "POST", INFER, BODY))


def test_unknown_path_is_404(server: ServerProcess) -> None:
    assert ask(server.http_port, "GET", "/v3").status == 404


# What no client library sends.


def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    bodies = [infer_body([float(number)], [1, 1]) for number in range(5)]
    with connect(server.http_port) as connection:
        connection.sendall(b"".join(request("POST", INFER, body) for body in bodies))
        received = b""
        while received.count(b'"data":[') < len(bodies):
            received += connection.recv(65536)
    values = re.findall(rb'"data":\[([0-9.]+)\]', received)
    assert [float(value) for value in values] == [0, 1, 2, 3, 4]


def test_websocket_is_turned_away(server: ServerProcess, own: bool) -> None:
    fields = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    fields["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    with connect(server.http_port) as connection:
        answer = exchange(connection, "GET", "/v2", b"", fields)
    # RFC 9110 7.8: an offer may be ignored. hypercorn takes it up, so there it is refused.
    assert answer.status == (200 if own else 403)


@pytest.mark.parametrize(
    "message",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / /v2 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    ],
    ids=["tls", "http2", "two lengths", "blank in target", "long header"],
)
def test_other_protocols_and_faults_do_not_hurt_the_server(
    server: ServerProcess, own: bool, message: bytes
) -> None:
    if not own and message.startswith(b"PRI"):
        pytest.skip("hypercorn speaks HTTP/2 here")
    with connect(server.http_port) as connection:
        connection.sendall(message)
        first = connection.recv(12)
        assert re.fullmatch(rb"HTTP/1.1 (4\d\d|505)", first), first
    assert_answers(ask(server.http_port, "POST", INFER, BODY))
    assert json.loads(ask(server.http_port, "GET", "/v2").body)["name"] == "triton"
