"""TLS: a `ByteStream` over another one, by the standard library's OpenSSL working in memory.

Like the stream below it, it writes at once what can be written without waiting. trio's own
`SSLStream` always waits, and one that was cancelled while it wrote can write no more; answers of
200 bytes took it 1.5 times as long, and of a megabyte twice.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import final

import trio

from ..protocol.tensors import Buffer
from .byte_stream import JOIN_BYTES_MAX, RECEIVE_BYTES_MAX, SocketStream

HANDSHAKE_S = 10.0
"""What a handshake may take, waiting for its turn included: two round trips, however far."""

HANDSHAKES_MAX = 256
"""Handshakes at a time. Each holds some 50 KiB that the byte budget does not know of; more clients
wait, with no more than their sockets, for others to finish or to run out of time. A turn begins
with a client's first bytes, so that those who connect early and say nothing hold nobody up."""

SEND_BYTES_MAX = 256 * 1024
"""Most bytes encrypted at a time: a large answer must not hold the loop for longer."""

RECORD_BYTES_MAX = 16 * 1024
"""The most that TLS puts into one record, and so that one read returns."""

OPENSSL_OUTPUT_BYTES_MAX = 64 * 1024
"""What OpenSSL may owe a peer that sends without reading, such as alerts and new keys."""

_log = logging.getLogger("tritrio.frontend")


class HandshakeError(Exception):
    """The client does not speak TLS, or not as it has to; the message says what is wrong."""


