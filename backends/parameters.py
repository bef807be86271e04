"""Reads the `parameters` of a model configuration, which are texts whatever they mean."""

from __future__ import annotations

from ..protocol.errors import RequestError, invalid_argument
from ..protocol.pb.inference import ModelConfig
from ..protocol.wording import quoted


def parameter_text(config: ModelConfig, key: str) -> str | None:
    """Return a parameter's text, or None if it is absent."""
    parameter = config.parameters.get(key)
    return None if parameter is None else parameter.string_value


def number_parameter(config: ModelConfig, key: str, allowed: range, default: int) -> int:
    """Return a parameter that is a whole number, or `default` if it is absent.

    Raises:
      RequestError: it is no number, or not in `allowed`; names model, key, range and value.
    """
    text = parameter_text(config, key)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 19 and int(text) in allowed:
        return int(text)
    raise bad_parameter(config, key, f"a whole number from {allowed[0]} to {allowed[-1]}", text)


def yes_parameter(config: ModelConfig, key: str) -> bool:
    """Return whether a parameter is "yes"; absent and "no" are False.

    Raises:
      RequestError: it is another text.
    """
    text = parameter_text(config, key)
    if text not in {None, "yes", "no"}:
        raise bad_parameter(config, key, "'yes' or 'no'", str(text))
    return text == "yes"


def bad_parameter(config: ModelConfig, key: str, expected: str, got: str) -> RequestError:
    """Return the error for a parameter that a backend cannot use."""
    return invalid_argument(
        f"model '{config.name}': parameter '{key}' must be {expected}, got {quoted(got)}"
    )
