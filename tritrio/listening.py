"""Where a server listens: TCP and unix sockets, opened, named in errors, and removed at the end."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, final

import trio

UNIX_PREFIX = "unix:"
"""An address that begins so goes on with the path of a unix socket, as in gRPC's targets."""

BACKLOG = 4096
"""Connections that wait to be accepted; the kernel bounds it further (net.core.somaxconn)."""

_NOT_HERE = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL}
"""A name may have addresses of a family that this machine lacks, beside others."""

SocketAddress: TypeAlias = "tuple[str, int] | tuple[str, int, int, int] | str"


class StartError(Exception):
    """The server cannot start; the message says which part and why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one service is to listen.

    Attributes:
      service: What people call it, such as "HTTP".
      address: A name or number of an interface, or `unix:PATH`; None for nowhere.
      port: TCP port; 0 for any free one. Not used for a unix socket.
      reuse_port: Whether other processes that ask for it, too, may listen on the same port.
    """

    service: str
    address: str | None
    port: int
    reuse_port: bool = False

    def __str__(self) -> str:
        address = self.address or ""
        return address if address.startswith(UNIX_PREFIX) else host_and_port(address, self.port)


@dataclass(frozen=True, slots=True)
class BoundAddresses:
    """Where a server listens; None for what is switched off.

    Attributes:
      http: Host and port of HTTP; for a unix socket `unix:PATH` and 0.
      grpc: The same of gRPC.
      metrics: The same of metrics.
      sagemaker: The same of the SageMaker endpoint.
      vertex_ai: The same of the Vertex AI endpoint.
    """

    http: tuple[str, int] | None
    grpc: tuple[str, int] | None
    metrics: tuple[str, int] | None
    sagemaker: tuple[str, int] | None = None
    vertex_ai: tuple[str, int] | None = None

    def lines(self, *, http_tls: bool = False, grpc_tls: bool = False) -> list[str]:
        """Say it, a service a line.

        Args:
          http_tls: Whether HTTP is served over TLS.
          grpc_tls: Whether gRPC is.
        """
        return [
            f"{service} is served on {address_text(address)}{' over TLS' if tls else ''}"
            for service, address, tls in (
                ("HTTP", self.http, http_tls),
                ("gRPC", self.grpc, grpc_tls),
                ("metrics", self.metrics, False),
                ("SageMaker", self.sagemaker, False),
                ("Vertex AI", self.vertex_ai, False),
            )
            if address is not None
        ]


@final
@dataclass(slots=True)
class OpenPorts:
    """The sockets of one server.

    Attributes:
      services: Local address -> the service that has it.
      unix_sockets: Path -> what tells its file from another one.
    """

    services: dict[SocketAddress, str] = field(default_factory=dict)
    unix_sockets: dict[Path, tuple[int, int, int]] = field(default_factory=dict)

    async def listen(self, place: Place) -> list[trio.SocketListener]:
        """Open the sockets of one service: one for each address that its name stands for.

        The caller owns the listeners, and calls `remove_files` once they are closed.

        Raises:
          StartError: nothing can listen there; the message names service, address and port.
        """
        if place.address is None:
            return []
        try:
            if place.address.startswith(UNIX_PREFIX):
                sockets = [self._open_unix(place)]
            else:
                sockets = await self._open_tcp(place, place.address)
        except (OSError, UnicodeError) as error:  # the latter where it can be no name at all
            reason = getattr(error, "strerror", None) or str(error)
            raise StartError(f"{place.service} cannot be served on {place}: {reason}") from error
        for sock in sockets:
            self.services[sock.getsockname()] = place.service
        return [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in sockets]

    async def _open_tcp(self, place: Place, host: str) -> list[socket.socket]:
        found = await trio.socket.getaddrinfo(
            host, place.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sockets: list[socket.socket] = []
        missing: OSError | None = None
        port = place.port
        try:
            for family, _, _, _, (host_number, _, *scope) in found:
                # Whatever port the first got is for all of them.
                address: SocketAddress = (str(host_number), port, *scope)  # type: ignore[assignment]
                self._check_free(place, address)
                try:
                    sock = socket.create_server(
                        address,
                        family=family,
                        backlog=BACKLOG,
                        reuse_port=place.reuse_port,
                    )
                except OSError as error:
                    number = error.errno or 0
                    missing = OSError(number, os.strerror(number))  # without `create_server`'s
                    if number not in _NOT_HERE:
                        raise missing from error
                    continue
                sockets.append(sock)
                port = sock.getsockname()[1]
            if not sockets and missing is not None:
                raise missing
        except BaseException:
            for sock in sockets:
                sock.close()
            raise
        return sockets

    def _check_free(self, place: Place, address: SocketAddress) -> None:
        """Two services that may both reuse a port would share it, each with half the clients."""
        other = self.services.get(address)
        if other is not None:
            raise StartError(
                f"{place.service} cannot be served on {place}: {other} is served there"
            )

    def _open_unix(self, place: Place) -> socket.socket:
        assert place.address is not None
        path = Path(place.address.removeprefix(UNIX_PREFIX))
        self._check_free(place, str(path))
        _remove_stale(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(str(path))
            sock.listen(BACKLOG)
            identity = _identity(path)
        except BaseException:
            sock.close()
            raise
        self.unix_sockets[path] = identity
        return sock

    def remove_files(self) -> None:
        """Remove the files of unix sockets, but for those that another server has replaced."""
        for path, known in self.unix_sockets.items():
            with suppress(OSError):
                if _identity(path) == known:
                    path.unlink()
        self.unix_sockets.clear()


def _identity(path: Path) -> tuple[int, int, int]:
    """Return what no two files have in common; the number of one that is gone may come again."""
    status = path.lstat()
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _remove_stale(path: Path) -> None:
    """Remove the file of a unix socket on which nobody listens any more.

    Raises:
      OSError: somebody does, or the file is something else.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise OSError(errno.EEXIST, "there is a file that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a listener whose backlog is full is one, too
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, "somebody listens there")
    path.unlink(missing_ok=True)


def host_and_port(host: str, port: int) -> str:
    """Return both as people write them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def bound_address(listeners: list[trio.SocketListener]) -> tuple[str, int] | None:
    """Return where listeners listen: host and port, or `unix:PATH` and 0."""
    if not listeners:
        return None
    name = listeners[0].socket.getsockname()
    if isinstance(name, str):
        return f"{UNIX_PREFIX}{name}", 0
    host, port = name[:2]
    return host, port


def address_text(address: tuple[str, int]) -> str:
    """Return what `bound_address` returned as people write it."""
    host, port = address
    return host if host.startswith(UNIX_PREFIX) else host_and_port(host, port)
