"""The generate calls of the whole server: statuses, events, and what is left of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.http_client import HttpClient, infer_bytes, request_bytes
from tests.support.llm_counting import counted_llm
from tests.support.memory_server import memory_server, write_models
from tritrio.actors._response_gate import RESPONSES_WAITING_MAX

_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] },
        { name: "FAIL" data_type: TYPE_INT32 dims: [ 1 ] optional: true } ]
output [ { name: "NUMBER" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
_MODEL = '''
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Counts to COUNT; number FAIL is an error."""

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            count = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0]
            fail = pb_utils.get_input_tensor_by_name(request, "FAIL")
            for number in range(count):
                if fail is not None and fail.as_numpy()[0] == number:
                    error = pb_utils.TritonError("on purpose", pb_utils.TritonError.UNAVAILABLE)
                    sender.send(pb_utils.InferenceResponse(error=error))
                else:
                    tensor = pb_utils.Tensor("NUMBER", np.array([number], np.int32))
                    sender.send(pb_utils.InferenceResponse([tensor]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
'''


@pytest.fixture
def counting(tmp_path: Path) -> Path:
    """A repository with `count`, which is decoupled, and `plain`."""
    repository = write_models(tmp_path / "models", only=("plain",))
    (repository / "count" / "1").mkdir(parents=True)
    (repository / "count" / "config.pbtxt").write_text(_CONFIG)
    (repository / "count" / "1" / "model.py").write_text(_MODEL)
    return repository


def generate(model: str, call: str, **members: Any) -> bytes:
    return request_bytes(f"/v2/models/{model}/{call}", orjson.dumps(members))


async def events(client: HttpClient) -> list[dict[str, Any]]:
    """The objects of all events of a stream, whose head has been read."""
    found = []
    while chunk := await client.chunk():
        assert chunk.startswith(b"data: ")
        assert chunk.endswith(b"\n\n")
        found.append(orjson.loads(chunk[6:-2]))
    return found


async def test_each_response_is_an_event(autojump_clock: MockClock, counting: Path) -> None:
    async with memory_server(counting) as server:
        client = server.http()
        client.send(generate("count", "generate_stream", COUNT=2, id="r"))
        head = await client.head()
        assert head.status == 200
        assert head.headers == {
            "content-type": "text/event-stream; charset=utf-8",
            "transfer-encoding": "chunked",
        }
        named = {"id": "r", "model_name": "count", "model_version": "1"}
        assert await events(client) == [{"NUMBER": 0, **named}, {"NUMBER": 1, **named}]
        assert server.counts("count") == (1, 0, 0)


async def test_a_model_that_is_not_decoupled_gives_one_event(
    autojump_clock: MockClock, counting: Path
) -> None:
    async with memory_server(counting) as server:
        client = server.http()
        client.send(generate("plain", "generate_stream", INPUT0=[1, 2]))
        assert (await client.head()).status == 200
        (event,) = await events(client)
        assert event["OUTPUT0"] == [1, 2]
        assert event["param1"] == 42  # a response parameter


async def test_the_first_response_decides_the_status(
    autojump_clock: MockClock, counting: Path
) -> None:
    async with memory_server(counting) as server:
        client = server.http()
        for fail, status in ((0, 503), (1, 200)):
            client.send(generate("count", "generate_stream", COUNT=2, FAIL=fail))
            assert (await client.head()).status == status
            found = await events(client)
            assert [event.get("error") for event in found][fail] == "on purpose"
            assert [event.get("NUMBER") for event in found][1 - fail] == 1 - fail
            assert len(found) == 2


async def test_a_stream_without_responses_is_empty(
    autojump_clock: MockClock, counting: Path
) -> None:
    async with memory_server(counting) as server:
        client = server.http()
        client.send(generate("count", "generate_stream", COUNT=0))
        assert (await client.head()).status == 200
        assert await events(client) == []


@pytest.mark.parametrize("call", ["generate", "generate_stream"])
async def test_refused_requests_are_counted_and_answered_as_json(
    autojump_clock: MockClock, counting: Path, call: str
) -> None:
    async with memory_server(counting) as server:
        client = server.http()
        for members, status in (({}, 400), ({"COUNT": "x"}, 400), ({"COUNT": [1, 2]}, 400)):
            client.send(generate("count", call, **members))
            answer = await client.response()
            assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
            assert set(answer.json) == {"error"}
        client.send(generate("nobody", call))
        assert (await client.response()).status == 404
        client.send(
            request_bytes(f"/v2/models/count/{call}", b"{}", headers=["Content-Encoding: gzip"])
        )
        assert (await client.response()).status == 400
        assert server.counts("count") == (0, 4, 0)


async def test_generate_gives_exactly_one_response(
    autojump_clock: MockClock, counting: Path
) -> None:
    async with memory_server(counting) as server:
        client = server.http()
        client.send(generate("count", "generate", COUNT=1, id="r"))
        answer = await client.response()
        assert answer.status == 200
        assert answer.body == b'{"NUMBER":0,"id":"r","model_name":"count","model_version":"1"}'
        for count, status, told in ((0, 500, "gave none"), (2, 400, "gave more")):
            client.send(generate("count", "generate", COUNT=count))
            answer = await client.response()
            assert answer.status == status
            assert told in answer.json["error"]
            assert "use generate_stream" in answer.json["error"]


async def test_a_stream_keeps_its_turn_between_other_requests(
    autojump_clock: MockClock, counting: Path
) -> None:
    async with memory_server(counting, seconds={"count": 1.0}) as server:
        client = server.http()
        client.send(
            infer_bytes("plain", [[1]])
            + generate("count", "generate_stream", COUNT=2)
            + infer_bytes("plain", [[2]])
        )
        assert (await client.response()).rows == [[1]]
        assert (await client.head()).status == 200
        assert [event["NUMBER"] for event in await events(client)] == [0, 1]
        assert (await client.response()).rows == [[2]]


async def test_a_client_that_leaves_cancels_its_request(
    autojump_clock: MockClock, counting: Path
) -> None:
    async with memory_server(counting, seconds={"count": 1.0}) as server:
        clients = [server.http() for _ in range(3)]
        for client in clients:
            client.send(generate("count", "generate_stream", COUNT=1))
            await wait_all_tasks_blocked()
        clients[1].end.close()  # its request waits
        clients[2].end.close()
        assert (await clients[0].head()).status == 200
        assert len(await events(clients[0])) == 1
        await wait_all_tasks_blocked()
        assert server.counts("count") == (1, 2, 0)
        assert [execution.at_s for execution in server.executions] == [0.0]


async def test_a_client_that_reads_nothing_holds_few_responses(
    autojump_clock: MockClock, counting: Path
) -> None:
    async with memory_server(counting) as server:
        client = server.http(capacity_bytes=100)
        client.send(generate("count", "generate_stream", COUNT=RESPONSES_WAITING_MAX - 1))
        await wait_all_tasks_blocked()
        assert server.used_bytes < 1000
        assert (await client.head()).status == 200
        assert len(await events(client)) == RESPONSES_WAITING_MAX - 1


async def test_a_client_of_http_1_0_reads_to_the_end_of_the_connection(
    autojump_clock: MockClock, counting: Path
) -> None:
    async with memory_server(counting) as server:
        client = server.http()
        request = generate("count", "generate_stream", COUNT=1)
        client.send(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        head = await client.head()
        assert head.headers["connection"] == "close"
        assert "transfer-encoding" not in head.headers
        assert client.buffer == (b'data: {"NUMBER":0,"model_name":"count","model_version":"1"}\n\n')
        client.buffer = b""
        await client.closed()


@pytest.mark.parametrize("call", ["generate", "generate_stream"])
async def test_the_load_of_a_model_with_kv_state_is_in_the_header_that_asks_for_it(
    autojump_clock: MockClock, counting: Path, call: str
) -> None:
    async with memory_server(counting) as server:
        server.core.router.table.find("count", "").statistics.llm = counted_llm()
        client = server.http()
        named = '{"kv_cache_utilization":0.25,"max_token_capacity":80}'
        for model, asked, report in (
            ("count", "json", f'JSON {{"named_metrics":{named}}}'),
            ("count", "csv", None),
            ("plain", "json", None),
        ):
            members = {"COUNT": 1} if model == "count" else {"INPUT0": [1]}
            client.send(
                request_bytes(
                    f"/v2/models/{model}/{call}",
                    orjson.dumps(members),
                    headers=[f"Endpoint-Load-Metrics-Format: {asked}"],
                )
            )
            if call == "generate":
                headers = (await client.response()).headers
            else:
                headers = (await client.head()).headers
                assert len(await events(client)) == 1
            assert headers.get("endpoint-load-metrics") == report
