"""The REST handler as an ASGI application, driven with ASGI messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.http_client import HttpClient, infer_body, request_bytes
from tests.support.memory_server import DELAY_S, MemoryServer, memory_server
from tritrio.actors.http_asgi import WRITE_TIMEOUT_S, HttpApplication
from tritrio.protocol.errors import FailureReason


@dataclass
class Exchange:
    """One ASGI request in progress; `pieces` of the body are delivered as they are put."""

    scope: dict[str, Any]
    messages: list[dict[str, Any]] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)
    takes_answers: bool = True
    news: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def put(self, data: bytes, *, more: bool = False) -> None:
        self.messages.append({"type": "http.request", "body": data, "more_body": more})
        self.news.unpark_all()

    def leave(self) -> None:
        self.messages.append({"type": "http.disconnect"})
        self.news.unpark_all()

    async def receive(self) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        while not self.messages:
            await self.news.park()
        return self.messages.pop(0)

    async def send(self, message: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        if not self.takes_answers:
            await trio.sleep_forever()
        self.sent.append(message)

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


def scope_of(path: str, method: str = "POST", **more: Any) -> dict[str, Any]:
    raw, _, query = path.partition("?")
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": raw,
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [],
        **more,
    }


INFER = "/v2/models/{}/infer"


class _Asgi:
    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self.application = HttpApplication(api=server.parts.http_api, budget=server.parts.budget)

    def begin(self, path: str, method: str = "POST", **more: Any) -> Exchange:
        """Start a request whose body is still to come."""
        exchange = Exchange(scope_of(path, method, **more))
        self._server.nursery.start_soon(self.run, exchange)
        return exchange

    async def run(self, exchange: Exchange) -> None:
        await self.application(exchange.scope, exchange.receive, exchange.send)

    async def ask(
        self, path: str, body: bytes = b"", method: str = "POST", **more: Any
    ) -> Exchange:
        exchange = Exchange(scope_of(path, method, **more))
        exchange.put(body)
        await self.run(exchange)
        return exchange


REQUESTS = [
    ("GET", "/v2", None),
    ("GET", "/v2/health/live", None),
    ("GET", "/v2/health/ready", None),
    ("GET", "/v2/models/plain", None),
    ("GET", "/v2/models/plain/config", None),
    ("GET", "/v2/models/plain/versions/1/ready", None),
    ("GET", "/v2/models/missing", None),
    ("GET", "/no/such/path", None),
    ("PUT", "/v2", b""),
    ("POST", "/v2/repository/index", b"{}"),
    ("POST", "/v2/repository/models/plain/load", b"{}"),
    ("POST", "/v2/models/plain/infer", infer_body([[1, 2]])),
    ("POST", "/v2/models/plain/infer", b"{"),
    ("POST", "/v2/models/plain/infer", b""),
    ("POST", "/v2/models/missing/infer", infer_body([[1]])),
    ("POST", "/v2/models/repeat/infer", infer_body([[1, 1]])),
    ("HEAD", "/v2", None),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
async def test_answers_are_those_of_our_own_server(
    autojump_clock: MockClock, models: Path, *, method: str, path: str, body: bytes | None
) -> None:
    async with memory_server(models) as server:
        client: HttpClient = server.http()
        client.send(request_bytes(path, body, method=method))
        expected = await client.response(head_only=method == "HEAD")
        exchange = await _Asgi(server).ask(path, body or b"", method)
        assert exchange.status == expected.status
        assert exchange.body == expected.body
        headers = {
            name.decode().lower(): value.decode() for name, value in exchange.sent[0]["headers"]
        }
        assert headers == {
            name: value for name, value in expected.headers.items() if name != "connection"
        }
        assert server.used_bytes == 0


async def test_body_may_come_in_pieces(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models) as server:
        body = infer_body([[1, 2]])
        exchange = _Asgi(server).begin(INFER.format("batched"))
        for position in range(len(body)):
            exchange.put(body[position : position + 1], more=True)
        await wait_all_tasks_blocked()
        assert server.used_bytes == len(body)
        exchange.put(b"")
        await trio.sleep(DELAY_S)
        await wait_all_tasks_blocked()
        assert exchange.json["outputs"][0]["data"] == [1, 2]
        assert server.executions[0].at_s == DELAY_S
        assert server.used_bytes == 0


async def test_mounted_below_a_prefix_it_answers_the_same(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        exchange = await _Asgi(server).ask(
            "/prefix/v2/health/live", method="GET", root_path="/prefix"
        )
        assert exchange.status == 200


@pytest.mark.parametrize("seconds", [0.0, 1.0])
async def test_client_that_leaves_cancels_its_request(
    autojump_clock: MockClock, models: Path, seconds: float
) -> None:
    """In the queue, or while it executes."""
    async with memory_server(models, seconds={"batched": 1.0}) as server:
        exchange = _Asgi(server).begin(INFER.format("batched"))
        exchange.put(infer_body([[1]]))
        await trio.sleep(seconds)
        await wait_all_tasks_blocked()
        exchange.leave()
        await wait_all_tasks_blocked()
        assert server.elapsed_s() == seconds
        assert server.used_bytes == 0
        assert server.counts("batched") == ((0, 1, 0) if not seconds else (0, 0, 0))
        await trio.sleep(2.0)
        assert exchange.sent == []
        assert server.counts("batched") == (0, 1, 0)
        assert server.statistics("batched").failures[FailureReason.CANCELED] == 1
        assert len(server.executions) == (1 if seconds else 0)


async def test_client_that_leaves_within_its_body_costs_nothing(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        exchange = _Asgi(server).begin(INFER.format("batched"))
        exchange.put(b"x" * 1000, more=True)
        await wait_all_tasks_blocked()
        assert server.used_bytes == 1000
        exchange.leave()
        await wait_all_tasks_blocked()
        assert server.used_bytes == 0
        assert exchange.sent == []


async def test_body_beyond_the_budget_is_taken_and_dropped_and_503(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, byte_budget=1000) as server:
        exchange = _Asgi(server).begin(INFER.format("plain"))
        for _ in range(100):
            exchange.put(b"x" * 100, more=True)
            await wait_all_tasks_blocked()
            assert server.used_bytes <= 1000
        assert server.used_bytes == 0
        assert exchange.sent == []
        exchange.put(b"")
        await wait_all_tasks_blocked()
        assert exchange.status == 503
        assert exchange.json == {"error": "the server's byte budget is used up; try again"}
        assert server.used_bytes == 0


async def test_announced_body_that_is_too_large_is_refused_at_once(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models, http_input_bytes_max=10) as server:
        exchange = _Asgi(server).begin(INFER.format("plain"), headers=[(b"content-length", b"11")])
        await wait_all_tasks_blocked()
        assert exchange.status == 400


async def test_client_that_takes_no_answer_is_given_up_in_time(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        asgi = _Asgi(server)
        exchange = Exchange(scope_of(INFER.format("plain")), takes_answers=False)
        exchange.put(infer_body([[1]]))
        await asgi.run(exchange)
        assert server.elapsed_s() == WRITE_TIMEOUT_S
        assert server.used_bytes == 0


async def test_lifespan_is_agreed_to(autojump_clock: MockClock, models: Path) -> None:
    async with memory_server(models) as server:
        exchange = Exchange({"type": "lifespan"})
        exchange.messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        await _Asgi(server).run(exchange)
        assert [message["type"] for message in exchange.sent] == [
            "lifespan.startup.complete",
            "lifespan.shutdown.complete",
        ]


async def test_large_answer_beyond_the_budget_is_503(
    autojump_clock: MockClock, models: Path
) -> None:
    """A client that does not read would keep it in memory."""
    body = infer_body([list(range(1_000_000, 1_010_000))] * 2)
    for room_bytes, status in ((10_000, 503), (1_000_000, 200)):
        async with memory_server(models, byte_budget=len(body) + room_bytes) as server:
            exchange = await _Asgi(server).ask(INFER.format("plain"), body)
            assert exchange.status == status
            if status == 200:
                assert server.parts.budget.peak_bytes == len(body) + len(exchange.body)
            assert server.used_bytes == 0


async def test_body_that_has_come_in_part_is_not_waited_for_once_a_shutdown_began(
    autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        asgi = _Asgi(server)
        for early in (True, False):
            exchange = asgi.begin(INFER.format("plain")) if early else None
            if exchange is not None:
                exchange.put(b"{", more=True)
                await wait_all_tasks_blocked()
            asgi.application.begin_shutdown()
            exchange = exchange or asgi.begin(INFER.format("plain"))
            await wait_all_tasks_blocked()
            assert exchange.status == 503
            assert exchange.json == {"error": "the server is exiting"}
        assert server.elapsed_s() == 0.0
        assert server.used_bytes == 0


@pytest.mark.parametrize(
    ("path", "status"), [("http://test/v2?x", 200), ("http://test/v3", 404), ("*", 404)]
)
async def test_of_an_absolute_url_the_path_counts(
    path: str, status: int, autojump_clock: MockClock, models: Path
) -> None:
    async with memory_server(models) as server:
        parts = server.parts
        app = HttpApplication(api=parts.http_api, budget=parts.budget)
        client = Exchange(scope_of(path, "GET"))
        client.put(b"")
        await app(client.scope, client.receive, client.send)
        assert client.status == status
