"""What is noted of requests, in which order, whatever scheduler takes them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import INVALID_ARGUMENT, OK, UNIMPLEMENTED, Call, infer_message
from tests.support.http_client import request_bytes
from tests.support.memory_server import MemoryServer, memory_server, write_models
from tritrio.memory.cache_config import LocalConfig

_TENSORS = """
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
_CONFIGS = {
    "cached": 'backend: "identity"\nmax_batch_size: 4\nresponse_cache { enable: true }\n',
    "steps": 'platform: "ensemble"\nmax_batch_size: 4\n'
    "ensemble_scheduling {"
    ' step [ { model_name: "plain" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" }'
    ' output_map { key: "OUTPUT0" value: "middle" } },'
    ' { model_name: "batched" model_version: -1 input_map { key: "INPUT0" value: "middle" }'
    ' output_map { key: "OUTPUT0" value: "OUTPUT0" } } ] }\n',
    "sequence": 'backend: "identity"\nmax_batch_size: 4\n'
    "sequence_batching { max_sequence_idle_microseconds: 1000000 }\n",
    "broken": 'backend: "python"\nmax_batch_size: 4\n',
}
_BROKEN = """
class TritonPythonModel:
    def execute(self, requests):
        raise ValueError("no")
"""

RECEIVED = ["HTTP_RECV_START", "HTTP_RECV_END"]
QUEUED = ["REQUEST_START", "QUEUE_START"]
COMPUTED = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
ENDED = ["INFER_RESPONSE_COMPLETE", "REQUEST_END"]
SENT = ["HTTP_SEND_START", "HTTP_SEND_END"]
WAITED = ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"]
CALLED = ["GRPC_SEND_START", "GRPC_SEND_END"]
WHOLE = [*RECEIVED, *QUEUED, *COMPUTED, *ENDED, *SENT]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a model for each scheduler."""
    repository = write_models(tmp_path_factory.mktemp("traced"))
    for name, config in _CONFIGS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config + _TENSORS)
    (repository / "broken" / "1" / "model.py").write_text(_BROKEN)
    return repository


@asynccontextmanager
async def tracing_server(
    repository: Path, tmp_path: Path, *more: str, **options: Any
) -> AsyncIterator[MemoryServer]:
    """A server that traces every request into `tmp_path / "traces"`."""
    config = ("rate=1", "level=TIMESTAMPS", f"triton,file={tmp_path / 'traces'}", *more)
    async with memory_server(repository, trace_config=config, **options) as server:
        yield server


def objects(tmp_path: Path, name: str = "traces") -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads((tmp_path / name).read_text())
    return content


def activities(tmp_path: Path, name: str = "traces") -> dict[int, list[str]]:
    """Trace id -> the names of its times, in order of the file."""
    names: dict[int, list[str]] = {}
    for each in objects(tmp_path, name):
        for stamp in each.get("timestamps", ()):
            names.setdefault(each["id"], []).append(stamp["name"])
    return names


def heads(tmp_path: Path, name: str = "traces") -> list[dict[str, Any]]:
    return [each for each in objects(tmp_path, name) if "model_name" in each]


async def settings(server: MemoryServer, document: Any, model: str = "") -> int:
    client = server.http()
    path = f"/v2/models/{model}/trace/setting" if model else "/v2/trace/setting"
    client.send(request_bytes(path, json.dumps(document).encode()))
    return (await client.response()).status


@pytest.mark.parametrize("model", ["plain", "batched"])
async def test_a_request_over_http_has_its_times_in_order(
    model: str, autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path) as server:
        assert (await server.http().ask(model, [[1, 2]], request_id="a")).status == 200
    assert activities(tmp_path) == {1: WHOLE}
    assert heads(tmp_path) == [
        {"id": 1, "model_name": model, "model_version": 1, "request_id": "a"}
    ]
    times = [each["timestamps"][0]["ns"] for each in objects(tmp_path) if "timestamps" in each]
    assert times == sorted(times)


async def test_a_request_over_grpc_has_its_times_in_order(
    autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path) as server:
        assert await server.grpc().infer("plain", [[1]]).done() == OK
    assert activities(tmp_path) == {1: [*WAITED, *QUEUED, *COMPUTED, *ENDED, *CALLED]}


async def test_requests_of_a_batch_each_have_all_times(
    autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path) as server:
        clients = [server.http() for _ in range(4)]
        for client in clients:
            client.infer("batched", [[1]])
        for client in clients:
            assert (await client.response()).status == 200
        assert len(server.executions) == 1
    assert list(activities(tmp_path).values()) == [WHOLE] * 4


async def test_a_request_of_a_sequence_has_its_times_in_order(
    autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path) as server:
        message = infer_message("sequence", [[1]], sequence_start=True, sequence_end=True)
        message.parameters["sequence_id"].int64_param = 7
        call = server.grpc().call("ModelInfer", message)
        assert await call.done() == OK, call.text
    assert activities(tmp_path) == {1: [*WAITED, *QUEUED, *COMPUTED, *ENDED, *CALLED]}


async def test_the_steps_of_an_ensemble_are_its_children(
    autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path) as server:
        assert (await server.http().ask("steps", [[1]], request_id="a")).rows == [[1]]
    step = [*QUEUED, *COMPUTED, "REQUEST_END"]
    assert activities(tmp_path) == {2: step, 3: step, 1: [*RECEIVED, *QUEUED, *ENDED, *SENT]}
    assert heads(tmp_path) == [
        {"id": 2, "model_name": "plain", "model_version": 1, "request_id": "a", "parent_id": 1},
        {"id": 3, "model_name": "batched", "model_version": 1, "request_id": "a", "parent_id": 1},
        {"id": 1, "model_name": "steps", "model_version": 1, "request_id": "a"},
    ]


async def test_a_decoupled_request_has_the_sending_of_each_response(
    autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path) as server:
        call = server.grpc().stream()
        call.send(infer_message("repeat", [[1, 1], [2, 1]]), end=True)
        assert await call.done() == OK
        assert len(call.messages) == 2
    names = activities(tmp_path)[1]
    assert sorted(names) == sorted([*WAITED, *QUEUED, *COMPUTED, *ENDED, *CALLED, *CALLED])
    assert [name for name in names if name in CALLED] == [*CALLED, *CALLED]
    assert names.index("INFER_RESPONSE_COMPLETE") < names.index("REQUEST_END")


async def test_an_answer_from_the_cache_was_not_computed(
    autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    cache = LocalConfig(1024 * 1024)
    async with tracing_server(traced, tmp_path, cache=cache) as server:
        for _ in range(2):
            assert (await server.http().ask("cached", [[1]])).status == 200
    assert activities(tmp_path) == {1: WHOLE, 2: [*RECEIVED, *QUEUED, *ENDED, *SENT]}


async def test_a_failed_request_and_a_refused_one_are_traced_to_their_end(
    autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path) as server:
        assert (await server.http().ask("broken", [[1]])).status == 500
        assert (await server.http().ask("plain", [[1]] * 9)).status == 400
        call = server.grpc().infer("plain", [[1]] * 9)
        assert await call.done() != OK
    assert activities(tmp_path) == {
        1: WHOLE,
        2: [*RECEIVED, "REQUEST_START", "REQUEST_END", *SENT],
        3: [*WAITED, "REQUEST_START", "REQUEST_END"],
    }


@pytest.mark.parametrize("protocol", ["http", "grpc", "stream"])
async def test_a_client_that_leaves_ends_the_trace(
    protocol: str, autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path, seconds={"plain": 1.0}) as server:
        if protocol == "http":
            client = server.http()
            client.infer("plain", [[1]])
        elif protocol == "grpc":
            call = server.grpc().infer("plain", [[1]])
        else:
            call = server.grpc().stream()
            call.send(infer_message("plain", [[1]]))
        await wait_all_tasks_blocked()
        if protocol == "http":
            client.end.close()
        else:
            call.cancel()
        await trio.sleep(2)
        assert await settings(server, {"trace_level": ["OFF"]}) == 200
        await wait_all_tasks_blocked()
        names = activities(tmp_path)[1]
    first = RECEIVED if protocol == "http" else WAITED
    assert names == [*first, *QUEUED, "REQUEST_END", *COMPUTED]


async def test_what_is_in_a_queue_and_comes_out_of_a_model_is_noted(
    autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path, "level=TENSORS") as server:
        await settings(server, {"trace_level": ["TENSORS"]}, "plain")
        assert (await server.http().ask("plain", [[1, -2]])).status == 200
    tensor = {"data": "1,-2", "shape": "1,2", "dtype": "INT32"}
    assert objects(tmp_path) == [
        {"id": 1, "model_name": "plain", "model_version": 1},
        {"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": {"name": "INPUT0", **tensor}},
        {"id": 1, "activity": "TENSOR_BACKEND_OUTPUT", "tensor": {"name": "OUTPUT0", **tensor}},
    ]


async def test_each_file_has_so_many_requests_and_the_last_one_the_rest(
    autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path, "triton,log-frequency=2", "count=3") as server:
        for model in ("steps", "plain", "plain", "plain"):
            assert (await server.http().ask(model, [[1]])).status == 200
        await wait_all_tasks_blocked()
        assert not server.core.tracing.active
        assert sorted(activities(tmp_path, "traces.0")) == [1, 2, 3, 4]
        assert list(activities(tmp_path, "traces.1")) == [5]
    assert not (tmp_path / "traces").exists()


async def test_a_replaced_setting_writes_its_file_and_the_next_one_adds_to_it(
    autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    (tmp_path / "traces").write_text("of an earlier server")
    async with tracing_server(traced, tmp_path) as server:
        assert (await server.http().ask("plain", [[1]])).status == 200
        assert await settings(server, {"trace_rate": "2"}) == 200
        await wait_all_tasks_blocked()
        assert list(activities(tmp_path)) == [1]
        for _ in range(2):
            assert (await server.http().ask("plain", [[1]])).status == 200
    assert list(activities(tmp_path)) == [1, 2]


async def test_a_file_that_cannot_be_written_costs_no_request(
    autojump_clock: MockClock, traced: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with tracing_server(traced, tmp_path / "nowhere", "triton,log-frequency=1") as server:
        for _ in range(2):
            assert (await server.http().ask("plain", [[1]])).status == 200
    lines = [each.message for each in caplog.records if each.name == "tritrio.tracing"]
    assert [line.partition(":")[0] for line in lines] == ["a trace file cannot be written"] * 2


async def test_nothing_is_traced_once_it_is_switched_off(
    autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path) as server:
        assert await settings(server, {"trace_level": ["OFF"]}) == 200
        assert (await server.http().ask("plain", [[1]])).status == 200
        assert await settings(server, {"trace_level": ["TIMESTAMPS"]}, "plain") == 200
        assert (await server.http().ask("plain", [[1]])).status == 200
        assert (await server.http().ask("batched", [[1]])).status == 200
    assert [head["model_name"] for head in heads(tmp_path)] == ["plain"]


def trace_setting(server: MemoryServer, model: str = "", **settings: list[str]) -> Call:
    """Call TraceSetting."""
    request = pb.TraceSettingRequest(model_name=model)
    for name, values in settings.items():
        request.settings[name].value.extend(values)
    return server.grpc().call("TraceSetting", request, response_type=pb.TraceSettingResponse)


async def test_settings_are_the_same_over_both_protocols(
    autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path) as server:
        call = trace_setting(server, "plain", trace_rate=["3"], trace_level=["TENSORS"])
        assert await call.done() == OK
        (answer,) = call.messages
        over_grpc = {name: list(value.value) for name, value in answer.settings.items()}
        client = server.http()
        client.get("/v2/models/plain/trace/setting")
        over_http = (await client.response()).json
        assert over_http == {
            "trace_level": ["TENSORS"],
            "trace_rate": "3",
            "trace_count": "-1",
            "log_frequency": "0",
            "trace_file": str(tmp_path / "traces"),
            "trace_mode": "triton",
        }
        assert over_grpc == over_http | {
            name: [value] for name, value in over_http.items() if name != "trace_level"
        }


@pytest.mark.parametrize(
    "case",
    [
        ("", {"trace_file": "x"}, 501, UNIMPLEMENTED),
        ("", {"trace_level": ["OFF", "TENSORS"]}, 400, INVALID_ARGUMENT),
        ("", {"trace_rate": ["x"]}, 400, INVALID_ARGUMENT),
        ("nobody", {}, 400, INVALID_ARGUMENT),
        ("plain", {"trace_rate": ["1", "2"]}, 400, INVALID_ARGUMENT),
    ],
)
async def test_a_fault_has_its_status_over_both_protocols(
    case: tuple[str, dict[str, Any], int, int],
    autojump_clock: MockClock,
    traced: Path,
    tmp_path: Path,
) -> None:
    model, document, status, grpc_status = case
    async with tracing_server(traced, tmp_path) as server:
        assert await settings(server, document, model) == status
        call = trace_setting(server, model, **{name: list(document[name]) for name in document})
        assert await call.done() == grpc_status


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null"])
async def test_a_body_that_is_no_object_is_refused(
    body: bytes, autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path) as server:
        client = server.http()
        client.send(request_bytes("/v2/trace/setting", body))
        assert (await client.response()).status == 400


async def test_the_server_says_that_it_traces(
    autojump_clock: MockClock, traced: Path, tmp_path: Path
) -> None:
    async with tracing_server(traced, tmp_path) as server:
        client = server.http()
        client.get("/v2")
        assert "trace" in (await client.response()).json["extensions"]
