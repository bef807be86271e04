"""A real scrape of a real server, read by Prometheus's own parser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.server_process import ServerProcess, running_server

from .raw_http import ask, connect, exchange

pytestmark = pytest.mark.e2e

NAME = 'say "hi"\n\\o'
"""A model name that needs every escape there is."""
CONFIG = """
backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
metric_tags { key: "team" value: "a \\"b\\" c" }
"""
PLAIN = '{"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [3, 1], "data": [1, 2, 3]}]}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("metrics")
    repository = directory / "models"
    for name in (NAME, "plain"):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CONFIG)
    with running_server(repository, directory / "log") as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log()


def scrape(server: ServerProcess) -> dict[str, Metric]:
    answer = ask(server.metrics_port, "GET", "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    text = answer.body.decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_a_scrape_is_what_prometheus_reads(server: ServerProcess) -> None:
    before = scrape(server)
    for family in before.values():
        for sample in family.samples:
            labels = set(sample.labels)
            of_a_model = {"model", "version", "_team"}
            assert labels - {"reason"} in (of_a_model, set()) or family.name == INPUT_BYTES
    success = before["nv_inference_request_success"]
    assert {sample.labels["model"] for sample in success.samples} == {NAME, "plain"}
    assert {sample.labels["_team"] for sample in success.samples} == {'a "b" c'}
    assert len(before["nv_inference_request_failure"].samples) == 2 * 4
    answer = ask(server.http_port, "POST", "/v2/models/plain/infer", PLAIN.encode())
    assert answer.status == 200
    after = scrape(server)
    assert set(after) == set(before), "every family is there from the start"
    counts = {
        sample.labels["model"]: sample.value for sample in after["nv_inference_count"].samples
    }
    assert counts == {NAME: 0, "plain": 3}
    (used,) = after["nv_cpu_memory_used_bytes"].samples
    (total,) = after["nv_cpu_memory_total_bytes"].samples
    assert 0 < used.value < total.value


INPUT_BYTES = "input_byte_size_counter"
"""The family of the backend itself."""


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/metrics/", 200),
        ("GET", "http://test/metrics", 200),
        ("GET", "http://test/other", 200),
        ("GET", "/other", 200),
        ("POST", "/metrics", 405),
        ("PUT", "/other", 405),
    ],
)
def test_the_port_knows_one_path_and_one_method(
    server: ServerProcess, method: str, path: str, status: int
) -> None:
    answer = ask(server.metrics_port, method, path)
    assert answer.status == status
    if status == 405:
        assert answer.headers["allow"] == "GET"
        assert answer.error() == "Method Not Allowed"
    else:
        assert bool(answer.body) == ("metrics" in path)


def test_the_port_turns_a_websocket_away(server: ServerProcess) -> None:
    fields = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    fields["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    with connect(server.metrics_port) as connection:
        assert exchange(connection, "GET", "/metrics", b"", fields).status == 403
    assert "Traceback" not in server.log()
