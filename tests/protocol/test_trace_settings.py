"""Settings of tracing: who inherits what, what is refused, and which request is sampled."""

from __future__ import annotations

from typing import Any

import pytest

from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.trace_config import parse_trace_config
from tritrio.protocol.trace_settings import (
    TraceSettings,
    json_from_texts,
    update_from_json,
)

ON = ("level=TIMESTAMPS", "rate=1", "triton,file=f")


def settings(*texts: str) -> TraceSettings:
    return TraceSettings(parse_trace_config(texts, {}))


def change(target: TraceSettings, model: str = "", **values: Any) -> int:
    """Update as a JSON document does; returns how many settings were replaced."""
    return len(target.update(model, update_from_json(values)))


def shown(target: TraceSettings, model: str = "") -> dict[str, Any]:
    return json_from_texts(target.texts(model))


def refused(target: TraceSettings, model: str = "", **values: Any) -> RequestError:
    before = shown(target), shown(target, "m")
    with pytest.raises(RequestError) as caught:
        change(target, model, **values)
    assert (shown(target), shown(target, "m")) == before
    return caught.value


def test_what_holds_at_the_start_is_shown() -> None:
    assert shown(settings()) == {
        "trace_level": ["OFF"],
        "trace_rate": "1000",
        "trace_count": "-1",
        "log_frequency": "0",
        "trace_file": "",
        "trace_mode": "triton",
    }


def test_in_the_mode_of_spans_files_are_not_shown() -> None:
    seen = shown(settings("mode=opentelemetry", "level=on", "rate=1"))
    assert seen == {
        "trace_level": ["TIMESTAMPS"],
        "trace_rate": "1",
        "trace_count": "-1",
        "trace_mode": "opentelemetry",
        "url": "localhost:4318/v1/traces",
        "bsp_max_queue_size": "2048",
        "bsp_schedule_delay": "5000",
        "bsp_max_export_batch_size": "512",
    }


def test_a_model_has_what_it_does_not_give_from_the_global_setting() -> None:
    target = settings(*ON)
    change(target, "m", trace_rate="3")
    change(target, trace_rate="9", trace_count="77", trace_level=["TENSORS"])
    assert shown(target, "m") == shown(target) | {"trace_rate": "3"}
    assert shown(target, "other") == shown(target)


def test_a_cleared_field_of_a_model_is_the_global_one_again() -> None:
    target = settings(*ON)
    change(target, "m", trace_rate="3", log_frequency="2")
    change(target, trace_rate="9")
    change(target, "m", trace_rate=None)
    assert shown(target, "m") == shown(target) | {"log_frequency": "2"}
    change(target, trace_rate="4")
    assert shown(target, "m")["trace_rate"] == "4"


def test_a_model_of_which_everything_is_cleared_shares_the_global_setting() -> None:
    target = settings(*ON)
    change(target, "m", trace_rate="3")
    assert target.of("m") is not target.of("")
    change(target, "m", trace_rate=None)
    assert target.of("m") is target.of("")


def test_a_cleared_global_field_is_that_of_the_command_line() -> None:
    target = settings(*ON, "count=5")
    change(target, trace_rate="9", trace_count="8", trace_level=["OFF"], log_frequency="3")
    change(target, trace_rate=None, trace_count=None, trace_level=None, log_frequency=None)
    assert shown(target) == shown(settings(*ON, "count=5"))


def test_only_what_changes_is_replaced() -> None:
    target = settings(*ON)
    assert change(target, "own", trace_rate="3", trace_count="4") == 0
    assert change(target, "shares", log_frequency="2") == 0
    own, shares = target.of("own"), target.of("shares")
    assert change(target, trace_rate="9") == 2  # the global one and that of "shares"
    assert target.of("own") is own
    assert target.of("shares") is not shares
    assert change(target) == 0
    assert change(target, unknown="x") == 0
    assert change(target, trace_level=["bogus"]) == 0


def test_unknown_levels_are_ignored() -> None:
    target = settings(*ON)
    change(target, trace_level=["TENSORS", "bogus"])
    assert shown(target)["trace_level"] == ["TENSORS"]
    change(target, trace_level=["bogus"])
    change(target, trace_level=[])
    assert shown(target)["trace_level"] == ["TENSORS"]


def test_levels_are_shown_once_in_their_order() -> None:
    target = settings(*ON)
    change(target, trace_level=["TENSORS", "TIMESTAMPS", "TENSORS"])
    assert shown(target)["trace_level"] == ["TIMESTAMPS", "TENSORS"]


