"""docs/compatibility.md names every difference that the cases declare, and no other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from . import (
    cloud_cases,
    header_cases,
    life_cycle_cases,
    raw_grpc_cases,
    stream_cases,
    test_grpc,
    test_http,
    test_life_cycle,
    test_metrics,
    test_namespaces,
    test_python_api,
    test_scheduling,
    test_shared_memory,
    test_statistics,
    trace_cases,
)
from .cases import Case, Differs
from .life_cycle import declared as declared_by
from .servers import ROOT

ROW = re.compile(r"^\| `([a-z-]+)` \|", re.MULTILINE)

CLOUDS = [*cloud_cases.VERTEX, *cloud_cases.SAGEMAKER, *cloud_cases.models("/place")]


def test_the_document_has_a_row_for_every_declared_difference() -> None:
    every: list[Case[Any]] = [
        *test_http.CASES,
        *test_grpc.CASES,
        *stream_cases.CASES,
        *raw_grpc_cases.CASES,
        *header_cases.HTTP_CASES,
        *header_cases.GRPC_CASES,
        *(case for group in test_scheduling.GROUPS for case in group),
        *test_shared_memory.CASES,
        *test_python_api.CASES,
        *test_python_api.CALLS,
        *life_cycle_cases.NOT_EXPLICIT,
        *test_namespaces.CASES,
        *trace_cases.HTTP,
        *trace_cases.GRPC,
        *CLOUDS,
    ]
    declared = {case.expected.why for case in every if isinstance(case.expected, Differs)}
    declared |= {test_statistics.FAILURES_ROW, test_statistics.RESPONSES_ROW}
    declared.add(test_metrics.METRICS_ROW)
    declared.add(test_shared_memory.IN_USE_ROW)
    declared.update(*map(declared_by, test_life_cycle.STEPS))
    document = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert set(ROW.findall(document)) == declared


def test_the_table_of_features_names_every_row_that_differs() -> None:
    document = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    features, _, rows = document.partition("## Where the answers differ")
    assert {name for name in ROW.findall(rows) if f"`{name}`" not in features} == set()


def test_no_two_cases_of_a_kind_have_the_same_name() -> None:
    kinds: list[Sequence[Case[Any]]] = [
        test_http.CASES,
        test_grpc.CASES,
        stream_cases.CASES,
        raw_grpc_cases.CASES,
        header_cases.HTTP_CASES,
        header_cases.GRPC_CASES,
        *test_scheduling.GROUPS,
        test_shared_memory.CASES,
        test_python_api.CASES,
        test_python_api.CALLS,
        test_life_cycle.STEPS,
        life_cycle_cases.NOT_EXPLICIT,
        test_namespaces.CASES,
        cloud_cases.VERTEX,
        cloud_cases.SAGEMAKER,
        cloud_cases.models("/place"),
        trace_cases.HTTP,
        trace_cases.GRPC,
    ]
    for cases in kinds:
        names = [case.name for case in cases]
        assert sorted(set(names)) == sorted(names)
