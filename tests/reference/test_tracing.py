"""Trace settings and trace files of both servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .cases import Case, compare
from .grpc_exchange import Call, exchange as exchange_grpc
from .http_exchange import Http, converse, exchange
from .http_requests import tensor
from .servers import Server, Servers, need_reference, running, start_ours, start_reference
from .trace_cases import (
    GLOBAL,
    GRPC,
    HTTP,
    OF_MODEL,
    RESET,
    flags,
    post,
    without_file,
    write_models,
)

pytestmark = pytest.mark.reference

READS_MAX = 500
"""The reference writes its file a moment after it was told to."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The trace files of the reference and of ours."""
    directory = tmp_path_factory.mktemp("traces")
    return directory / "reference.json", directory / "ours.json"


@pytest.fixture(scope="module")
def tracing_servers(
    files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    """Both servers, tracing."""
    need_reference()
    directory = tmp_path_factory.mktemp("tracing")
    repository = directory / "models"
    write_models(repository)
    reference = start_reference(repository, directory / "reference.log", *flags(files[0]))
    ours = start_ours(repository, directory / "ours.log", *flags(files[1]))
    with running(reference, ours) as servers:
        yield servers


def _reset(servers: Servers) -> None:
    for server in servers:
        answers = converse(server, [post(RESET, OF_MODEL), post(RESET)])
        assert [answer.status for answer in answers] == [200, 200]


@pytest.mark.parametrize("case", HTTP, ids=lambda case: case.name)
def test_settings_over_http_agree(case: Case[Http], tracing_servers: Servers) -> None:
    _reset(tracing_servers)
    compare(case, exchange, tracing_servers)


@pytest.mark.parametrize("case", GRPC, ids=lambda case: case.name)
def test_settings_over_grpc_agree(case: Case[Call], tracing_servers: Servers) -> None:
    _reset(tracing_servers)
    compare(case, exchange_grpc, tracing_servers)


FLOWS: dict[str, list[Http]] = {
    "a model inherits what it does not give": [
        post({"trace_rate": "3"}, OF_MODEL),
        post({"trace_level": ["TENSORS"]}, OF_MODEL),
        post({"trace_rate": "9", "trace_count": "77", "log_frequency": "5"}),
        Http("GET", OF_MODEL),
    ],
    "a field that a model clears is inherited again": [
        post({"trace_rate": "3", "log_frequency": "4"}, OF_MODEL),
        post({"trace_rate": "9"}),
        post({"trace_rate": None}, OF_MODEL),
        post({"trace_rate": "8"}),
        Http("GET", OF_MODEL),
    ],
    "a global field that is cleared is that of the command line": [
        post({"trace_rate": "9", "trace_count": "8", "trace_level": ["OFF"]}),
        post({"trace_count": None, "trace_level": None}),
        post({"trace_rate": None}),
    ],
    "what is switched off may have any rate, and not be switched on with it": [
        post({"trace_level": ["OFF"]}),
        post({"trace_rate": "0"}),
        post({"trace_level": ["TIMESTAMPS"]}, OF_MODEL),
        post({"trace_level": ["TIMESTAMPS"]}),
        post({"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}),
        Http("GET", OF_MODEL),
    ],
    "a model may be traced alone": [
        post({"trace_level": ["OFF"]}),
        post({"trace_level": ["TENSORS"]}, OF_MODEL),
        post({"trace_level": None}, OF_MODEL),
        Http("GET", OF_MODEL),
    ],
}


@pytest.mark.parametrize("name", FLOWS)
def test_settings_inherit_alike(name: str, tracing_servers: Servers) -> None:
    _reset(tracing_servers)
    reference, ours = (
        [answer.comparable() for answer in converse(server, FLOWS[name], without_file)]
        for server in tracing_servers
    )
    assert ours == reference


def test_the_rest_of_a_count_is_shown_alike(tracing_servers: Servers) -> None:
    _reset(tracing_servers)
    requests = [
        post({"trace_count": "2"}, OF_MODEL),
        *[_infer("echo", "counted"), Http("GET", OF_MODEL)] * 3,
    ]
    reference, ours = (
        [answer.json for answer in converse(server, requests, without_file)[::2]]
        for server in tracing_servers
    )
    assert ours == reference
    assert [each["trace_count"] for each in ours] == ["2", "1", "0", "0"]


def _infer(model: str, request_id: str) -> Http:
    body = {"id": request_id, "inputs": [tensor("IN", "FP32", [1, 2], [1, 2])]}
    return Http("POST", f"/v2/models/{model}/infer", json.dumps(body).encode())


def _texts(file: Path) -> list[str]:
    """What is in the numbered trace files."""
    return [each.read_text() for each in file.parent.glob(f"{file.name}.*")]


def _trace_of(server: Server, file: Path, model: str) -> dict[tuple[str, bool], list[list[str]]]:
    """(model, whether a child) -> the activities of each trace of one request, by their times.

    Those of the frontend come first, since the reference answers while the model still ends; the
    completion of the response, which for the same reason is elsewhere, is left out.
    """
    request_id = f"one of {model}"
    converse(server, [post({"log_frequency": "1"}), _infer(model, request_id)])
    content: list[dict[str, Any]] = []
    for _ in range(READS_MAX):
        found = [text for text in _texts(file) if request_id in text and text.endswith("]")]
        if found:
            content = json.loads(found[0])
            break
        converse(server, [Http("GET", GLOBAL)])
    heads = [each for each in content if each.get("request_id") == request_id]
    assert heads, "no trace"
    traces: dict[tuple[str, bool], list[list[str]]] = {}
    for head in heads:
        stamps = [
            (stamp["ns"], order, stamp["name"])
            for order, each in enumerate(content)
            if each["id"] == head["id"]
            for stamp in each.get("timestamps", ())
        ]
        names = [name for _, _, name in sorted(stamps)]
        if "INFER_RESPONSE_COMPLETE" in names:
            completed = names.index("INFER_RESPONSE_COMPLETE")
            assert names.index("QUEUE_START") < completed < names.index("HTTP_SEND_START")
            del names[completed]
        names.sort(key=lambda name: not name.startswith("HTTP_"))
        traces.setdefault((head["model_name"], "parent_id" in head), []).append(names)
    return traces


@pytest.mark.parametrize("model", ["echo", "steps"])
def test_trace_files_have_the_same_activities_in_the_same_order(
    model: str, tracing_servers: Servers, files: tuple[Path, Path]
) -> None:
    _reset(tracing_servers)
    reference, ours = (
        _trace_of(server, file, model) for server, file in zip(tracing_servers, files, strict=True)
    )
    assert ours == reference
    assert set(ours) == (
        {("echo", False)} if model == "echo" else {("steps", False), ("echo", True)}
    )
