"""Makes of the options that are given what the server takes, and checks them against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..memory.cache_config import parse_cache_config
from ..options import GrpcKeepAlive, ServerOptions, TlsOptions
from ..protocol.errors import RequestError
from ..protocol.log_settings import LogSettings
from ..protocol.openai.api_keys import KEY_CHARACTERS_MAX, KEYS_MAX, read_keys
from .clouds import check_safe_ports, in_vertex_ai, sagemaker_options, vertex_ai_options
from .errors import CommandLineError
from .parsing import build_parser
from .tables import OPTIONS

UNIX: Final = "unix:"
"""In front of an address that is a path."""
ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - Triton's default
LOOPBACK: Final = "127.0.0.1"
API_KEYS_VARIABLE: Final = "TRITRIO_OPENAI_API_KEYS"
"""Of the environment: keys of OpenAI's API, with commas between."""
KEY_FILE_CHARACTERS_MAX: Final = KEYS_MAX * (KEY_CHARACTERS_MAX + 1)
"""What is read of a file of keys: as much as they may have."""
_WILDCARDS: Final = {ANY_ADDRESS, "::"}
_NESTED: Final[dict[str, Callable[..., Any]]] = {
    "log": LogSettings,
    "grpc_keep_alive": GrpcKeepAlive,
}
"""The fields of `ServerOptions` that options fill a part of."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a command line asks for.

    Attributes:
      options: Of the server.
      warnings: What its author should know: a sentence for each option that is deprecated or has
        no effect.
    """

    options: ServerOptions
    warnings: tuple[str, ...]


def parse_command_line(arguments: Sequence[str], environment: Mapping[str, str]) -> CommandLine:
    """Return what a command line asks for; exits with 1 if it cannot be understood.

    Args:
      arguments: Without the program's name.
      environment: Where redis's address and credentials are looked for.
    """
    parser = build_parser()
    given = parser.given(arguments)
    try:
        return CommandLine(_options(given, environment), tuple(_warnings(given)))
    except CommandLineError as error:
        parser.error(str(error))
    except RequestError as error:
        parser.error(error.message)


def _options(given: Mapping[str, Any], environment: Mapping[str, str]) -> ServerOptions:
    repositories: list[Path] = given.get("--model-repository", [])
    if not repositories and environment.get("AIP_STORAGE_URI"):
        repositories = [Path(environment["AIP_STORAGE_URI"])]
    if not repositories:
        raise CommandLineError(
            "--model-repository is required: name the directory that holds the models"
        )
    http: str = given.get("--http-address", ANY_ADDRESS)
    grpc: str = given.get("--grpc-address", ANY_ADDRESS)
    both = not in_vertex_ai(environment)
    addresses = {
        "http": http if given.get("--allow-http", both) else None,
        "grpc": grpc if given.get("--allow-grpc", both) else None,
        "metrics": (
            given.get("--metrics-address", _beside(http))
            if given.get("--allow-metrics", True)
            else None
        ),
    }
    fields = _plain_fields(given)
    options = ServerOptions(
        model_repositories=tuple(sorted(set(repositories))),
        auto_complete_config=not _strict_config(given),
        startup_models=_startup_models(given),
        backend_settings=_backend_settings(given),
        cache=parse_cache_config(
            given.get("--cache-config", []),
            response_cache_byte_size=given.get("--response-cache-byte-size"),
            environment=environment,
        ),
        rate_limit=given.get("--rate-limit") == "execution_count",
        rate_limit_resources=dict(given.get("--rate-limit-resource", [])),
        http_address=addresses["http"],
        http_tls=_tls(given, "http"),
        openai_api_keys=_api_keys(given.get("--openai-api-key-file"), environment),
        grpc_address=addresses["grpc"],
        grpc_tls=_tls(given, "grpc"),
        metrics_address=addresses["metrics"],
        sagemaker=sagemaker_options(given, environment, _beside(http)),
        vertex_ai=vertex_ai_options(given, environment, _beside(http)),
        trace_config=tuple(_trace_config(given)),
        **fields,
    )
    places = _places(options)
    _check_places(places)
    safe: range | None = given.get("--sagemaker-safe-port-range")
    check_safe_ports(safe, [(name, port) for name, _, port in places if name != "SageMaker"])
    return options


