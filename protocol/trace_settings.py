"""What is traced: the configuration at the start, and the settings that clients change.

The global setting and those of models are given field by field. A field that a model does not give
is the global one's; one that nobody has given is the configuration's.
Source: Triton's trace extension, and its option `--trace-config`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, final

from .errors import ErrorCode, RequestError, invalid_argument
from .trace_config import (
    LEVELS,
    NUMBER_MAX,
    OFF,
    OPENTELEMETRY,
    TraceConfig,
    integer,
)
from .wording import names_text, quoted, shown

Update: TypeAlias = Mapping[str, Sequence[str] | None]
"""Setting -> its new values; None clears it."""

_Values: TypeAlias = dict[str, Any]
"""Setting -> value, typed."""

_LEAST: Final = {"trace_rate": 0, "trace_count": -1, "log_frequency": 0}
"""Setting -> its smallest value."""


@final
class TraceSetting:
    """A setting in force; replaced as a whole, so that what is sampled by it can hold it.

    Attributes:
      levels: ("OFF",), or what is traced, in the order of `LEVELS`.
      rate: One request of so many is traced; 0 for those alone that have a trace context.
      count_left: Requests that are traced before tracing stops; -1 for any number.
      log_frequency: Traces in a file; 0 for all of them.
      timestamps: Whether times are noted.
      tensors: Whether tensors are.
    """

    __slots__ = (
        "_possible",
        "_seen",
        "count_left",
        "levels",
        "log_frequency",
        "rate",
        "tensors",
        "timestamps",
    )

    def __init__(self, values: Mapping[str, Any], *, has_target: bool, spans: bool = False) -> None:
        self.levels: tuple[str, ...] = values["trace_level"]
        self.rate: int = values["trace_rate"]
        self.count_left: int = values["trace_count"]
        self.log_frequency: int = values["log_frequency"]
        self.timestamps = spans or "TIMESTAMPS" in self.levels
        self.tensors = not spans and "TENSORS" in self.levels
        self._possible = has_target and self.levels != (OFF,) and (spans or self.rate > 0)
        self._seen = 0

    @property
    def traces(self) -> bool:
        """Whether any request may be traced from now on."""
        return self._possible and self.count_left != 0

    def sample(self, *, forced: bool) -> bool:
        """Count a request, and return whether it is traced.

        Args:
          forced: Whether it is, whatever the rate.
        """
        if not self.traces:
            return False
        self._seen += 1
        if not forced and (self.rate == 0 or self._seen % self.rate):
            return False
        if self.count_left > 0:
            self.count_left -= 1
        return True

    def values(self) -> _Values:
        """Return what may be given."""
        return {
            "trace_level": self.levels,
            "trace_rate": self.rate,
            "trace_count": self.count_left,
            "log_frequency": self.log_frequency,
        }


@final
class TraceSettings:
    """All settings of a server.

    Args:
      config: What holds where nobody has given anything.
    """

    def __init__(self, config: TraceConfig) -> None:
        self._config = config
        self._defaults: _Values = {
            "trace_level": config.levels,
            "trace_rate": config.rate,
            "trace_count": config.count,
            "log_frequency": config.log_frequency,
        }
        self._global = self._setting(self._defaults)
        self._given: _Values = {}
        self._models: dict[str, tuple[_Values, TraceSetting]] = {}  # what each gives, and has

    @property
    def traces(self) -> bool:
        """Whether any request of any model may be traced."""
        return self._global.traces or any(setting.traces for _, setting in self._models.values())

    def of(self, model: str) -> TraceSetting:
        """Return the setting in force for a model; "" for the global one."""
        own = self._models.get(model)
        return self._global if own is None else own[1]

    def texts(self, model: str) -> dict[str, list[str]]:
        """Return the setting in force as a client sees it: setting -> values."""
        setting, config = self.of(model), self._config
        texts = {
            "trace_level": list(setting.levels),
            "trace_rate": [str(setting.rate)],
            "trace_count": [str(setting.count_left)],
        }
        if config.mode != OPENTELEMETRY:
            texts["log_frequency"] = [str(setting.log_frequency)]
            texts["trace_file"] = [config.file]
        texts["trace_mode"] = [config.mode]
        return texts | {name: [value] for name, value in config.shown.items()}

    def update(self, model: str, update: Update) -> list[TraceSetting]:
        """Change the setting of a model, or with "" the global one.

        Returns:
          The settings that are not in force any more.

        Raises:
          RequestError: INVALID_ARG, or UNSUPPORTED for the file; nothing has changed.
        """
        changes = _changes(update)
        if not changes:
            return []
        old = self.of(model)
        own = self._models.get(model)
        given = _applied(self._given if not model else {} if own is None else own[0], changes)
        base = self._global.values() if model else self._defaults
        values = {**base, **given}
        if "trace_count" not in changes and (own is not None or not model):
            values["trace_count"] = old.count_left
        self._check(values, changes)
        setting = self._setting(values)
        if not model:
            self._given, self._global = given, setting
            return [old, *self._refresh(changes)]
        if given:
            self._models[model] = given, setting
        else:
            self._models.pop(model, None)
        return [] if own is None else [old]

    def _refresh(self, changes: Mapping[str, Any]) -> list[TraceSetting]:
        """Let models have what they inherit of the global setting, after it has changed."""
        replaced: list[TraceSetting] = []
        for model, (given, old) in self._models.items():
            inherited = {name: self._global.values()[name] for name in changes if name not in given}
            values = {**old.values(), **inherited}
            if values != old.values():
                replaced.append(old)
                self._models[model] = given, self._setting(values)
        return replaced

    def _setting(self, values: Mapping[str, Any]) -> TraceSetting:
        spans = self._config.mode == OPENTELEMETRY
        return TraceSetting(values, has_target=spans or bool(self._config.file), spans=spans)

    def _check(self, values: _Values, changes: Mapping[str, Any]) -> None:
        """Refuse a setting that says that it traces and cannot."""
        if values["trace_level"] == (OFF,):
            return
        why = ""
        if values["trace_rate"] == 0:
            why = "a trace_rate above 0, got 0"
        elif changes.get("trace_count") == 0:
            why = "a trace_count other than 0, got 0"
        elif self._config.mode != OPENTELEMETRY and not self._config.file:
            why = "a trace file, which only the command line can name, got none"
        if why:
            raise invalid_argument(
                f"a trace_level of {names_text(values['trace_level'])} needs {why}"
            )


def update_from_json(document: Mapping[str, Any]) -> Update:
    """Return the update that a JSON object asks for.

    Raises:
      RequestError: INVALID_ARG; a setting is of the wrong type.
    """
    update: dict[str, Sequence[str] | None] = {}
    for name, value in document.items():
        if value is None or (name not in _LEAST and name != "trace_level"):
            update[name] = None
        elif name == "trace_level":
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise invalid_argument(
                    f"expected an array of strings as trace_level, got {shown(value)}"
                )
            update[name] = value
        elif isinstance(value, str):
            update[name] = [value]
        else:
            raise invalid_argument(f"expected a string as {name}, got {shown(value)}")
    return update


def json_from_texts(texts: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return settings as a JSON object: levels as an array, everything else as a string."""
    return {name: values if name == "trace_level" else values[0] for name, values in texts.items()}


