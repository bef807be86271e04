"""What a port served over TLS needs of the standard library: a context made of files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from .listening import StartError
from .options import ServerOptions, TlsOptions

GRPC_ALPN = "h2"
HTTP_ALPN = "http/1.1"


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """The contexts of one server; None for what is not served over TLS."""

    http: ssl.SSLContext | None = None
    grpc: ssl.SSLContext | None = None


NO_TLS = TlsContexts()


def tls_contexts(options: ServerOptions) -> TlsContexts:
    """Return the contexts that the options ask for.

    Raises:
      StartError: see `tls_context`.
    """
    http, grpc = options.http_tls, options.grpc_tls
    return TlsContexts(
        http=None if http is None else tls_context("HTTP", http, alpn=HTTP_ALPN),
        grpc=None if grpc is None else tls_context("gRPC", grpc, alpn=GRPC_ALPN),
    )


def tls_context(service: str, options: TlsOptions, *, alpn: str) -> ssl.SSLContext:
    """Return a server's context: TLS 1.2 or later, with the standard library's choice of ciphers.

    Args:
      service: Whose it is, such as "HTTP", for errors.
      options: The files.
      alpn: The one protocol that is offered.

    Raises:
      StartError: a file cannot be read, or does not hold what it should; the message names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols([alpn])
    _check_certificates(service, "certificate", options.certificate)
    _check_readable(service, "key", options.key)
    try:
        # A key with a password would be asked for on the terminal.
        context.load_cert_chain(options.certificate, options.key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise StartError(
                f"the key of {service}, {options.key}, is not that of its certificate, "
                f"{options.certificate}"
            ) from error
        _refuse(service, "key", options.key, "expected a private key in PEM without a password")
    if options.mutual:
        if options.root is None:
            raise StartError(
                f"{service} is to check the certificates of clients, which needs a file of root "
                "certificates"
            )
        _check_certificates(service, "root certificates", options.root)
        context.load_verify_locations(options.root)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_certificates(service: str, what: str, path: Path) -> None:
    _check_readable(service, what, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except ssl.SSLError:
        _refuse(service, what, path, "expected certificates in PEM")


def _check_readable(service: str, what: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        _refuse(service, what, path, error.strerror or str(error))


def _refuse(service: str, what: str, path: Path, reason: str) -> NoReturn:
    raise StartError(f"the {what} of {service}, {path}, cannot be used: {reason}") from None
