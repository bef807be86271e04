"""Sequences, queues, the response cache and ensembles: the same scripts to both servers.

They have a pair of servers of their own, since a queue must hold what one case put there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from . import (
    ensemble_cases,
    grpc_exchange,
    http_exchange,
    queue_cases,
    sequence_cases,
    sequence_queue_cases,
)
from .cases import Case, compare
from .grpc_exchange import Call
from .http_exchange import Http
from .scheduling_repository import write_repository
from .scripts import Script, play
from .servers import COMPLETE, Servers, both

CACHE_FLAG = "--cache-config=local,size=1048576"

SCRIPTS: list[Case[Script]] = [
    *sequence_cases.ALONE,
    *sequence_queue_cases.CASES,
    *queue_cases.CASES,
    *ensemble_cases.ANSWERS,
]
CALLS: list[Case[Call]] = [
    *sequence_cases.ERRORS,
    *sequence_cases.TEXT_IDS,
    *sequence_cases.STREAMED,
    *queue_cases.PARAMETERS,
    *ensemble_cases.CALLS,
    *ensemble_cases.STREAMS,
]
REQUESTS: list[Case[Http]] = [
    *sequence_cases.OVER_HTTP,
    *queue_cases.OVER_HTTP,
    *ensemble_cases.OVER_HTTP,
    *ensemble_cases.DESCRIBED,
    *ensemble_cases.FAILED,
]
GROUPS: tuple[list[Case[Any]], ...] = (SCRIPTS, CALLS, REQUESTS)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The reference and ours, serving the repository of the scheduling tests, with a cache."""
    repository = tmp_path_factory.mktemp("scheduling") / "models"
    write_repository(repository)
    with both(repository, CACHE_FLAG, *COMPLETE) as servers:
        yield servers


@pytest.mark.reference
@pytest.mark.parametrize("case", SCRIPTS, ids=lambda case: case.name)
def test_scripts_have_the_same_end(case: Case[Script], servers: Servers) -> None:
    compare(case, play, servers)


@pytest.mark.reference
@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_calls_agree(case: Case[Call], servers: Servers) -> None:
    compare(case, grpc_exchange.exchange, servers)


@pytest.mark.reference
@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case.name)
def test_requests_over_http_agree(case: Case[Http], servers: Servers) -> None:
    compare(case, http_exchange.exchange, servers)