def _changes(update: Update) -> dict[str, Any]:
    """Return the typed value of each setting that changes; None clears it."""
    if "trace_file" in update:
        raise RequestError(
            ErrorCode.UNSUPPORTED,
            "trace_file cannot be changed over the network, only on the command line",
        )
    changes: dict[str, Any] = {}
    if "trace_level" in update:
        values = update["trace_level"]
        levels = None if values is None else _levels(values)
        if levels != ():  # nothing known is named
            changes["trace_level"] = levels
    for name, least in _LEAST.items():
        if name not in update:
            continue
        values = update[name]
        if values is not None and len(values) != 1:
            raise invalid_argument(f"expected one value for {name}, got {len(values)}")
        changes[name] = None if values is None else _number(name, values[0], least)
    return changes


def _levels(values: Sequence[str]) -> tuple[str, ...]:
    """Return the levels that are named; whatever else is named means nothing."""
    if OFF in values and len(values) > 1:
        raise invalid_argument(f"trace_level OFF must stand alone, got {names_text(values)}")
    return (OFF,) if OFF in values else tuple(level for level in LEVELS if level in values)


def _number(name: str, text: str, least: int) -> int:
    value = integer(text, least)
    if value is None:
        raise invalid_argument(
            f"expected an integer in {least}..{NUMBER_MAX} as {name}, got {quoted(text)}"
        )
    return value


def _applied(given: _Values, changes: Mapping[str, Any]) -> _Values:
    merged = {**given, **changes}
    return {name: value for name, value in merged.items() if value is not None}
