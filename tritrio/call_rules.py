"""What the options say about calls: which need a key, what is forwarded, how answers are sent."""

from __future__ import annotations

from dataclasses import dataclass

from .options import ServerOptions
from .protocol.grpc_compression import compression_level
from .protocol.header_forwarding import HeaderForwarding, header_forwarding
from .protocol.openai.api_keys import ApiKeys
from .protocol.restricted_apis import (
    RestrictedMethods,
    RestrictedRoutes,
    restricted_methods,
    restricted_routes,
)


@dataclass(frozen=True, slots=True)
class CallRules:
    """The rules of one server; None for those that are not asked for.

    Attributes:
      http_restricted: HTTP calls that need a key.
      http_forwarding: HTTP headers that become parameters.
      grpc_restricted: gRPC calls that need a key.
      grpc_forwarding: Metadata that become parameters.
      grpc_compression: How hard answers are compressed, as zlib counts; 0 is not at all.
      openai_keys: The keys of clients of OpenAI's API.
    """

    http_restricted: RestrictedRoutes | None
    http_forwarding: HeaderForwarding | None
    grpc_restricted: RestrictedMethods | None
    grpc_forwarding: HeaderForwarding | None
    grpc_compression: int
    openai_keys: ApiKeys | None


def call_rules(options: ServerOptions) -> CallRules:
    """Return the rules that the options ask for.

    Raises:
      RequestError: INVALID_ARG; an option is malformed.
    """
    http, grpc = options.http_header_forward_pattern, options.grpc_header_forward_pattern
    return CallRules(
        restricted_routes(options.http_restricted_apis),
        header_forwarding(http, "--http-header-forward-pattern"),
        restricted_methods(options.grpc_restricted_protocols),
        header_forwarding(grpc, "--grpc-header-forward-pattern"),
        compression_level(options.grpc_compression_level),
        ApiKeys(options.openai_api_keys) if options.openai_api_keys else None,
    )