@pytest.mark.parametrize(
    ("values", "code", "text"),
    [
        ({"trace_file": "x"}, ErrorCode.UNSUPPORTED, "trace_file cannot be changed over the"),
        ({"trace_file": None}, ErrorCode.UNSUPPORTED, "trace_file cannot be changed over the"),
        (
            {"trace_file": "x", "trace_rate": "x"},
            ErrorCode.UNSUPPORTED,
            "trace_file cannot be changed over the network",
        ),
        (
            {"trace_level": ["OFF", "TENSORS"]},
            ErrorCode.INVALID_ARG,
            "trace_level OFF must stand alone, got ['OFF', 'TENSORS']",
        ),
        (
            {"trace_level": "OFF"},
            ErrorCode.INVALID_ARG,
            "array of strings as trace_level, got 'OFF",
        ),
        ({"trace_level": [1]}, ErrorCode.INVALID_ARG, "strings as trace_level, got an array of 1"),
        ({"trace_rate": 5}, ErrorCode.INVALID_ARG, "expected a string as trace_rate, got 5"),
        ({"trace_count": True}, ErrorCode.INVALID_ARG, "a string as trace_count, got true"),
        ({"log_frequency": ["1"]}, ErrorCode.INVALID_ARG, "string as log_frequency, got an array"),
        ({"trace_rate": "x"}, ErrorCode.INVALID_ARG, "in 0..2147483647 as trace_rate, got 'x'"),
        ({"trace_rate": "-1"}, ErrorCode.INVALID_ARG, "in 0..2147483647 as trace_rate, got '-1'"),
        ({"trace_rate": "2147483648"}, ErrorCode.INVALID_ARG, "as trace_rate, got '2147483648'"),
        ({"trace_count": "-2"}, ErrorCode.INVALID_ARG, "an integer in -1..2147483647 as trac"),
        ({"trace_count": "2147483648"}, ErrorCode.INVALID_ARG, "trace_count, got '2147483648'"),
        ({"log_frequency": "-1"}, ErrorCode.INVALID_ARG, "as log_frequency, got '-1'"),
        ({"trace_rate": "0"}, ErrorCode.INVALID_ARG, "needs a trace_rate above 0, got 0"),
        ({"trace_count": "0"}, ErrorCode.INVALID_ARG, "needs a trace_count other than 0, got 0"),
    ],
)
@pytest.mark.parametrize("model", ["", "m"])
def test_a_refused_update_says_why_and_changes_nothing(
    values: dict[str, Any], code: ErrorCode, text: str, model: str
) -> None:
    error = refused(settings(*ON), model, **values)
    assert error.code is code
    assert text in error.message


def test_several_values_for_one_setting_are_refused() -> None:
    with pytest.raises(RequestError, match="expected one value for trace_rate, got 2"):
        settings(*ON).update("", {"trace_rate": ["1", "2"]})


def test_tracing_needs_a_file_to_be_switched_on() -> None:
    target = settings("rate=1")
    error = refused(target, trace_level=["TIMESTAMPS"])
    assert "needs a trace file, which only the command line can name, got none" in error.message
    assert not target.traces


def test_tracing_can_be_switched_on_later() -> None:
    target = settings("triton,file=f", "rate=1")
    assert not target.of("m").sample(forced=False)
    change(target, trace_level=["TIMESTAMPS"])
    assert target.of("m").sample(forced=False)


def test_a_setting_that_is_off_may_have_any_rate_and_count() -> None:
    target = settings("triton,file=f")
    change(target, trace_rate="0", trace_count="0")
    error = refused(target, trace_level=["TENSORS"], trace_count="1")
    assert "trace_rate above 0" in error.message


def test_one_request_of_so_many_is_sampled() -> None:
    setting = settings("level=on", "rate=3", "triton,file=f").of("m")
    assert [setting.sample(forced=False) for _ in range(7)] == [0, 0, 1, 0, 0, 1, 0]


def test_each_setting_counts_for_itself() -> None:
    target = settings("level=on", "rate=2", "triton,file=f")
    change(target, "m", log_frequency="1")
    assert not target.of("").sample(forced=False)
    assert not target.of("m").sample(forced=False)
    assert target.of("other").sample(forced=False)
    assert target.of("m").sample(forced=False)


def test_tracing_stops_after_so_many_and_the_rest_is_shown() -> None:
    target = settings(*ON, "count=2")
    assert [target.of("m").sample(forced=False) for _ in range(3)] == [True, True, False]
    assert shown(target)["trace_count"] == "0"
    assert not target.traces


def test_an_update_without_a_count_keeps_what_is_left_of_it() -> None:
    target = settings(*ON, "count=3")
    target.of("").sample(forced=False)
    change(target, log_frequency="4")
    assert shown(target)["trace_count"] == "2"
    change(target, trace_count="9")
    assert shown(target)["trace_count"] == "9"


def test_a_model_counts_down_for_itself() -> None:
    target = settings(*ON, "count=5")
    change(target, "m", trace_count="2")
    for _ in range(2):
        assert target.of("m").sample(forced=False)
    assert (shown(target, "m")["trace_count"], shown(target)["trace_count"]) == ("0", "5")
    assert target.traces


def test_a_request_of_a_trace_is_sampled_whatever_the_rate() -> None:
    setting = settings("mode=opentelemetry", "level=on", "rate=0").of("m")
    assert setting.traces
    assert [setting.sample(forced=forced) for forced in (False, True, False)] == [0, 1, 0]


def test_no_request_is_sampled_by_a_setting_that_is_off() -> None:
    setting = settings("mode=opentelemetry", "rate=1").of("m")
    assert not setting.traces
    assert not setting.sample(forced=True)


def test_files_need_a_rate_above_zero() -> None:
    assert not settings("level=on", "rate=0", "triton,file=f").traces


def test_spans_have_times_whatever_the_level() -> None:
    setting = settings("mode=opentelemetry", "level=TENSORS", "rate=1").of("m")
    assert (setting.timestamps, setting.tensors) == (True, False)
