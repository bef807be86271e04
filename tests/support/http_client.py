"""The client's side of HTTP/1.1: requests as bytes, and a reader of responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import trio

from tests.support.memory_stream import End


@dataclass(frozen=True)
class Response:
    """One response and when its last byte was read, in clock seconds."""

    status: int
    headers: dict[str, str]
    body: bytes
    at_s: float

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def rows(self) -> list[list[int]]:
        """The rows of the one output of an inference."""
        (output,) = self.json["outputs"]
        rows, columns = output["shape"]
        data = output["data"]
        return [data[row * columns : (row + 1) * columns] for row in range(rows)]


def request_bytes(
    target: str,
    body: bytes | None = None,
    *,
    method: str = "",
    headers: Sequence[str] = (),
) -> bytes:
    """One request as it goes over the wire."""
    method = method or ("GET" if body is None else "POST")
    lines = [f"{method} {target} HTTP/1.1", "Host: test", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def infer_body(rows: Sequence[Sequence[int]], *, request_id: str = "") -> bytes:
    """An inference request for INPUT0."""
    data = [value for row in rows for value in row]
    shape = [len(rows), len(rows[0])]
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": shape, "data": data}
    return orjson.dumps({"id": request_id, "inputs": [tensor]})


def infer_bytes(
    model: str,
    rows: Sequence[Sequence[int]],
    *,
    request_id: str = "",
    headers: Sequence[str] = (),
) -> bytes:
    """One inference request as it goes over the wire."""
    body = infer_body(rows, request_id=request_id)
    return request_bytes(f"/v2/models/{model}/infer", body, headers=headers)


class HttpClient:
    """One HTTP/1.1 connection."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.buffer = b""

    def send(self, data: bytes) -> None:
        self.end.write(data)

    def get(self, target: str) -> None:
        self.send(request_bytes(target))

    def infer(self, model: str, rows: Sequence[Sequence[int]], **more: Any) -> None:
        self.send(infer_bytes(model, rows, **more))

    async def _read_until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            data = await self.end.read()
            assert data, f"the connection ended after {self.buffer!r}"
            self.buffer += data
        head, _, self.buffer = self.buffer.partition(mark)
        return head

    async def response(self, *, head_only: bool = False) -> Response:
        """Read one response; a 100 counts as one."""
        head = (await self._read_until(b"\r\n\r\n")).decode()
        status_line, *lines = head.split("\r\n")
        fields = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in fields}
        size = 0 if head_only else int(headers.get("content-length", "0"))
        while len(self.buffer) < size:
            data = await self.end.read()
            assert data, "the connection ended within a body"
            self.buffer += data
        body, self.buffer = self.buffer[:size], self.buffer[size:]
        return Response(int(status_line.split()[1]), headers, body, trio.current_time())

    async def head(self) -> Response:
        """Read the head of a response whose body comes in chunks."""
        return await self.response(head_only=True)

    async def chunk(self) -> bytes:
        """Read one chunk of a body; b"" is the last."""
        size = int(await self._read_until(b"\r\n"), 16)
        while len(self.buffer) < size + 2:
            data = await self.end.read()
            assert data, "the connection ended within a chunk"
            self.buffer += data
        chunk, self.buffer = self.buffer[:size], self.buffer[size:]
        assert self.buffer.startswith(b"\r\n")
        self.buffer = self.buffer[2:]
        return chunk

    async def ask(self, model: str, rows: Sequence[Sequence[int]], **more: Any) -> Response:
        self.infer(model, rows, **more)
        return await self.response()

    async def closed(self) -> float:
        """Wait until the server closes, having sent nothing more; when that was."""
        assert not self.buffer
        try:
            data = await self.end.read()
        except trio.BrokenResourceError:
            data = b""
        assert data == b""
        return trio.current_time()
