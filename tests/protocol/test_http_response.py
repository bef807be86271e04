"""HTTP/1.1 responses: the bytes a client reads, and which of them are copied."""

import json

import httptools
import numpy as np
import pytest

from tritrio.protocol.http_response import (
    JOINED_BYTES_MAX,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    HttpResponse,
    encode_response,
    error_response,
)

TEXT = (b"Content-Type", b"text/plain")


def test_a_small_response_is_one_buffer_with_its_length_and_type() -> None:
    response = HttpResponse(200, [TEXT, (b"X-A", b"b c")], b"hello")
    assert encode_response(response, keep_alive=True) == [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-A: b c\r\nContent-Length: 5\r\n\r\nhello"
    ]


def test_an_empty_response_says_length_0() -> None:
    assert encode_response(HttpResponse(400), keep_alive=True) == [
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
    ]


@pytest.mark.parametrize(
    ("keep_alive", "http_10", "line"),
    [
        (True, False, b""),
        (False, False, b"Connection: close\r\n"),
        (True, True, b"Connection: keep-alive\r\n"),
        (False, True, b"Connection: close\r\n"),
    ],
)
def test_the_connection_header_is_there_when_it_says_something_new(
    keep_alive: bool, http_10: bool, line: bytes
) -> None:
    (data,) = encode_response(HttpResponse(200), keep_alive=keep_alive, http_10=http_10)
    assert data == b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + line + b"\r\n"


def test_an_answer_to_head_measures_the_body_and_leaves_it_out() -> None:
    response = HttpResponse(200, [TEXT], [b"x" * 100_000, b"y"])
    assert encode_response(response, keep_alive=True, head_only=True) == [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100001\r\n\r\n"
    ]


def test_small_parts_are_joined_in_order() -> None:
    tensor = np.array([1, 2], np.float32).data
    response = HttpResponse(200, [], [b"{}", tensor, bytearray(b"!"), b""])
    (data,) = encode_response(response, keep_alive=True)
    assert data == b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{}" + tensor.tobytes() + b"!"


def test_large_parts_are_not_copied_and_the_small_ones_around_them_are_joined() -> None:
    tensor = np.arange(100_000, dtype=np.int64).reshape(100, 1000)
    parts: list[bytes | memoryview] = [
        b"{}",
        b"a",
        tensor.data,
        b"b",
        b"c",
        b"d" * (JOINED_BYTES_MAX - 1),
        b"e",
    ]
    response = HttpResponse(200, [], parts)
    head, large, small, last = encode_response(response, keep_alive=True)
    assert head == b"HTTP/1.1 200 OK\r\nContent-Length: 865541\r\n\r\n{}a"
    assert np.shares_memory(np.frombuffer(large, np.uint8), tensor)
    assert isinstance(large, memoryview)
    assert (large.format, large.nbytes, len(large)) == ("B", 800_000, 800_000)
    assert (small, last) == (b"bc", b"d" * (JOINED_BYTES_MAX - 1) + b"e")


@pytest.mark.parametrize("over", [0, 1])
def test_a_body_of_bytes_is_joined_up_to_the_limit(over: int) -> None:
    body = b"x" * (JOINED_BYTES_MAX + over)
    buffers = encode_response(HttpResponse(200, [], body), keep_alive=True)
    assert len(buffers) == 1 + over
    assert b"".join(buffers).endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize(
    "header",
    [
        (b"X", b"a\r\nY: b"),
        (b"X", b"a\nY: b"),
        (b"X", b"a\rY: b"),
        (b"X\r\nY", b"b"),
        (b"X", b"a\r\n"),
    ],
)
def test_a_header_that_breaks_out_of_its_line_is_an_error_of_the_caller(
    header: tuple[bytes, bytes],
) -> None:
    with pytest.raises(ValueError, match="line ends"):
        encode_response(HttpResponse(200, [TEXT, header]), keep_alive=True)


def test_an_error_is_compact_json() -> None:
    response = error_response(400, 'expected "a"\n, got é')
    assert response.status == 400
    assert response.headers == [(b"Content-Type", b"application/json")]
    assert response.body == '{"error":"expected \\"a\\"\\n, got é"}'.encode()


def test_an_error_that_echoes_broken_text_is_still_json() -> None:
    body = error_response(400, b"\xff\xfe".decode("utf-8", "surrogateescape")).body
    assert isinstance(body, bytes)
    assert json.loads(body) == {"error": "??"}


def test_the_answers_of_the_router_are_ready_made() -> None:
    assert (NOT_FOUND.status, NOT_FOUND.body) == (404, b'{"error":"Not Found"}')
    assert METHOD_NOT_ALLOWED.status == 405
    assert METHOD_NOT_ALLOWED.body == b'{"error":"Method Not Allowed"}'


@pytest.mark.parametrize(
    "status", [200, 400, 403, 404, 405, 408, 413, 414, 417, 431, 501, 503, 505]
)
def test_a_client_parser_reads_back_what_was_encoded(status: int) -> None:
    seen: list[object] = []

    class Client:
        def on_header(self, name: bytes, value: bytes) -> None:
            seen.append((name, value))

        def on_body(self, body: bytes) -> None:
            seen.append(body)
            assert parser.should_keep_alive()

        def on_message_complete(self) -> None:
            seen.append("complete")

    parser = httptools.HttpResponseParser(Client())
    for buffer in encode_response(HttpResponse(status, [TEXT], [b"a", b"b"]), keep_alive=True):
        parser.feed_data(buffer)
    assert parser.get_status_code() == status
    assert seen == [TEXT, (b"Content-Length", b"2"), b"ab", "complete"]