@final
class TlsStream:
    """The server's end of one TLS connection; owns the stream below it.

    Call `do_handshake` first, and nothing after it has failed but `aclose`.

    Args:
      stream: Carries the encrypted bytes.
      context: Certificates and rules.
    """

    def __init__(self, stream: SocketStream, context: ssl.SSLContext) -> None:
        self._stream = stream
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent: list[Buffer] = []  # encrypted, in order
        self._said_goodbye = False
        self._ended = False  # whether the peer has said goodbye, or left without

    @property
    def sent_bytes(self) -> int:
        """See `ByteStream`; encrypted ones."""
        return self._stream.sent_bytes

    @property
    def alpn(self) -> str | None:
        """The protocol that both sides have agreed on, if any."""
        return self._tls.selected_alpn_protocol()

    async def do_handshake(self) -> None:
        """Agree with the client on keys.

        Raises:
          HandshakeError: it went wrong.
          trio.BrokenResourceError: the connection was reset.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._send_output()
                if not await self._receive():
                    raise HandshakeError("the client left during the handshake") from None
            except ssl.SSLError as error:
                with suppress(trio.BrokenResourceError):
                    self._send_output_nowait()  # the alert that says why
                raise HandshakeError(error.reason or str(error)) from error
            else:
                await self._send_output()
                return

    async def receive_some(self) -> bytes:
        """See `ByteStream`; it ends with the peer's goodbye or without."""
        tls, incoming = self._tls, self._incoming
        waited = False
        while not self._ended:
            pieces: list[bytes] = []
            size = 0
            try:
                while size < RECEIVE_BYTES_MAX and (
                    tls.pending() or incoming.pending or incoming.eof
                ):
                    piece = tls.read(RECORD_BYTES_MAX)
                    if not piece:
                        self._ended = True  # the goodbye; an error once we have said ours
                        break
                    pieces.append(piece)
                    size += len(piece)
            except ssl.SSLWantReadError:
                pass  # half a record
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                self._ended = True
            except ssl.SSLError as error:
                with suppress(trio.BrokenResourceError):
                    self._send_output_nowait()  # the alert that says why
                raise trio.BrokenResourceError from error
            if self._outgoing.pending:  # such as that it agrees on no keys anew
                self._send_output_nowait()
            if pieces:
                if not waited:
                    await trio.lowlevel.checkpoint()
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if self._outgoing.pending > OPENSSL_OUTPUT_BYTES_MAX:
                raise trio.BrokenResourceError
            if not self._ended:
                await self._receive()
                waited = True
        await trio.lowlevel.checkpoint()
        return b""

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """See `ByteStream`; one that is cancelled leaves the stream as good as before."""
        rest = self.send_nowait(buffers)
        while True:
            await self._send_unsent()
            if not rest:
                return
            rest = self.send_nowait(rest)

    def send_nowait(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """See `ByteStream`; what is left may be empty bytes, if all is encrypted but not sent."""
        rest = list(buffers)
        if not self._send_output_nowait():
            return rest or [b""]
        left = SEND_BYTES_MAX
        while rest and left > 0:
            piece, rest = _take(rest)
            left -= len(piece)
            if piece:
                try:
                    self._tls.write(piece)
                except ssl.SSLError as error:
                    raise trio.BrokenResourceError from error
            if not self._send_output_nowait():
                return rest or [b""]
        return rest

    async def send_eof(self) -> None:
        """See `ByteStream`: say goodbye, which in TLS ends one direction only, too."""
        self._say_goodbye()
        await self._send_output()
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """See `ByteStream`; says goodbye if that takes no waiting, and waits for no answer."""
        with suppress(trio.BrokenResourceError):
            self._say_goodbye()
            self._send_output_nowait()
        await self._stream.aclose()

    def _say_goodbye(self) -> None:
        if not self._said_goodbye:
            self._said_goodbye = True
            with suppress(ssl.SSLError):  # it wants the peer's, too, or there never was a handshake
                self._tls.unwrap()

    async def _receive(self) -> bool:
        """Wait for encrypted bytes; False at their end."""
        data = await self._stream.receive_some()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return bool(data)

    def _send_output_nowait(self) -> bool:
        """Write what is encrypted as far as that goes; whether that is all."""
        if self._outgoing.pending:
            self._unsent.append(self._outgoing.read())
        if self._unsent:
            self._unsent = self._stream.send_nowait(self._unsent)
        return not self._unsent

    async def _send_output(self) -> None:
        self._send_output_nowait()
        await self._send_unsent()

    async def _send_unsent(self) -> None:
        """Write all that is encrypted."""
        while self._unsent:
            await self._stream.wait_writable()
            self._send_output_nowait()


def _take(buffers: list[Buffer]) -> tuple[Buffer, list[Buffer]]:
    """Return what is encrypted next, at most `JOIN_BYTES_MAX` bytes, and the rest."""
    first = buffers[0]
    if len(first) >= JOIN_BYTES_MAX:
        view = memoryview(first)
        rest = view[JOIN_BYTES_MAX:]
        return view[:JOIN_BYTES_MAX], [rest, *buffers[1:]] if rest else buffers[1:]
    size = count = 0
    for buffer in buffers:
        if size + len(buffer) > JOIN_BYTES_MAX:
            break
        size += len(buffer)
        count += 1
    piece = first if count == 1 else b"".join(buffers[:count])
    return piece, buffers[count:]


@final
class TlsAcceptor:
    """Turns accepted connections into TLS streams.

    Args:
      context: Certificates and rules.
      alpn: The protocol that a client has to agree on; None takes clients that name none.
    """

    def __init__(self, context: ssl.SSLContext, *, alpn: str | None) -> None:
        self._context = context
        self._alpn = alpn
        self._turns = trio.CapacityLimiter(HANDSHAKES_MAX)

    async def accept(self, stream: SocketStream) -> TlsStream | None:
        """Agree with a client on keys, within the time for it; None, and closed, if that failed."""
        closing: TlsStream | SocketStream = stream
        try:
            with trio.move_on_after(HANDSHAKE_S):
                await stream.wait_readable()
                async with self._turns:
                    closing = tls = TlsStream(stream, self._context)
                    await tls.do_handshake()
                if self._alpn is None or tls.alpn == self._alpn:
                    return tls
                _log.debug("a TLS client did not offer %s", self._alpn)
        except (HandshakeError, trio.BrokenResourceError) as error:
            _log.debug("a TLS handshake failed: %s", error)
        except BaseException:
            stream.close()
            raise
        await closing.aclose()
        return None
