"""Shared memory: the same regions, of the same objects, at both servers."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse
from pathlib import Path

import pytest

from . import region_grpc_cases, region_http_cases
from .cases import Case, compare
from .http_exchange import ANSWER_LIMIT_S, converse
from .http_requests import strings
from .region_http_cases import ALL, place, source
from .regions import DIRECTORY, KEY, SYSTEM, TARGET, Steps, exchange, objects, post, prepare
from .servers import HOST, Server, Servers

IN_USE_ROW = "regions-in-use"
"""What comes of unregistering a region while a request uses it."""
POLL_S = 0.005
POLLS_MAX = 2000

CASES = [*region_http_cases.CASES, *region_grpc_cases.CASES]


@pytest.fixture(scope="module")
def item() -> Iterator[Path]:
    """The object that is registered as the region "a"."""
    with objects() as path:
        yield path


@pytest.mark.reference
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_regions_agree(case: Case[Steps], servers: Servers, item: Path) -> None:
    compare(case, exchange, servers)


@pytest.mark.reference
def test_a_region_in_use_stays_there_and_goes_with_its_request_here(
    servers: Servers, item: Path, tmp_path: Path
) -> None:
    reference = _unregister_in_use(servers.reference, tmp_path / "reference")
    assert reference == (500, ["a"], 200, 200, ["a"])
    ours = _unregister_in_use(servers.ours, tmp_path / "ours")
    assert ours == (200, ["a"], 404, 200, [])


def _unregister_in_use(server: Server, held: Path) -> tuple[int, list[str], int, int, list[str]]:
    """Unregister while a request is held up.

    Returns:
      The status, the regions, and the status of a request after it; then that of the one that was
      held up, and the regions after it.
    """
    prepare(server)
    held.mkdir()
    path = strings(str(held).encode())
    with (DIRECTORY / KEY).open("r+b") as file:
        file.seek(TARGET)
        file.write(path)
    text = {"name": "PLACE", "shape": [1], "datatype": "BYTES"}
    (request,) = source("held", **text, parameters=place("a", TARGET, len(path)))
    with socket.create_connection((HOST, server.ports.http), timeout=ANSWER_LIMIT_S) as connection:
        connection.sendall(request.wire())
        _wait_for(held / "started", server)
        gone, during = converse(server, [post(f"{SYSTEM}/unregister"), ALL])
        (late,) = converse(server, list(source()))
        (held / "go").touch()
        answer = HTTPResponse(connection)
        answer.begin()
        answer.read()
    (after,) = converse(server, [ALL])
    names = [[region["name"] for region in seen.json] for seen in (during, after)]
    return gone.status, names[0], late.status, answer.status, names[1]


def _wait_for(path: Path, server: Server) -> None:
    for _ in range(POLLS_MAX):
        if path.exists():
            return
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(POLL_S)
    raise AssertionError(f"there is no {path}")
