"""Sockets that a server listens on: which, whose, shared with whom, and what is left of them."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from tritrio.listening import (
    OpenPorts,
    Place,
    StartError,
    address_text,
    bound_address,
)

HOST = "127.0.0.1"


@contextmanager
def closing(*groups: list[trio.SocketListener]) -> Iterator[None]:
    try:
        yield
    finally:
        for listener in (each for group in groups for each in group):
            listener.socket.close()


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


async def refusal(opened: OpenPorts, place: Place) -> str:
    with pytest.raises(StartError) as raised:
        await opened.listen(place)
    return str(raised.value)


async def test_service_without_an_address_has_no_listeners() -> None:
    listeners = await OpenPorts().listen(Place("HTTP", None, 8000))
    assert listeners == []
    assert bound_address(listeners) is None


@pytest.mark.parametrize("host", [HOST, "::1", "0.0.0.0", "::"])
async def test_number_of_an_interface_is_listened_on_at_a_free_port(host: str) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    listeners = await OpenPorts().listen(Place("HTTP", host, 0))
    with closing(listeners):
        bound = bound_address(listeners)
        assert bound is not None
        assert bound[0] == host
        assert bound[1] > 0
        text = f"[{host}]" if ":" in host else host
        assert address_text(bound) == f"{text}:{bound[1]}"
        reached = {HOST: HOST, "0.0.0.0": HOST}.get(host, "::1")
        async with await trio.open_tcp_stream(reached, bound[1]):
            pass


async def test_all_addresses_of_a_name_have_one_port() -> None:
    listeners = await OpenPorts().listen(Place("HTTP", "localhost", 0))
    with closing(listeners):
        names = {listener.socket.getsockname()[:2] for listener in listeners}
        (port,) = {port for _, port in names}
        assert (HOST, port) in names


async def test_unknown_name_is_refused() -> None:
    text = await refusal(OpenPorts(), Place("gRPC", "no.such.host.invalid", 8001))
    assert text.startswith("gRPC cannot be served on no.such.host.invalid:8001: ")


async def test_address_of_another_machine_is_refused() -> None:
    text = await refusal(OpenPorts(), Place("HTTP", "192.0.2.1", 8000))
    assert text == "HTTP cannot be served on 192.0.2.1:8000: Cannot assign requested address"


async def test_port_in_use_is_refused_with_service_address_and_port() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        text = await refusal(OpenPorts(), Place("metrics", HOST, port))
    assert text == f"metrics cannot be served on {HOST}:{port}: Address already in use"


async def test_port_is_shared_with_those_that_ask_for_it_too() -> None:
    place = Place("HTTP", HOST, 0, reuse_port=True)
    first = await OpenPorts().listen(place)
    with closing(first):
        bound = bound_address(first)
        assert bound is not None
        again = Place("HTTP", HOST, bound[1], reuse_port=True)
        second = await OpenPorts().listen(again)
        with closing(second):
            assert bound_address(second) == bound
        text = await refusal(OpenPorts(), Place("HTTP", HOST, bound[1]))
        assert text.endswith("Address already in use")


async def test_two_services_of_one_server_do_not_share_a_port() -> None:
    opened = OpenPorts()
    first = await opened.listen(Place("HTTP", HOST, 0, reuse_port=True))
    with closing(first):
        bound = bound_address(first)
        assert bound is not None
        text = await refusal(opened, Place("gRPC", HOST, bound[1], reuse_port=True))
        assert text == f"gRPC cannot be served on {HOST}:{bound[1]}: HTTP is served there"


# Unix sockets.


async def test_unix_socket_is_listened_on_and_removed_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    opened = OpenPorts()
    listeners = await opened.listen(Place("HTTP", f"unix:{path}", 0))
    with closing(listeners):
        bound = bound_address(listeners)
        assert bound == (f"unix:{path}", 0)
        assert address_text(bound) == f"unix:{path}"
        async with await trio.open_unix_socket(path):
            accepted = await listeners[0].accept()
            await accepted.aclose()
    opened.remove_files()
    assert not path.exists()


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o700), (0o022, 0o755)])
async def test_umask_says_who_may_connect(tmp_path: Path, umask: int, mode: int) -> None:
    path = tmp_path / "socket"
    before = os.umask(umask)
    try:
        listeners = await OpenPorts().listen(Place("HTTP", f"unix:{path}", 0))
    finally:
        os.umask(before)
    with closing(listeners):
        assert stat.S_IMODE(path.stat().st_mode) == mode


async def test_socket_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    listeners = await OpenPorts().listen(Place("HTTP", f"unix:{path}", 0))
    with closing(listeners):
        async with await trio.open_unix_socket(path):
            pass


@pytest.mark.parametrize("backlog", [10, 0])
async def test_socket_that_somebody_listens_on_is_left_to_them(
    tmp_path: Path, backlog: int
) -> None:
    """Also if so many wait there that nobody else can connect."""
    path = tmp_path / "socket"
    with (
        socket.socket(socket.AF_UNIX) as alive,
        socket.socket(socket.AF_UNIX) as waiting,
    ):
        alive.bind(str(path))
        alive.listen(backlog)
        waiting.connect(str(path))
        text = await refusal(OpenPorts(), Place("HTTP", f"unix:{path}", 0))
        assert text == f"HTTP cannot be served on unix:{path}: somebody listens there"
        assert path.is_socket()


async def test_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    text = await refusal(OpenPorts(), Place("gRPC", f"unix:{path}", 0))
    assert text == f"gRPC cannot be served on unix:{path}: there is a file that is no socket"
    assert path.read_text() == "data"


async def test_path_that_cannot_be_a_socket_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "socket"
    text = await refusal(OpenPorts(), Place("HTTP", f"unix:{missing}", 0))
    assert text == f"HTTP cannot be served on unix:{missing}: No such file or directory"
    text = await refusal(OpenPorts(), Place("HTTP", f"unix:/tmp/{'x' * 200}", 0))
    assert text.endswith("path too long")


async def test_two_services_do_not_share_a_unix_socket(tmp_path: Path) -> None:
    opened = OpenPorts()
    address = f"unix:{tmp_path / 'socket'}"
    first = await opened.listen(Place("HTTP", address, 0))
    with closing(first):
        text = await refusal(opened, Place("gRPC", address, 0))
        assert text == f"gRPC cannot be served on {address}: HTTP is served there"


async def test_socket_that_another_server_has_replaced_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    opened = OpenPorts()
    first = await opened.listen(Place("HTTP", f"unix:{path}", 0))
    with closing(first):
        pass
    second = await OpenPorts().listen(Place("HTTP", f"unix:{path}", 0))
    with closing(second):
        opened.remove_files()
        async with await trio.open_unix_socket(path):
            pass
