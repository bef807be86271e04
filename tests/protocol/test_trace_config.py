"""What the values of --trace-config say, and what is wrong with them."""

from __future__ import annotations

import pytest

from tritrio.protocol.errors import RequestError
from tritrio.protocol.trace_config import TraceConfig, integer, parse_trace_config

BATCHES = {
    "OTEL_BSP_MAX_QUEUE_SIZE": "100",
    "OTEL_BSP_SCHEDULE_DELAY": "200",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "50",
}


def parsed(*texts: str, **environment: str) -> TraceConfig:
    return parse_trace_config(texts, environment)


def test_nothing_is_traced_unless_something_is_said() -> None:
    config = parsed()
    assert (config.mode, config.levels, config.rate, config.count) == ("triton", ("OFF",), 1000, -1)
    assert (config.file, config.log_frequency, config.shown) == ("", 0, {})


def test_every_setting_of_files_is_taken() -> None:
    config = parsed("level=TENSORS", "rate=5", "count=7", "triton,file=/a=b", "mode=triton",
                    "triton,log-frequency=3", "level=TIMESTAMPS")  # fmt: skip
    assert config.levels == ("TIMESTAMPS", "TENSORS")
    assert (config.rate, config.count, config.file, config.log_frequency) == (5, 7, "/a=b", 3)


@pytest.mark.parametrize(
    ("texts", "levels"),
    [
        (["true"], ("TIMESTAMPS",)),
        (["on"], ("TIMESTAMPS",)),
        (["MIN"], ("TIMESTAMPS",)),
        (["max"], ("TIMESTAMPS",)),
        (["off"], ("OFF",)),
        (["false"], ("OFF",)),
        (["TENSORS", "OFF", "TIMESTAMPS"], ("OFF",)),
        (["timestamps", "TIMESTAMPS"], ("TIMESTAMPS",)),
    ],
)
def test_levels_have_many_names_and_off_beats_all(
    texts: list[str], levels: tuple[str, ...]
) -> None:
    assert parsed(*(f"level={text}" for text in texts)).levels == levels


def test_the_last_of_two_values_counts() -> None:
    assert parsed("rate=5", "rate=6").rate == 6


def test_settings_of_spans_are_taken_and_shown() -> None:
    config = parsed(
        "mode=opentelemetry",
        "opentelemetry,url=host:1/x",
        "opentelemetry,resource=a=b",
        "opentelemetry,resource=c=d=e",
        "opentelemetry,bsp_max_queue_size=9",
        "opentelemetry,bsp_max_export_batch_size=9",
        "opentelemetry,bsp_schedule_delay=7",
    )
    assert config.url == "host:1/x"
    assert config.resource == {"service.name": "triton-inference-server", "a": "b", "c": "d=e"}
    assert (config.bsp_max_queue_size, config.bsp_schedule_delay_ms) == (9, 7)
    assert config.shown == {
        "url": "host:1/x",
        "bsp_max_queue_size": "9",
        "bsp_schedule_delay": "7",
        "bsp_max_export_batch_size": "9",
        "resource": "a=b,c=d=e",
    }


def test_a_name_of_the_service_replaces_the_default() -> None:
    config = parsed("mode=opentelemetry", "opentelemetry,resource=service.name=mine")
    assert config.resource == {"service.name": "mine"}


def test_the_environment_gives_defaults_that_the_command_line_overrides() -> None:
    config = parsed("mode=opentelemetry", "opentelemetry,bsp_schedule_delay=7", **BATCHES)
    assert config.bsp_max_queue_size == 100
    assert config.bsp_schedule_delay_ms == 7
    assert config.bsp_max_export_batch_size == 50


def test_the_environment_does_not_matter_without_spans() -> None:
    assert parsed("rate=1", OTEL_BSP_SCHEDULE_DELAY="soon").bsp_schedule_delay_ms == 5000


@pytest.mark.parametrize(
    ("texts", "fault"),
    [
        (["rate"], "needs <setting>=<value> or <mode>,<setting>=<value>, got 'rate'"),
        (["=1"], "needs <setting>=<value> or <mode>,<setting>=<value>, got '=1'"),
        (["triton,file="], "needs <setting>=<value> or <mode>,<setting>=<value>, got 'triton,fi"),
        (["what=1"], "got 'what' in 'what=1'"),
        (["file=x"], "got 'file' in 'file=x'"),
        (["jaeger,file=x"], "got 'jaeger,file' in 'jaeger,file=x'"),
        (["level=SOME"], "level must be OFF, TIMESTAMPS or TENSORS, got 'SOME'"),
        (["mode=jaeger"], "mode must be triton or opentelemetry, got 'jaeger'"),
        (["rate=x"], "rate must be an integer in 0..2147483647, got 'x'"),
        (["rate=-1"], "rate must be an integer in 0..2147483647, got '-1'"),
        (["count=-2"], "count must be an integer in -1..2147483647, got '-2'"),
        (["triton,log-frequency=1.5"], "log-frequency must be an integer in 0..2147483647, got '1"),
        (
            ["mode=opentelemetry", "opentelemetry,resource=x"],
            "resource must be <key>=<value>, got 'x'",
        ),
        (
            ["mode=opentelemetry", "opentelemetry,bsp_schedule_delay=0"],
            "bsp_schedule_delay must be an integer in 1..2147483647, got '0'",
        ),
        (
            ["mode=opentelemetry", "opentelemetry,bsp_max_queue_size=4"],
            "bsp_max_export_batch_size must be at most bsp_max_queue_size (4), got 512",
        ),
    ],
)
def test_a_fault_names_the_value_and_what_was_expected(texts: list[str], fault: str) -> None:
    with pytest.raises(RequestError, match="--trace-config") as caught:
        parsed(*texts)
    assert fault in str(caught.value)


def test_a_fault_of_the_environment_names_the_variable() -> None:
    with pytest.raises(RequestError, match=r"^OTEL_BSP_SCHEDULE_DELAY must be .* got 'soon'$"):
        parsed("mode=opentelemetry", OTEL_BSP_SCHEDULE_DELAY="soon")


@pytest.mark.parametrize("text", ["", " 1", "1 ", "+1", "1.0", "0x1", "1_0", "٣", "1" * 30])
def test_only_plain_decimal_text_is_an_integer(text: str) -> None:
    assert integer(text, 0) is None
