"""W3C trace contexts: what is one, and what is passed on."""

from __future__ import annotations

import pytest
from opentelemetry.trace import TraceState

from tritrio.protocol.trace_context import (
    TRACESTATE_CHARS_MAX,
    TraceContext,
    parse_trace_context,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_a_context_is_read_and_written() -> None:
    context = parse_trace_context(GOOD, "vendor=1")
    assert context == TraceContext(TRACE, SPAN, "vendor=1")
    assert context.headers() == {"traceparent": GOOD, "tracestate": "vendor=1"}
    assert TraceContext(TRACE, SPAN).headers() == {"traceparent": GOOD}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        GOOD.upper(),
        GOOD[:-1],
        f"{GOOD}-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
    ],
)
def test_what_is_malformed_is_no_context(text: str) -> None:
    assert parse_trace_context(text) is None


def test_a_later_version_may_say_more() -> None:
    assert parse_trace_context(f"01-{TRACE}-{SPAN}-00-more") == TraceContext(TRACE, SPAN)


def test_a_long_state_is_left_out() -> None:
    state = ",".join(f"{letter}={'x' * 253}" for letter in "ab")
    assert len(state) == TRACESTATE_CHARS_MAX - 1
    assert parse_trace_context(GOOD, f"{state}x") == TraceContext(TRACE, SPAN, f"{state}x")
    assert parse_trace_context(GOOD, f"{state}xx") == TraceContext(TRACE, SPAN, "")


@pytest.mark.parametrize(
    ("state", "valid"),
    [
        ("a=1", True),
        ("tenant@vendor=a b:c,, x_*/-9=~ \t,b=2", True),
        (",".join(f"a{number}=1" for number in range(32)), True),
        (",".join(f"a{number}=1" for number in range(33)), False),
        ("a", False),
        ("=", False),
        ("a=", False),
        ("a=b=c", False),
        ("A=1", False),
        ("a@B=1", False),
        ("a=\xe9", False),
        ("a=1\x00", False),
        ("a=1\n,b=1", False),
        ("a=1,b", False),
    ],
)
def test_a_state_that_is_not_valid_is_left_out(
    state: str, valid: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert parse_trace_context(GOOD, state) == TraceContext(TRACE, SPAN, state if valid else "")
    TraceState.from_header([state] if valid else [])
    assert caplog.records == []  # which a library would write for each request
