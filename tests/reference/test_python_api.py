"""What Python models see of `triton_python_backend_utils`: the same models on both servers.

They have a pair of servers of their own, each with its own copy of the models, since some of these
leave files beside their code.
"""

from __future__ import annotations

import http.client
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import grpc_exchange, http_exchange
from .cases import Case, Json, compare
from .grpc_exchange import Call
from .http_exchange import Http
from .python_api import special_cases
from .python_api.cases import (
    LOOKS,
    STREAMS,
    look,
    methods_of,
    models,
    status_of,
    stream,
    stream_request,
    write_repository,
)
from .python_api.differences import DIFFERENCES
from .scripts import Counts, counts, settled, until
from .servers import (
    HOST,
    START_ATTEMPTS_MAX,
    Server,
    Servers,
    need_reference,
    running,
    start_ours,
    start_reference,
)

CASES: list[Case[Http]] = [
    *(
        look(model, method, DIFFERENCES.get((model, method), status_of(model, method)))
        for model in models()
        for method in methods_of(model, LOOKS)
    ),
    *special_cases.CASES,
]
CALLS: list[Case[Call]] = [
    *(
        stream(model, method, DIFFERENCES.get((model, method), "OK"))
        for model in models()
        for method in methods_of(model, STREAMS)
    ),
    *special_cases.OVER_GRPC,
    *special_cases.STREAMED,
]
FAMILIES = ("api_shared_counter", "api_gauge", "api_histogram")
"""How the names of the models' own metrics start that both servers have."""
MARKER = re.compile(rb"marker-[a-z]+")
"""What is in every message that the model logs."""
ONLY_OURS_LOGS = {b"marker-number", b"marker-object"}
"""Of calls that the reference refuses."""
READY_ATTEMPTS_MAX = 4 * START_ATTEMPTS_MAX
"""The reference starts a process a model twice, on a busy machine slowly."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The reference and ours, each serving its copy of the models."""
    need_reference()
    directory = tmp_path_factory.mktemp("python_api")
    for side in ("reference", "ours"):
        (directory / side).mkdir()
        write_repository(directory / side / "models", for_reference=side == "reference")
    reference = start_reference(directory / "reference" / "models", directory / "reference.log")
    ours = start_ours(directory / "ours" / "models", directory / "ours.log")
    with running(reference, ours, attempts_max=READY_ATTEMPTS_MAX) as servers:
        yield servers
    left = [finalized(directory / side) for side in ("reference", "ours")]
    assert left == [left[0], left[0]]
    assert left[0].startswith("finalized")


def finalized(directory: Path) -> str:
    """What the model `finalizes` left when it ended."""
    path = directory / "models" / "finalizes" / "1" / "finalized"
    return path.read_text(encoding="utf-8") if path.exists() else "nothing"


@pytest.mark.reference
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models_see_the_same(case: Case[Http], servers: Servers) -> None:
    compare(case, http_exchange.exchange, servers)


@pytest.mark.reference
@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_models_stream_the_same(case: Case[Call], servers: Servers) -> None:
    compare(case, grpc_exchange.exchange, servers)


def own_metrics(server: Server) -> dict[str, float]:
    """The models' own metrics: name and labels -> value."""
    connection = http.client.HTTPConnection(HOST, server.ports.metrics, timeout=10)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    pairs = [line.rpartition(" ") for line in lines if line.startswith(FAMILIES)]
    found = {name.replace('.0"', '"'): float(value) for name, _, value in pairs}
    return {name: value for name, value in found.items() if not math.isnan(value)}


@pytest.mark.reference
def test_metrics_of_models_are_shown_alike(servers: Servers) -> None:
    for server in servers:
        for model, method in (("metrics_one", "see_gauge"), ("histograms", "see_observe")):
            assert http_exchange.exchange(server, look(model, method)).status == 200
    reference, ours = (own_metrics(server) for server in servers)
    assert ours == reference
    assert ours['api_histogram_bucket{a="1",le="+Inf"}'] >= 5


@pytest.mark.reference
def test_messages_of_models_are_logged_by_level(servers: Servers) -> None:
    found: list[set[bytes]] = []
    for server in servers:
        for method in methods_of("logging_model", LOOKS):
            assert http_exchange.exchange(server, look("logging_model", method)).status == 200
        until(server, lambda: b"marker-two" in server.log.read_bytes(), "not logged")  # noqa: B023
        found.append(set(MARKER.findall(server.log.read_bytes())))
    reference, ours = found
    assert ours - ONLY_OURS_LOGS == reference
    assert b"marker-verbose" not in ours


@pytest.mark.reference
def test_calls_are_counted_at_every_model(servers: Servers) -> None:
    grown: list[dict[str, Counts]] = []
    names = ("chain", "calls", "called", "batches")
    for server in servers:
        before = [counts(server, name) for name in names]
        for case in (look("chain", "see_answer"), special_cases.SEVERAL[0]):
            assert http_exchange.exchange(server, case).status == 200
        grown.append(settled(server, names, before, 1))
    reference, ours = grown
    assert ours == reference
    assert [ours[name]["success"] for name in names] == [1, 1, 1, 1]


def cancel_in_the_middle(server: Server) -> None:
    """Start a stream, wait for its first response, and leave."""
    call = stream_request("cancelled", "until_cancelled")
    with grpc_exchange._channel(server) as channel:
        method = channel.stream_stream(
            f"/{grpc_exchange.SERVICE}/ModelStreamInfer",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=bytes,
        )
        replies = method(iter(call.messages), timeout=10)
        assert next(replies)
        replies.cancel()


@pytest.mark.reference
def test_models_hear_that_their_client_has_left(servers: Servers) -> None:
    ask = stream("cancelled", "what_was_found")
    found: list[Json] = []
    for server in servers:
        cancel_in_the_middle(server)
        found.append(grpc_exchange.exchange(server, ask).json[0]["seen"])
    reference, ours = found
    assert ours == reference == [[[False, False], [True, True]]]
