"""The options about where and how the server is reached."""

from __future__ import annotations

from typing import Final

from . import kinds
from .option import Group, Option

SERVER: Final = Group(
    "server",
    (
        Option("--id", kinds.TEXT, "triton", "name in the server metadata", field="server_id"),
        Option(
            "--exit-timeout-secs",
            kinds.SECONDS,
            "30",
            "what requests in flight and unloading have after SIGTERM or SIGINT",
            field="exit_timeout_s",
        ),
    ),
)


def _tls(protocol: str, title: str) -> tuple[Option, ...]:
    return (
        Option(
            f"--{protocol}-use-ssl",
            kinds.BOOL,
            "false",
            f"serve {title} over TLS, with the two files below",
        ),
        Option(
            f"--{protocol}-use-ssl-mutual",
            kinds.BOOL,
            "false",
            "the same, and demand certificates of clients",
        ),
        Option(f"--{protocol}-server-cert", kinds.FILE, "", "PEM file of the certificate chain"),
        Option(f"--{protocol}-server-key", kinds.FILE, "", "PEM file of its private key"),
        Option(
            f"--{protocol}-root-cert",
            kinds.FILE,
            "",
            "PEM file of the certificates that those of clients are checked against",
        ),
    )


HTTP: Final = Group(
    "HTTP",
    (
        Option("--allow-http", kinds.BOOL, "true", "serve HTTP"),
        Option(
            "--http-address",
            kinds.ADDRESS,
            "0.0.0.0",  # noqa: S104 - Triton's default
            "address to listen on, or unix:PATH",
        ),
        Option(
            "--http-port",
            kinds.PORT,
            "8000",
            "port to listen on; 0 for any free one",
            field="http_port",
        ),
        Option(
            "--reuse-http-port",
            kinds.BOOL,
            "false",
            "let several processes listen on the port",
            field="http_reuse_port",
        ),
        Option(
            "--http-max-input-size",
            kinds.BYTES,
            "67108864",
            "most bytes of the JSON of a request, of a tensor in it and of a raw body",
            field="http_input_bytes_max",
        ),
        Option(
            "--http-header-forward-pattern",
            kinds.EXPRESSION,
            "",
            "headers whose names it is found in become parameters of inference requests",
            field="http_header_forward_pattern",
        ),
        Option(
            "--http-restricted-api",
            kinds.RESTRICTION,
            "",
            "calls that need the header KEY with this value; repeatable",
            field="http_restricted_apis",
            repeatable=True,
        ),
        Option(
            "--openai-api-key-file",
            kinds.FILE,
            "",
            "file of keys, one a line; calls below /v1 need one of them as bearer token",
        ),
        *_tls("http", "HTTP"),
        Option(
            "--http-server",
            kinds.choice("tritrio", "hypercorn"),
            "tritrio",
            "what carries HTTP: our own fast server, or hypercorn",
            field="http_server",
        ),
        Option(
            "--http-half-close",
            kinds.BOOL,
            "false",
            "answer clients that shut their sending side down early, instead of cancelling their "
            "requests",
            field="http_half_close",
        ),
    ),
)

GRPC: Final = Group(
    "gRPC",
    (
        Option("--allow-grpc", kinds.BOOL, "true", "serve gRPC"),
        Option(
            "--grpc-address",
            kinds.ADDRESS,
            "0.0.0.0",  # noqa: S104 - Triton's default
            "address to listen on, or unix:PATH",
        ),
        Option(
            "--grpc-port",
            kinds.PORT,
            "8001",
            "port to listen on; 0 for any free one",
            field="grpc_port",
        ),
        Option(
            "--reuse-grpc-port",
            kinds.BOOL,
            "false",
            "let several processes listen on the port",
            field="grpc_reuse_port",
        ),
        Option(
            "--grpc-header-forward-pattern",
            kinds.EXPRESSION,
            "",
            "metadata whose keys it is found in become parameters of inference requests",
            field="grpc_header_forward_pattern",
        ),
        Option(
            "--grpc-restricted-protocol",
            kinds.RESTRICTION,
            "",
            "calls that need the metadata triton-grpc-protocol-KEY with this value; repeatable",
            field="grpc_restricted_protocols",
            repeatable=True,
        ),
        *_tls("grpc", "gRPC"),
        Option(
            "--grpc-infer-response-compression-level",
            kinds.choice("none", "low", "medium", "high"),
            "none",
            "how hard responses are compressed for clients that take it",
            field="grpc_compression_level",
        ),
        Option(
            "--grpc-keepalive-time",
            kinds.MILLISECONDS_ABOVE_0,
            "7200000",
            "time without anything from a client until it is pinged",
            field="grpc_keep_alive.time_s",
        ),
        Option(
            "--grpc-keepalive-timeout",
            kinds.MILLISECONDS_ABOVE_0,
            "20000",
            "what it has to answer before its connection is closed",
            field="grpc_keep_alive.timeout_s",
        ),
        Option(
            "--grpc-keepalive-permit-without-calls",
            kinds.BOOL,
            "false",
            "ping connections without calls, and let them ping, too",
            field="grpc_keep_alive.permit_without_calls",
        ),
        Option(
            "--grpc-http2-max-pings-without-data",
            kinds.NATURAL,
            "2",
            "pings in a row without anything else sent between; 0 for no limit",
            field="grpc_keep_alive.pings_without_data_max",
        ),
        Option(
            "--grpc-http2-min-recv-ping-interval-without-data",
            kinds.MILLISECONDS,
            "300000",
            "least time between a client's pings without anything sent between",
            field="grpc_keep_alive.ping_interval_min_s",
        ),
        Option(
            "--grpc-http2-max-ping-strikes",
            kinds.NATURAL,
            "2",
            "pings that come too soon before the connection is closed; 0 for no limit",
            field="grpc_keep_alive.ping_strikes_max",
        ),
        Option(
            "--grpc-max-connection-age",
            kinds.MILLISECONDS,
            "0",
            "time after which a connection is told to go; 0 for never",
            field="grpc_keep_alive.connection_age_max_s",
        ),
        Option(
            "--grpc-max-connection-age-grace",
            kinds.MILLISECONDS,
            "0",
            "what its calls have then; 0 for no limit",
            field="grpc_keep_alive.connection_age_grace_s",
        ),
    ),
)
