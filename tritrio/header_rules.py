"""What the options say about headers of clients: which calls need a key, and what is forwarded."""

from __future__ import annotations

from dataclasses import dataclass

from .options import ServerOptions
from .protocol.header_forwarding import HeaderForwarding, header_forwarding
from .protocol.restricted_apis import (
    RestrictedMethods,
    RestrictedRoutes,
    restricted_methods,
    restricted_routes,
)


@dataclass(frozen=True, slots=True)
class HeaderRules:
    """The rules of one server; None for those that are not asked for."""

    http_restricted: RestrictedRoutes | None
    http_forwarding: HeaderForwarding | None
    grpc_restricted: RestrictedMethods | None
    grpc_forwarding: HeaderForwarding | None


def header_rules(options: ServerOptions) -> HeaderRules:
    """Return the rules that the options ask for.

    Raises:
      RequestError: INVALID_ARG; an option is malformed.
    """
    http, grpc = options.http_header_forward_pattern, options.grpc_header_forward_pattern
    return HeaderRules(
        restricted_routes(options.http_restricted_apis),
        header_forwarding(http, "--http-header-forward-pattern"),
        restricted_methods(options.grpc_restricted_protocols),
        header_forwarding(grpc, "--grpc-header-forward-pattern"),
    )
