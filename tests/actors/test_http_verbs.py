"""Every verb on every path: what the path takes is answered, all else is 405 with the JSON body."""

from __future__ import annotations

from pathlib import Path

import pytest
from trio.testing import MockClock

from tests.support.http_client import request_bytes
from tests.support.memory_server import memory_server
from tritrio.protocol.http_routes import Route, RouteName, match

VERBS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE")
PATHS = {
    "/v2": "GET",
    "/v2/health/live": "GET",
    "/v2/health/ready": "GET",
    "/v2/models/plain": "GET",
    "/v2/models/plain/versions/1": "GET",
    "/v2/models/plain/ready": "GET",
    "/v2/models/plain/versions/1/ready": "GET",
    "/v2/models/plain/config": "GET",
    "/v2/models/plain/stats": "GET",
    "/v2/models/plain/batching": "GET",
    "/v2/models/stats": "GET",
    "/v2/models/plain/infer": "POST",
    "/v2/models/plain/versions/1/infer": "POST",
    "/v2/models/plain/generate": "POST",
    "/v2/models/plain/generate_stream": "POST",
    "/v2/repository/index": "POST",
    "/v2/repository/models/plain/load": "POST",
    "/v2/repository/models/plain/unload": "POST",
    "/v2/systemsharedmemory/status": "GET",
    "/v2/systemsharedmemory/region/r/status": "GET",
    "/v2/systemsharedmemory/region/r/register": "POST",
    "/v2/systemsharedmemory/unregister": "POST",
    "/v2/cudasharedmemory/status": "GET",
    "/v2/cudasharedmemory/region/r/register": "POST",
    "/v2/cudasharedmemory/region/r/unregister": "POST",
    "/v2/trace/setting": "GET POST",
    "/v2/models/plain/trace/setting": "GET POST",
    "/v2/logging": "GET POST",
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
    "/v1/embeddings": "POST",
    "/v1/models": "GET",
    "/v1/models/plain": "GET",
}


def test_the_paths_below_are_of_every_route() -> None:
    named = set()
    for path, verbs in PATHS.items():
        route = match(verbs.split()[0].encode(), path.encode())
        assert isinstance(route, Route)
        named.add(route.name)
    assert named == set(RouteName)


@pytest.mark.parametrize("verb", VERBS)
async def test_a_wrong_verb_is_405_with_the_body_of_an_error_and_the_connection_goes_on(
    autojump_clock: MockClock, models: Path, verb: str
) -> None:
    async with memory_server(models) as server:
        client = server.http()
        for path, verbs in PATHS.items():
            client.send(request_bytes(path, b"{}", method=verb))
            response = await client.response(head_only=verb == "HEAD")
            if verb in verbs.split():
                assert response.status != 405, path
                continue
            assert response.status == 405, path
            assert response.headers["content-type"] == "application/json"
            if verb == "HEAD":
                assert int(response.headers["content-length"]) > 0
            elif path.startswith("/v1/"):
                assert response.json["error"]["code"] == "unknown_url"
            else:
                assert response.json == {"error": "Method Not Allowed"}
        assert (await client.ask("plain", [[1]])).rows == [[1]]
