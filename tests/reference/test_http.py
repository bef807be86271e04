"""The REST protocol: the same bytes to both servers."""

from __future__ import annotations

import pytest

from . import (
    calling_cases,
    generate_cases,
    http_answer_cases,
    http_api_cases,
    http_binary_cases,
    http_json_cases,
    logging_cases,
)
from .cases import BAD_JSON, Case, compare
from .http_answer_cases import fault
from .http_binary_cases import JSON, encoded, header_length
from .http_exchange import Http, converse, exchange
from .http_requests import X, infer, one
from .servers import Servers

CASES = [
    *http_api_cases.CASES,
    *http_json_cases.CASES,
    *http_answer_cases.CASES,
    *http_binary_cases.CASES,
    *calling_cases.CASES,
    *generate_cases.CASES,
    *logging_cases.HTTP,
]


@pytest.mark.reference
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_http_answers_agree(case: Case[Http], servers: Servers) -> None:
    compare(case, exchange, servers)


SURVIVED = [
    Case("broken JSON", infer(b"{"), BAD_JSON),
    Case("a bad header length", header_length("-1"), 400),
    Case("an unknown coding", encoded("br", b"x" * 100), 501),
    Case("an unknown model", infer({"inputs": [X]}, "nobody"), 404),
    Case("an unknown route with a body", Http("POST", "/v2/nothing", b"x" * 100), 404),
    Case("a wrong verb with a body", Http("PUT", "/v2/models/identity/infer", b"x" * 100), 405),
    Case("a body where none belongs", Http("GET", "/v2/health/live", b"x" * 100), 200),
    Case("a model's error", fault("INTERNAL"), 500),
    Case("chunks", infer(JSON, chunks=(1, len(JSON) - 1)), 200),
]


@pytest.mark.reference
@pytest.mark.parametrize("case", SURVIVED, ids=lambda case: case.name)
def test_the_connection_stays_usable(case: Case[Http], servers: Servers) -> None:
    for server in servers:
        answers = converse(server, [case.request, one(), case.request, one()])
        assert [answer.status for answer in answers[1::2]] == [200, 200]
    compare(case, exchange, servers)
