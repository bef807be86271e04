"""The command line: Triton's flag names to `ServerOptions`, log lines, and exit codes."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import NoReturn

import trio

from ._version import __version__
from .actors._rate_limit_policy import parse_rate_limit_resource
from .actors.core import BYTE_BUDGET_DEFAULT
from .memory.cache_config import CacheConfig, parse_cache_config
from .options import LogOptions, ServerOptions
from .protocol.errors import RequestError
from .server import StartError, serve_until_signal

EXIT_OK = 0
EXIT_FAILED = 1
"""Any start-up failure, a wrong command line included, or a stop that ran out of time."""

_TRUE = {"true", "on", "1"}
_FALSE = {"false", "off", "0"}


class _Parser(argparse.ArgumentParser):
    """Ends with exit code 1, as Triton does, where argparse says 2."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_FAILED, f"tritrio: {message}\n")


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise argparse.ArgumentTypeError(f"expected true or false, got '{text}'")


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) <= 65535:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a port number up to 65535, got '{text}'")


def _positive(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a number above 0, got '{text}'")


def _byte_count(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a number of bytes, got '{text}'")


def _seconds(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a number of seconds, got '{text}'")


def _limit_s(text: str) -> float:
    """A positive number of seconds, or 0 for no limit."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, got '{text}'")
    return seconds or inf


def _rate_limit_resource(text: str) -> tuple[tuple[str, int | None], int]:
    try:
        return parse_rate_limit_resource(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _model_control(text: str) -> str:
    if text in {"none", "explicit"}:
        return text
    if text == "poll":
        raise argparse.ArgumentTypeError("'poll' is not supported yet, expected none or explicit")
    raise argparse.ArgumentTypeError(f"expected none or explicit, got '{text}'")


def _verbosity(text: str) -> bool:
    """Triton has levels; here there are lines for people who search a fault, or none."""
    return int(text) > 0 if text.isascii() and text.isdigit() else _boolean(text)


def _backend_setting(text: str) -> tuple[str, str, str]:
    setting, equals, value = text.partition("=")
    backend, comma, key = setting.rpartition(",")
    if not equals or not key or (comma and not backend):
        raise argparse.ArgumentTypeError(f"expected [<backend>,]<setting>=<value>, got '{text}'")
    return backend, key, value


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the server's command line."""
    parser = _Parser(
        prog="tritrio",
        description="Serve a Triton model repository over HTTP and gRPC.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tritrio {__version__}")
    add = parser.add_argument_group("models").add_argument
    add(
        "--model-repository",
        "--model-store",
        action="append",
        type=Path,
        metavar="DIR",
        help="directory of model directories; repeatable",
    )
    add(
        "--model-control-mode",
        type=_model_control,
        default="none",
        metavar="MODE",
        help="none: what the repository holds at the start is served; explicit: models are loaded "
        "and unloaded on request",
    )
    add(
        "--exit-on-error",
        type=_boolean,
        default=True,
        metavar="BOOL",
        help="end the start if a model cannot be loaded; otherwise serve the others",
    )
    add(
        "--strict-readiness",
        type=_boolean,
        default=True,
        metavar="BOOL",
        help="be ready only while every model is",
    )
    add(
        "--disable-auto-complete-config",
        action="store_true",
        help="take configurations as they are written, and require them",
    )
    add(
        "--backend-config",
        action="append",
        type=_backend_setting,
        default=[],
        metavar="[BACKEND,]KEY=VALUE",
        help="setting of one backend or of all, such as default-max-batch-size=8; repeatable",
    )
    add(
        "--model-load-timeout-secs",
        type=_limit_s,
        default=0,
        metavar="SECONDS",
        help="give up a model that takes longer to complete its configuration, or to load an "
        "instance; 0 for never",
    )
    _add_cache(parser.add_argument_group("response cache").add_argument)
    _add_scheduling(parser.add_argument_group("scheduling").add_argument)
    add = parser.add_argument_group("server").add_argument
    add("--id", default="triton", help="name in the server metadata")
    add(
        "--exit-timeout-secs",
        type=_seconds,
        default=30,
        metavar="SECONDS",
        help="what requests in flight and unloading have after SIGTERM or SIGINT",
    )
    add(
        "--byte-budget",
        type=_positive,
        default=BYTE_BUDGET_DEFAULT,
        metavar="BYTES",
        help="most bytes of request bodies and unsent responses held at once",
    )
    add(
        "--allow-client-shm",
        type=_boolean,
        default=False,
        metavar="BOOL",
        help="let clients on this machine register shared memory",
    )
    add(
        "--log-verbose",
        type=_verbosity,
        default=False,
        metavar="LEVEL|BOOL",
        help="show what models log as verbose",
    )
    for name, title, port in (("http", "HTTP", 8000), ("grpc", "gRPC", 8001)):
        add = parser.add_argument_group(title).add_argument
        add(
            f"--allow-{name}",
            type=_boolean,
            default=True,
            metavar="BOOL",
            help=f"serve {title}",
        )
        add(
            f"--{name}-address",
            default="0.0.0.0",  # noqa: S104 - Triton's default
            metavar="ADDRESS",
            help="address to listen on",
        )
        add(
            f"--{name}-port",
            type=_port,
            default=port,
            metavar="PORT",
            help="port to listen on; 0 for any free one",
        )
        add(
            f"--{name}-restricted-{'api' if name == 'http' else 'protocol'}",
            action="append",
            default=[],
            metavar="API[,API]:KEY=VALUE",
            help="calls of these APIs need this key; repeatable",
        )
        pattern = f"--{name}-header-forward-pattern"
        add(pattern, default="", help="names of headers that become parameters of requests")
        if name == "grpc":
            add(
                "--grpc-infer-response-compression-level",
                choices=["none", "low", "medium", "high"],
                default="none",
                help="how hard answers are compressed for clients that take it",
            )
        if name == "http":
            add(
                "--http-max-input-size",
                type=_positive,
                default=64 * 1024**2,
                metavar="BYTES",
                help="most bytes of the JSON of a request, of a tensor in it and of a raw body",
            )
            add(
                "--http-server",
                choices=["tritrio", "hypercorn"],
                default="tritrio",
                help="what carries HTTP: our own fast server, or hypercorn",
            )
            add(
                "--http-half-close",
                type=_boolean,
                default=False,
                metavar="BOOL",
                help="answer clients that shut their sending side down early, "
                "instead of cancelling their requests",
            )
    add = parser.add_argument_group("metrics").add_argument
    add(
        "--allow-metrics", type=_boolean, default=True, metavar="BOOL", help="serve Prometheus text"
    )
    add(
        "--metrics-address",
        default=argparse.SUPPRESS,
        metavar="ADDRESS",
        help="address to listen on (default: the HTTP address)",
    )
    add(
        "--metrics-port",
        type=_port,
        default=8002,
        metavar="PORT",
        help="port to listen on; 0 for any free one",
    )
    return parser


def _add_cache(add: Callable[..., object]) -> None:
    add(
        "--cache-config",
        action="append",
        default=[],
        metavar="CACHE,KEY=VALUE",
        help="keep responses of models with response_cache, in this process (local,size=BYTES) or "
        "in redis (redis,host=HOST redis,port=PORT ...); repeatable",
    )
    add(
        "--response-cache-byte-size",
        type=_byte_count,
        default=None,
        metavar="BYTES",
        help="the same as --cache-config local,size=BYTES",
    )


def _cache_config(parser: argparse.ArgumentParser, given: argparse.Namespace) -> CacheConfig | None:
    try:
        return parse_cache_config(
            given.cache_config,
            response_cache_byte_size=given.response_cache_byte_size,
            environment=os.environ,
        )
    except RequestError as error:
        parser.error(error.message)


def _add_scheduling(add: Callable[..., object]) -> None:
    add(
        "--rate-limit",
        choices=["off", "execution_count"],
        default="off",
        help="whether instances of all models take turns, and share resources",
    )
    add(
        "--rate-limit-resource",
        action="append",
        type=_rate_limit_resource,
        default=[],
        metavar="NAME:COUNT[:DEVICE]",
        help="how much of a resource there is, on one device or on each; repeatable",
    )
    add(
        "--instance-hang-secs",
        type=_limit_s,
        default=0,
        metavar="SECONDS",
        help="replace an instance whose execution takes longer; 0 for never",
    )
    add(
        "--overload-queue-age-secs",
        type=_limit_s,
        default=0,
        metavar="SECONDS",
        help="refuse a model's requests of low priority while its others wait longer than this for "
        "an instance; 0 for never",
    )


def parse_options(arguments: Sequence[str]) -> ServerOptions:
    """Return the options a command line asks for; exits with 1 if it cannot be understood."""
    parser = build_parser()
    given = parser.parse_args(arguments)
    if not given.model_repository:
        parser.error("--model-repository is required: name the directory that holds the models")
    backend_settings: dict[str, dict[str, str]] = {}
    for backend, key, value in given.backend_config:
        backend_settings.setdefault(backend, {})[key] = value
    ports = [
        (name, port)
        for name, allowed, port in (
            ("http", given.allow_http, given.http_port),
            ("grpc", given.allow_grpc, given.grpc_port),
            ("metrics", given.allow_metrics, given.metrics_port),
        )
        if allowed and port
    ]
    for index, (name, port) in enumerate(ports):
        for other, taken in ports[:index]:
            if port == taken:
                parser.error(f"{other} and {name} cannot both be served on port {port}")
    return ServerOptions(
        model_repositories=tuple(given.model_repository),
        server_id=given.id,
        exit_on_error=given.exit_on_error,
        strict_readiness=given.strict_readiness,
        auto_complete_config=not given.disable_auto_complete_config,
        exit_timeout_s=given.exit_timeout_secs,
        allow_client_shared_memory=given.allow_client_shm,
        backend_settings=backend_settings,
        model_control=given.model_control_mode,
        cache=_cache_config(parser, given),
        instance_hang_s=given.instance_hang_secs or inf,
        model_load_timeout_s=given.model_load_timeout_secs or inf,
        rate_limit=given.rate_limit == "execution_count",
        rate_limit_resources=dict(given.rate_limit_resource),
        overload_queue_age_s=given.overload_queue_age_secs or inf,
        byte_budget=given.byte_budget,
        http_address=given.http_address if given.allow_http else None,
        http_port=given.http_port,
        http_server=given.http_server,
        http_input_bytes_max=given.http_max_input_size,
        http_half_close=given.http_half_close,
        http_header_forward_pattern=given.http_header_forward_pattern,
        http_restricted_apis=tuple(given.http_restricted_api),
        grpc_address=given.grpc_address if given.allow_grpc else None,
        grpc_port=given.grpc_port,
        grpc_header_forward_pattern=given.grpc_header_forward_pattern,
        grpc_restricted_protocols=tuple(given.grpc_restricted_protocol),
        grpc_compression_level=given.grpc_infer_response_compression_level,
        metrics_address=(
            getattr(given, "metrics_address", given.http_address) if given.allow_metrics else None
        ),
        metrics_port=given.metrics_port,
        log=LogOptions(verbose_level=int(given.log_verbose)),
    )


def log_to_stderr(*, verbose: bool) -> None:
    """Print log lines, unless the program prints them in a way of its own."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s] %(message)s",
    )
    logging.getLogger("tritrio").setLevel(logging.DEBUG if verbose else logging.INFO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server; returns its exit code."""
    options = parse_options(sys.argv[1:] if arguments is None else arguments)
    log_to_stderr(verbose=options.log.verbose_level > 0)
    try:
        in_time = trio.run(
            serve_until_signal, options, restrict_keyboard_interrupt_to_checkpoints=True
        )
    except StartError as error:
        print(f"tritrio: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK if in_time else EXIT_FAILED
