"""The gRPC protocol: the same messages to both servers."""

from __future__ import annotations

import pytest

from . import grpc_cases, logging_cases, stream_cases
from .cases import Case, compare
from .grpc_exchange import Call, exchange
from .servers import Servers

CASES = [*grpc_cases.CASES, *logging_cases.GRPC]


@pytest.mark.reference
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_unary_answers_agree(case: Case[Call], servers: Servers) -> None:
    compare(case, exchange, servers)


@pytest.mark.reference
@pytest.mark.parametrize("case", stream_cases.CASES, ids=lambda case: case.name)
def test_streams_agree(case: Case[Call], servers: Servers) -> None:
    compare(case, exchange, servers)
