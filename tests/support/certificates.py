"""Certificates for tests: an authority, and what it has signed."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

from tritrio.options import TlsOptions

NAME = "localhost"


@dataclass(frozen=True)
class Certificates:
    """Files of one authority; `stranger` has signed a client's, too, and nobody trusts it.

    Attributes:
      root: The authority's certificate.
      server: Certificate and key for `localhost` and 127.0.0.1.
      client: Certificate and key of a client.
      stranger: Certificate and key of a client, from another authority.
    """

    root: Path
    server: tuple[Path, Path]
    client: tuple[Path, Path]
    stranger: tuple[Path, Path]

    def options(self, *, mutual: bool = False) -> TlsOptions:
        """What a server is told."""
        certificate, key = self.server
        return TlsOptions(certificate=certificate, key=key, root=self.root, mutual=mutual)

    def client_context(
        self, *, alpn: tuple[str, ...] = (), identity: tuple[Path, Path] | None = None
    ) -> ssl.SSLContext:
        """What a client of the standard library is told."""
        context = ssl.create_default_context(cafile=str(self.root))
        if alpn:
            context.set_alpn_protocols(list(alpn))
        if identity is not None:
            context.load_cert_chain(*identity)
        return context


def write_certificates(directory: Path) -> Certificates:
    """Make an authority and its certificates."""
    authority, other = trustme.CA(), trustme.CA()
    root = directory / "root.pem"
    authority.cert_pem.write_to_path(str(root))

    def issue(name: str, by: trustme.CA, *identities: str) -> tuple[Path, Path]:
        issued = by.issue_cert(*identities)
        certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(str(certificate))
        issued.private_key_pem.write_to_path(str(key))
        return certificate, key

    return Certificates(
        root=root,
        server=issue("server", authority, NAME, "127.0.0.1"),
        client=issue("client", authority, "client@example.org"),
        stranger=issue("stranger", other, "client@example.org"),
    )
