"""What `--metrics-config` and `model_metrics` ask for, and what is refused."""

from __future__ import annotations

import pytest

from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.metrics_config import (
    FIRST_RESPONSE_BUCKETS_MS,
    FIRST_RESPONSE_FAMILY,
    MetricsConfig,
    first_response_buckets_ms,
    parse_metrics_config,
)


def test_nothing_asked_for_is_counters_alone() -> None:
    config = parse_metrics_config([])
    assert config == MetricsConfig()
    assert (config.counter_latencies, config.summary_latencies) == (True, False)
    assert not config.histogram_latencies
    assert config.summary_quantiles == (0.5, 0.9, 0.95, 0.99, 0.999)


def test_each_switch_is_its_own_and_the_last_one_counts() -> None:
    config = parse_metrics_config(
        ["counter_latencies=False", "summary_latencies=off", "summary_latencies=1"]
    )
    assert config == MetricsConfig(counter_latencies=False, summary_latencies=True)
    assert parse_metrics_config(["histogram_latencies=true"]).histogram_latencies


def test_quantiles_come_in_the_order_given_and_their_errors_do_not_matter() -> None:
    config = parse_metrics_config(["summary_quantiles=0.9:0.01,0.5:0,1:1,0:0.05"])
    assert config.summary_quantiles == (0.9, 0.5, 1.0, 0.0)
    assert config.skipped == ()


@pytest.mark.parametrize(
    "pair", ["bad", "0.5", "0.5:", ":0.1", "0.5:0.1:1", "1.5:0.1", "-0.1:0.1", "nan:0.1", "0.5:inf"]
)
def test_a_pair_that_is_no_quantile_is_skipped_and_said(pair: str) -> None:
    config = parse_metrics_config([f"summary_quantiles=0.5:0.05,{pair},0.9:0.01"])
    assert config.summary_quantiles == (0.5, 0.9)
    (text,) = config.skipped
    assert text.startswith(f"--metrics-config summary_quantiles: '{pair}' is skipped")


def test_a_quantile_is_taken_once_since_two_samples_of_one_name_are_no_metric() -> None:
    config = parse_metrics_config(["summary_quantiles=0.5:0.05,0.50:0.01"])
    assert config.summary_quantiles == (0.5,)
    assert config.skipped == ("--metrics-config summary_quantiles: '0.50:0.01' is there already",)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("summary_latencies", "expected <setting>=<value>, got 'summary_latencies'"),
        ("summary_latencies=", "expected <setting>=<value>, got 'summary_latencies='"),
        ("=true", "expected <setting>=<value>, got '=true'"),
        ("a,summary_latencies=true", "expected <setting>=<value>, got 'a,summary_latencies=true'"),
        (
            "latencies=true",
            (
                "expected one of the settings counter_latencies, summary_latencies, "
                "histogram_latencies, summary_quantiles, got 'latencies'"
            ),
        ),
    ],
)
def test_what_is_no_setting_is_refused(setting: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_metrics_config([setting])
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == f"--metrics-config: {message}"


def test_a_switch_that_is_neither_on_nor_off_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        parse_metrics_config(["counter_latencies=maybe"])
    assert caught.value.message == (
        "--metrics-config counter_latencies: expected true or false, got 'maybe'"
    )


def test_a_model_chooses_its_buckets() -> None:
    text = (
        'model_metrics { metric_control { metric_identifier { family: "%s" } '
        "histogram_options { buckets: [ 1, 2.5 ] } } }"
    )
    chosen = parse_model_config(text % FIRST_RESPONSE_FAMILY, file="c")
    assert first_response_buckets_ms(chosen) == (1.0, 2.5)
    for other in (text % "nonsense", ""):
        config = parse_model_config(other, file="c")
        assert first_response_buckets_ms(config) == FIRST_RESPONSE_BUCKETS_MS
