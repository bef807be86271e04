"""Keys and forwarded headers: the same flags, the same requests, to both servers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from . import grpc_exchange, http_exchange, raw_grpc
from .cases import Case, compare
from .grpc_exchange import Call
from .header_cases import CODED, ENSEMBLE, FLAGS, GRPC_CASES, HTTP_CASES, MODELS
from .http_exchange import Http
from .raw_grpc import RawCall
from .repository import write_repository
from .servers import COMPLETE, Servers, both


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Both servers with keys and forwarded headers."""
    repository = tmp_path_factory.mktemp("guarded") / "models"
    write_repository(repository)
    for model in repository.iterdir():
        if model.name not in MODELS:
            shutil.rmtree(model)
    (repository / "chain" / "1").mkdir(parents=True)
    (repository / "chain" / "config.pbtxt").write_text(ENSEMBLE)
    with both(repository, *COMPLETE, *FLAGS) as servers:
        yield servers


@pytest.mark.reference
@pytest.mark.parametrize("case", HTTP_CASES, ids=lambda case: case.name)
def test_http_answers_agree(case: Case[Http], guarded: Servers) -> None:
    compare(case, http_exchange.exchange, guarded)


@pytest.mark.reference
@pytest.mark.parametrize("case", GRPC_CASES, ids=lambda case: case.name)
def test_grpc_answers_agree(case: Case[Call], guarded: Servers) -> None:
    compare(case, grpc_exchange.exchange, guarded)


@pytest.mark.reference
@pytest.mark.parametrize("case", CODED, ids=lambda case: case.name)
def test_answers_are_compressed_alike(case: Case[RawCall], guarded: Servers) -> None:
    """The coding and whether the message is in it; zlib's version decides on the bytes."""
    reference, ours = (raw_grpc.exchange(server, case) for server in guarded)
    assert ours.status == reference.status == "OK"
    assert (ours.coding, ours.json[:2]) == (reference.coding, reference.json[:2])
