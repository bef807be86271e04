"""How loaded a model is, told in the header of an answer, for balancers that choose by it.

Source: the reports of ORCA (open request cost aggregation) in its formats JSON and TEXT; header and
metrics by the names of Triton's generate extension.
"""

from __future__ import annotations

from typing import Final

from .llm_statistics import LlmStatistics

FORMAT_HEADER: Final = b"endpoint-load-metrics-format"
"""The header that asks for a report, in lower case."""

_REPORT_HEADER: Final = b"endpoint-load-metrics"
_DECIMALS: Final = 6  # finer than any balancer weighs


def load_report(asked: bytes, counted: LlmStatistics | None) -> list[tuple[bytes, bytes]]:
    """Return the header of a report, or none.

    Args:
      asked: The value of `FORMAT_HEADER`; anything but json and text, in any case, asks for none.
      counted: Of the model that answers; None for one without KV state.
    """
    kind = asked.strip().lower()
    if counted is None or kind not in {b"json", b"text"}:
        return []
    engines = counted.totals()
    budget_bytes = engines.kv_budget_bytes
    used = round(engines.kv_used_bytes / budget_bytes, _DECIMALS) if budget_bytes else 0.0
    named = (("kv_cache_utilization", used), ("max_token_capacity", engines.kv_capacity_tokens))
    if kind == b"json":
        members = ",".join(f'"{name}":{value}' for name, value in named)
        report = f'JSON {{"named_metrics":{{{members}}}}}'
    else:
        report = "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in named)
    return [(_REPORT_HEADER, report.encode())]
