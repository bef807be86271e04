"""The REST protocol: the same bytes to both servers."""

from __future__ import annotations

import pytest

from . import http_api_cases, http_binary_cases, http_json_cases
from .cases import Case, compare
from .http_exchange import Http, exchange
from .servers import Servers

CASES = [*http_api_cases.CASES, *http_json_cases.CASES, *http_binary_cases.CASES]


@pytest.mark.reference
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_http_answers_agree(case: Case[Http], servers: Servers) -> None:
    compare(case, exchange, servers)
