"""A small HTTP server that answers chat completions as a test says."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

LIMIT_S = 20.0

Respond: TypeAlias = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class ChatServer:
    """What was asked so far.

    Attributes:
      respond: Answers each chat completion.
      bodies: The requests for one, in order.
      headers: The headers of the last request.
      left: Set once a client closed its connection in `until_left`.
    """

    url: str
    respond: Respond
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    left: threading.Event = field(default_factory=threading.Event)

    def until_left(self, handler: BaseHTTPRequestHandler, pieces: Sequence[str]) -> None:
        """Stream pieces, and then nothing until the client leaves."""
        begin_stream(handler)
        for piece in pieces:
            send_chunk(handler, text_event(piece))
        if handler.connection.recv(1) == b"":
            self.left.set()


def text_event(text: str) -> bytes:
    """One event with a part of an answer."""
    chunk = {"choices": [{"index": 0, "delta": {"content": text}}]}
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode()


def end_event(reason: str) -> bytes:
    """The event that says why an answer ends."""
    chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return f"data: {json.dumps(chunk)}\n\n".encode()


def begin_stream(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()


def send_chunk(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    """Send one chunk; an empty one ends the answer."""
    handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
    handler.wfile.flush()


def send_document(handler: BaseHTTPRequestHandler, status: int, document: object) -> None:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def streams(*pieces: bytes) -> Respond:
    """Answer with these chunks."""

    def respond(handler: BaseHTTPRequestHandler) -> None:
        begin_stream(handler)
        for piece in pieces:
            send_chunk(handler, piece)
        send_chunk(handler, b"")

    return respond


@contextmanager
def chat_server(
    respond: Respond,
    models: Sequence[str] = ("story",),
    endpoints: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[ChatServer]:
    """A server on a free loopback port, which knows these models.

    Args:
      respond: Answers each chat completion.
      models: Their names.
      endpoints: Model -> the calls that it says it can answer; others say nothing of it.
    """
    can = endpoints or {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            known.headers = dict(self.headers.items())
            found = self.path == "/v1/models"
            data = [
                {"id": name, **({"supported_endpoints": can[name]} if name in can else {})}
                for name in models
            ]
            document = {"object": "list", "data": data}
            send_document(self, 200 if found else 404, document)

        def do_POST(self) -> None:
            known.headers = dict(self.headers.items())
            assert self.path == "/v1/chat/completions"
            size = int(self.headers["Content-Length"])
            known.bodies.append(json.loads(self.rfile.read(size)))
            known.respond(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            if not isinstance(sys.exc_info()[1], ConnectionError):  # a client may leave
                super().handle_error(request, client_address)  # type: ignore[arg-type]

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    known = ChatServer(f"http://127.0.0.1:{server.server_port}", respond)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})  # noqa: TID251
    thread.start()
    try:
        yield known
    finally:
        server.shutdown()
        server.server_close()
        thread.join(LIMIT_S)


def free_port() -> int:
    """A port of the loopback where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port
