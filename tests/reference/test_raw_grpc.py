"""gRPC framing: the same frames to both servers."""

from __future__ import annotations

import pytest

from .cases import Case, compare
from .raw_grpc import RawCall, exchange
from .raw_grpc_cases import CASES
from .servers import Servers


@pytest.mark.reference
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_raw_calls_agree(case: Case[RawCall], servers: Servers) -> None:
    compare(case, exchange, servers)