def _plain_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that one option each fills."""
    fields: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {name: {} for name in _NESTED}
    for option in OPTIONS:
        if not option.field or option.name not in given:
            continue
        value = given[option.name]
        if option.repeatable:
            value = tuple(value)
        outer, dot, inner = option.field.partition(".")
        if dot:
            parts[outer][inner] = value
        else:
            fields[outer] = value
    return fields | {name: make(**parts[name]) for name, make in _NESTED.items()}


def _strict_config(given: Mapping[str, Any]) -> bool:
    old: bool = given.get("--strict-model-config", False)
    new: bool = given.get("--disable-auto-complete-config", old)
    return new


def _startup_models(given: Mapping[str, Any]) -> tuple[str, ...]:
    names: list[str] = given.get("--load-model", [])
    if names and given.get("--model-control-mode") != "explicit":
        raise CommandLineError("--load-model needs --model-control-mode=explicit")
    if "*" in names and set(names) != {"*"}:
        others = ", ".join(f"'{name}'" for name in dict.fromkeys(names) if name != "*")
        raise CommandLineError(
            f"--load-model='*' means all models and must be the only name, got {others} beside it"
        )
    return tuple(dict.fromkeys(names))


def _backend_settings(given: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    settings: dict[str, dict[str, str]] = {}
    for backend, key, value in given.get("--backend-config", []):
        settings.setdefault(backend, {})[key] = value
    return settings


def _beside(http_address: str) -> str:
    """Return the address of other services: where HTTP is.

    A path holds one service only; whoever chose one lets nobody in from outside.
    """
    return LOOPBACK if http_address.startswith(UNIX) else http_address


def _tls(given: Mapping[str, Any], protocol: str) -> TlsOptions | None:
    """Return the files that a protocol is served over TLS with; None for none."""
    mutual: bool = given.get(f"--{protocol}-use-ssl-mutual", False)
    if not (mutual or given.get(f"--{protocol}-use-ssl", False)):
        return None
    files: dict[str, Path | None] = {}
    for what in ("server-cert", "server-key", "root-cert"):
        name = f"--{protocol}-{what}"
        path: Path | None = given.get(name)
        if path is not None and not path.is_file():
            raise CommandLineError(f"{name}: expected a PEM file, got '{path}'")
        files[what] = path
    certificate, key, root = files["server-cert"], files["server-key"], files["root-cert"]
    if certificate is None or key is None:
        raise CommandLineError(
            f"--{protocol}-use-ssl needs --{protocol}-server-cert and --{protocol}-server-key"
        )
    if mutual and root is None:
        raise CommandLineError(f"--{protocol}-use-ssl-mutual needs --{protocol}-root-cert")
    return TlsOptions(certificate=certificate, key=key, root=root, mutual=mutual)


def _api_keys(path: Path | None, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys of OpenAI's API, from the file and from the environment.

    Either of them without a key is a mistake: it must not let everybody in.
    """
    keys: list[str] = []
    if path is not None:
        try:
            with path.open(encoding="utf-8") as file:
                text = file.read(KEY_FILE_CHARACTERS_MAX + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise CommandLineError(f"--openai-api-key-file: no key in '{path}': {error}") from None
        if len(text) > KEY_FILE_CHARACTERS_MAX:
            raise CommandLineError(
                f"--openai-api-key-file: expected at most {KEY_FILE_CHARACTERS_MAX} characters in "
                f"'{path}', got more"
            )
        found = read_keys(text)
        if not found:
            raise CommandLineError(f"--openai-api-key-file: expected a key a line in '{path}'")
        keys += found
    value = environment.get(API_KEYS_VARIABLE)
    if value is not None:
        found = read_keys(value.replace(",", "\n"))
        if not found:
            raise CommandLineError(f"{API_KEYS_VARIABLE}: expected keys, with commas between")
        keys += found
    return tuple(keys)


def _trace_config(given: Mapping[str, Any]) -> Iterable[str]:
    """Give the new option's settings, and those of deprecated ones that it does not set."""
    settings: list[str] = given.get("--trace-config", [])
    yield from settings
    known = {setting.partition("=")[0] for setting in settings}
    for option in OPTIONS:
        if option.instead == "--trace-config" and option.name in given:
            key = option.help.partition(";")[0]
            values = given[option.name] if option.repeatable else [given[option.name]]
            if key not in known:
                yield from (f"{key}={value}" for value in values)


def _places(options: ServerOptions) -> list[tuple[str, str, int]]:
    """Return name, address and port of each service that is asked for."""
    clouds = [("SageMaker", options.sagemaker), ("Vertex AI", options.vertex_ai)]
    return [
        (name, address, port)
        for name, address, port in (
            ("HTTP", options.http_address, options.http_port),
            ("gRPC", options.grpc_address, options.grpc_port),
            ("metrics", options.metrics_address, options.metrics_port),
            *((name, cloud.address, cloud.port) for name, cloud in clouds if cloud is not None),
        )
        if address is not None
    ]


def _check_places(places: Sequence[tuple[str, str, int]]) -> None:
    """Refuse two services in one place."""
    for index, (name, address, port) in enumerate(places):
        for other, taken_address, taken_port in places[:index]:
            paths = address.startswith(UNIX), taken_address.startswith(UNIX)
            if any(paths):
                if all(paths) and address == taken_address:
                    raise CommandLineError(f"{other} and {name} cannot both be served on {address}")
            elif port == taken_port != 0 and (
                address == taken_address or {address, taken_address} & _WILDCARDS
            ):
                where = f"{address}, port {port}"
                if address != taken_address:
                    where = f"port {port}, where {taken_address} and {address} overlap"
                raise CommandLineError(f"{other} and {name} cannot both be served on {where}")


def _warnings(given: Mapping[str, Any]) -> Iterable[str]:
    for option in OPTIONS:
        if option.name not in given:
            continue
        if option.unused:
            yield f"{option.name} has no effect: {option.help}"
        elif option.instead:
            wins = ", which wins where both say something" if option.instead in given else ""
            yield f"{option.name} is deprecated; use {option.instead}{wins}"
