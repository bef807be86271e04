"""The load of a model in the header of an answer."""

from __future__ import annotations

import pytest

from tests.support.llm_counting import counted_llm
from tritrio.protocol.llm_statistics import LlmStatistics
from tritrio.protocol.load_report import load_report


@pytest.mark.parametrize(
    ("asked", "report"),
    [
        (b"json", b'JSON {"named_metrics":{"kv_cache_utilization":0.25,"max_token_capacity":80}}'),
        (
            b" TEXT",
            b"TEXT named_metrics.kv_cache_utilization=0.25, named_metrics.max_token_capacity=80",
        ),
    ],
)
def test_a_report_is_over_all_engines_and_leaves_cached_state_out(
    asked: bytes, report: bytes
) -> None:
    assert load_report(asked, counted_llm()) == [(b"endpoint-load-metrics", report)]


@pytest.mark.parametrize("asked", [b"", b"xml", b"json, text"])
def test_another_format_gets_none(asked: bytes) -> None:
    assert load_report(asked, counted_llm()) == []


def test_a_model_without_kv_state_uses_none_of_it() -> None:
    assert load_report(b"json", None) == []
    counted = LlmStatistics()
    counted.engine(0).kv_capacity_tokens = 512
    ((_, report),) = load_report(b"text", counted)
    assert report.endswith(b"utilization=0.0, named_metrics.max_token_capacity=512")
