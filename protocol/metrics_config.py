"""What is measured beyond plain counters: `--metrics-config`, and `model_metrics` of a model.

Source: the documented metrics options of Triton, and its `ModelMetrics` message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final

from .errors import invalid_argument
from .pb.inference import ModelConfig
from .wording import quoted

FIRST_RESPONSE_FAMILY: Final = "nv_inference_first_response_histogram_ms"
"""The only family whose buckets a model may choose."""

FIRST_RESPONSE_BUCKETS_MS: Final = (100.0, 500.0, 2000.0, 5000.0)
"""Upper bounds of its buckets where a model chooses none."""

_SWITCHES: Final = ("counter_latencies", "summary_latencies", "histogram_latencies")
_QUANTILES: Final = "summary_quantiles"
_BOOLEANS: Final = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """What is measured of every model.

    Attributes:
      counter_latencies: Whether the families that add up durations are shown.
      summary_latencies: Whether quantiles of recent durations are.
      histogram_latencies: Whether the time to the first response of decoupled models is.
      summary_quantiles: From 0 to 1, each once.
      skipped: What was given as quantiles and is none, one sentence each, for the log.
    """

    counter_latencies: bool = True
    summary_latencies: bool = False
    histogram_latencies: bool = False
    summary_quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)
    skipped: tuple[str, ...] = ()


def parse_metrics_config(settings: Iterable[str]) -> MetricsConfig:
    """Return what some `--metrics-config` options ask for; of two for one setting the last counts.

    Args:
      settings: `<setting>=<value>` each.

    Raises:
      RequestError: INVALID_ARG; names the option at fault.
    """
    config = MetricsConfig()
    for text in settings:
        setting, _, value = text.partition("=")
        if not setting or not value or "," in setting:
            raise invalid_argument(f"--metrics-config: expected <setting>=<value>, got '{text}'")
        if setting in _SWITCHES:
            switch: dict[str, Any] = {setting: _boolean(setting, value)}
            config = replace(config, **switch)
        elif setting == _QUANTILES:
            config = _with_quantiles(config, value)
        else:
            known = ", ".join((*_SWITCHES, _QUANTILES))
            raise invalid_argument(
                f"--metrics-config: expected one of the settings {known}, got '{setting}'"
            )
    return config


def first_response_buckets_ms(config: ModelConfig) -> tuple[float, ...]:
    """Return the upper bounds of a model's buckets for its first responses, ascending, in ms."""
    buckets: tuple[float, ...] = FIRST_RESPONSE_BUCKETS_MS
    if config.model_metrics is not None:
        for control in config.model_metrics.metric_control:
            identifier, options = control.metric_identifier, control.histogram_options
            if identifier is not None and identifier.family == FIRST_RESPONSE_FAMILY:
                buckets = buckets if options is None else tuple(options.buckets)
    return buckets


def unknown_families(config: ModelConfig) -> list[str]:
    """Return the families of `model_metrics` whose buckets cannot be chosen."""
    if config.model_metrics is None:
        return []
    identifiers = [control.metric_identifier for control in config.model_metrics.metric_control]
    families = [identifier.family for identifier in identifiers if identifier is not None]
    return [family for family in families if family != FIRST_RESPONSE_FAMILY]


def _boolean(setting: str, value: str) -> bool:
    switch = _BOOLEANS.get(value.lower())
    if switch is None:
        raise invalid_argument(f"--metrics-config {setting}: expected true or false, got '{value}'")
    return switch


def _with_quantiles(config: MetricsConfig, value: str) -> MetricsConfig:
    quantiles: list[float] = []
    skipped: list[str] = []
    for pair in value.split(","):
        quantile = _quantile(pair)
        if quantile is None:
            skipped.append(
                f"--metrics-config {_QUANTILES}: {quoted(pair)} is skipped, since it is not "
                "<quantile>:<error> with numbers from 0 to 1"
            )
        elif quantile in quantiles:
            skipped.append(f"--metrics-config {_QUANTILES}: {quoted(pair)} is there already")
        else:
            quantiles.append(quantile)
    return replace(config, summary_quantiles=tuple(quantiles), skipped=tuple(skipped))


def _quantile(pair: str) -> float | None:
    """Return the quantile of `<quantile>:<error>`; None if it is not that."""
    texts = pair.split(":")
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return None
    fits = all(isfinite(number) and 0 <= number <= 1 for number in numbers)
    return numbers[0] if len(numbers) == 2 and fits else None
