"""The option `--trace-config`: what is traced from the start, and where traces go."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from .errors import invalid_argument
from .wording import quoted

OFF: Final = "OFF"
LEVELS: Final = ("TIMESTAMPS", "TENSORS")
TRITON: Final = "triton"
OPENTELEMETRY: Final = "opentelemetry"

NUMBER_MAX: Final = 2**31 - 1
"""The largest rate, count and so on, as with Triton."""

URL_DEFAULT: Final = "localhost:4318/v1/traces"
SERVICE_NAME_DEFAULT: Final = "triton-inference-server"

_LEVEL_NAMES: Final = {
    "off": OFF,
    "false": OFF,
    "true": "TIMESTAMPS",
    "on": "TIMESTAMPS",
    "min": "TIMESTAMPS",
    "max": "TIMESTAMPS",
    "timestamps": "TIMESTAMPS",
    "tensors": "TENSORS",
}
_BATCH_NUMBERS: Final = {
    "bsp_max_queue_size": 2048,
    "bsp_schedule_delay": 5000,
    "bsp_max_export_batch_size": 512,
}
_INTEGER = re.compile(r"-?[0-9]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """What is traced from the start, and where traces go.

    Attributes:
      mode: "triton" for files, "opentelemetry" for spans that are exported.
      levels: ("OFF",), or what is traced, in the order of `LEVELS`.
      rate: One request of so many is traced.
      count: How many are; -1 for any number.
      file: Where they are written; "" for nowhere.
      log_frequency: Traces in a file; 0 for all of them.
      url: Where spans are sent by OTLP over HTTP.
      resource: Attributes of the server in the spans.
      bsp_max_queue_size: Spans that wait to be sent; more are dropped.
      bsp_schedule_delay_ms: How long spans wait for others to be sent with, in milliseconds.
      bsp_max_export_batch_size: Spans that are sent at once.
      shown: Setting -> value of those that belong to the mode, as clients see them.
    """

    mode: str = TRITON
    levels: tuple[str, ...] = (OFF,)
    rate: int = 1000
    count: int = -1
    file: str = ""
    log_frequency: int = 0
    url: str = URL_DEFAULT
    resource: Mapping[str, str] = field(default_factory=dict)
    bsp_max_queue_size: int = _BATCH_NUMBERS["bsp_max_queue_size"]
    bsp_schedule_delay_ms: int = _BATCH_NUMBERS["bsp_schedule_delay"]
    bsp_max_export_batch_size: int = _BATCH_NUMBERS["bsp_max_export_batch_size"]
    shown: Mapping[str, str] = field(default_factory=dict)


def parse_trace_config(texts: Iterable[str], environment: Mapping[str, str]) -> TraceConfig:
    """Return what values of `--trace-config` say.

    Args:
      texts: `<setting>=<value>` or `<mode>,<setting>=<value>` each.
      environment: Environment variables; OTEL_BSP_* are defaults.

    Raises:
      RequestError: INVALID_ARG; says which value is at fault, and what was expected.
    """
    found: dict[str, list[str]] = {}  # setting, with its mode in front if it has one -> values
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.strip() and value.strip()):
            raise invalid_argument(
                f"--trace-config needs <setting>=<value> or <mode>,<setting>=<value>, "
                f"got {quoted(text)}"
            )
        name = name.strip().lower()
        if name not in _SETTINGS:
            raise invalid_argument(
                f"--trace-config knows {', '.join(_SETTINGS)}, got {quoted(name)} in {quoted(text)}"
            )
        found.setdefault(name, []).append(value.strip())
    mode = _last(found, "mode", TRITON)
    if mode not in {TRITON, OPENTELEMETRY}:
        raise invalid_argument(
            f"--trace-config mode must be {TRITON} or {OPENTELEMETRY}, got {quoted(mode)}"
        )
    numbers = _batch_numbers(found, environment if mode == OPENTELEMETRY else {})
    url = _last(found, f"{OPENTELEMETRY},url", URL_DEFAULT)
    resource = _resource(found.get(f"{OPENTELEMETRY},resource", ()))
    shown: dict[str, str] = {}
    if mode == OPENTELEMETRY:
        shown = {"url": url, **{name: str(value) for name, value in numbers.items()}}
        if resource:
            shown["resource"] = ",".join(f"{name}={value}" for name, value in resource.items())
    return TraceConfig(
        mode=mode,
        levels=_levels(found.get("level", ())),
        rate=_number(found, "rate", 1000, 0),
        count=_number(found, "count", -1, -1),
        file=_last(found, f"{TRITON},file", ""),
        log_frequency=_number(found, f"{TRITON},log-frequency", 0, 0),
        url=url,
        resource={"service.name": SERVICE_NAME_DEFAULT, **resource},
        bsp_max_queue_size=numbers["bsp_max_queue_size"],
        bsp_schedule_delay_ms=numbers["bsp_schedule_delay"],
        bsp_max_export_batch_size=numbers["bsp_max_export_batch_size"],
        shown=shown,
    )


_SETTINGS: Final = (
    "level",
    "rate",
    "count",
    "mode",
    f"{TRITON},file",
    f"{TRITON},log-frequency",
    f"{OPENTELEMETRY},url",
    f"{OPENTELEMETRY},resource",
    *(f"{OPENTELEMETRY},{name}" for name in _BATCH_NUMBERS),
)


def integer(text: str, least: int) -> int | None:
    """Return the decimal integer in a text; None if it is none from `least` to `NUMBER_MAX`."""
    if _INTEGER.fullmatch(text) is None or not least <= int(text) <= NUMBER_MAX:
        return None
    return int(text)


def _last(found: Mapping[str, list[str]], name: str, default: str) -> str:
    return found[name][-1] if name in found else default


def _levels(texts: Iterable[str]) -> tuple[str, ...]:
    named: set[str] = set()
    for text in texts:
        level = _LEVEL_NAMES.get(text.lower())
        if level is None:
            raise invalid_argument(
                f"--trace-config level must be OFF, TIMESTAMPS or TENSORS, got {quoted(text)}"
            )
        named.add(level)
    if OFF in named or not named:
        return (OFF,)
    return tuple(level for level in LEVELS if level in named)


def _number(found: Mapping[str, list[str]], name: str, default: int, least: int) -> int:
    text = _last(found, name, str(default))
    value = integer(text, least)
    if value is None:
        raise invalid_argument(
            f"--trace-config {name} must be an integer in {least}..{NUMBER_MAX}, got {quoted(text)}"
        )
    return value


def _batch_numbers(
    found: Mapping[str, list[str]], environment: Mapping[str, str]
) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for name, default in _BATCH_NUMBERS.items():
        variable = f"OTEL_{name.upper()}"
        text = environment.get(variable) or str(default)
        value = integer(text, 1)
        if value is None:
            raise invalid_argument(
                f"{variable} must be an integer in 1..{NUMBER_MAX}, got {quoted(text)}"
            )
        numbers[name] = _number(found, f"{OPENTELEMETRY},{name}", value, 1)
    if numbers["bsp_max_export_batch_size"] > numbers["bsp_max_queue_size"]:
        raise invalid_argument(
            "--trace-config opentelemetry,bsp_max_export_batch_size must be at most "
            f"bsp_max_queue_size ({numbers['bsp_max_queue_size']}), got "
            f"{numbers['bsp_max_export_batch_size']}"
        )
    return numbers


def _resource(texts: Iterable[str]) -> dict[str, str]:
    resource: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name):
            raise invalid_argument(
                f"--trace-config opentelemetry,resource must be <key>=<value>, got {quoted(text)}"
            )
        resource[name] = value
    return resource
