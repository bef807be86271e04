"""Unix sockets, a shared port, and load from h2load, with and without TLS."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.certificates import NAME, Certificates
from tests.support.server_process import HOST, ROOT
from tests.support.serving import serving
from tritrio.server import BoundAddresses

from .raw_http import ask, infer_body

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LIMIT_S = 50.0
H2LOAD = [sys.executable, str(ROOT / "scripts" / "h2load")]
INFER = "/v2/models/identity/infer"
BODY = infer_body([1, 2, 3], [1, 3])
VALUES = np.arange(16, dtype=np.float32).reshape(1, 16)


@pytest.fixture(scope="module")
def h2load() -> None:
    """Skips where there is none and none can be fetched."""
    found = subprocess.run([*H2LOAD, "--version"], check=False, capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip(found.stderr.strip() or "h2load does not run")


def message() -> Any:
    made = service_pb2.ModelInferRequest(model_name="identity")
    made.inputs.add(name="INPUT0", datatype="FP32", shape=VALUES.shape)
    made.raw_input_contents.append(VALUES.tobytes())
    return made


async def output(command: list[str]) -> str:
    """What a program prints; it has to succeed."""
    with trio.fail_after(LIMIT_S):
        done = await trio.run_process(
            command, check=False, capture_stdout=True, stderr=subprocess.STDOUT
        )
    text = done.stdout.decode()
    assert done.returncode == 0, text
    return text


# Unix sockets.


@pytest.mark.parametrize("http_server", ["tritrio", "hypercorn"])
async def test_curl_infers_over_a_unix_socket_that_is_gone_in_the_end(
    models: Path, tmp_path: Path, http_server: str
) -> None:
    program = shutil.which("curl")
    if program is None:
        pytest.skip("curl is not installed")
    path = tmp_path / "http.sock"
    async with serving(models, http_address=f"unix:{path}", http_server=http_server) as bound:
        assert bound.http == (f"unix:{path}", 0)
        curl = [program, "-sS", "--fail-with-body", "--unix-socket", str(path)]
        for more in ([], ["--http1.0"]):
            text = await output([*curl, *more, f"http://server{INFER}", "-d", BODY.decode()])
            assert json.loads(text)["outputs"][0]["data"] == [1.0, 2.0, 3.0]
    assert not path.exists()


async def test_grpcio_infers_over_a_unix_socket_that_is_gone_in_the_end(
    models: Path, tmp_path: Path
) -> None:
    path = tmp_path / "grpc.sock"

    def call() -> None:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            answer = stub.ModelInfer(message(), timeout=LIMIT_S)
            assert answer.raw_output_contents[0] == VALUES.tobytes()

    async with serving(models, grpc_address=f"unix:{path}") as bound:
        assert bound.grpc == (f"unix:{path}", 0)
        await trio.to_thread.run_sync(call)
    assert not path.exists()


async def test_start_log_names_unix_sockets(
    models: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "http.sock"
    with caplog.at_level("INFO", "tritrio"):
        async with serving(models, http_address=f"unix:{path}", grpc_address=None):
            pass
    assert f"HTTP is served on unix:{path}" in caplog.messages


async def test_two_servers_share_ports_where_both_ask_for_it(models: Path) -> None:
    options = {"http_reuse_port": True, "grpc_reuse_port": True}
    async with serving(models, **options) as bound:
        assert bound.http is not None
        assert bound.grpc is not None
        ports = {"http_port": bound.http[1], "grpc_port": bound.grpc[1]}
        async with serving(models, **options, **ports) as shared:
            assert (shared.http, shared.grpc) == (bound.http, bound.grpc)
            for _ in range(8):  # whichever it reaches
                answer = await trio.to_thread.run_sync(
                    partial(ask, bound.http[1], "POST", INFER, BODY)
                )
                assert answer.status == 200


async def test_server_that_has_stopped_leaves_no_descriptors(models: Path) -> None:
    async with serving(models):
        pass
    before = len(os.listdir("/dev/fd"))
    for _ in range(2):
        async with serving(models):
            pass
    assert len(os.listdir("/dev/fd")) <= before


# Load.


def results(text: str) -> dict[str, int]:
    """What h2load has counted."""
    (line,) = re.findall(r"^requests: (.*)$", text, re.MULTILINE)
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", line)}
    (line,) = re.findall(r"^status codes: (.*)$", text, re.MULTILINE)
    return counts | {name: int(count) for count, name in re.findall(r"(\d+) (\dxx)", line)}


def all_succeeded(count: int) -> dict[str, int]:
    return {
        **dict.fromkeys(("total", "started", "done", "succeeded", "2xx"), count),
        **dict.fromkeys(("failed", "errored", "timeout", "3xx", "4xx", "5xx"), 0),
    }


def inferences(bound: BoundAddresses) -> int:
    """Inferences that have succeeded so far, by the server's own statistics."""
    assert bound.metrics is not None
    text = ask(bound.metrics[1], "GET", "/metrics").body.decode()
    line = 'nv_inference_request_success{model="identity",version="1"} '
    (value,) = (row.removeprefix(line) for row in text.splitlines() if row.startswith(line))
    return round(float(value))


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_h2load_has_every_grpc_inference_answered(
    h2load: None, certificates: Certificates, models: Path, tmp_path: Path, tls: bool
) -> None:
    """Requests as fast as HTTP/2 takes them, a hundred at a time on each connection."""
    data = message().SerializeToString()
    body = tmp_path / "body"
    body.write_bytes(struct.pack(">BI", 0, len(data)) + data)
    count = 3000
    async with serving(models, grpc_tls=certificates.options() if tls else None) as bound:
        assert bound.grpc is not None
        scheme = "https" if tls else "http"
        url = f"{scheme}://{NAME if tls else HOST}:{bound.grpc[1]}"
        fields = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        load = [*H2LOAD, "-n", str(count), "-c", "4", "-m", "100", "-d", str(body), *fields]
        text = await output([*load, f"{url}/inference.GRPCInferenceService/ModelInfer"])
        assert results(text) == all_succeeded(count)
        assert ("TLS Protocol: TLSv1.3" in text) == tls
        assert await trio.to_thread.run_sync(inferences, bound) == count


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_h2load_has_every_http_inference_answered(
    h2load: None, certificates: Certificates, models: Path, tmp_path: Path, tls: bool
) -> None:
    body = tmp_path / "body"
    body.write_bytes(BODY)
    count = 2000
    async with serving(models, http_tls=certificates.options() if tls else None) as bound:
        assert bound.http is not None
        scheme = "https" if tls else "http"
        url = f"{scheme}://{NAME if tls else HOST}:{bound.http[1]}"
        load = [*H2LOAD, "--h1", "-n", str(count), "-c", "8", "-d", str(body)]
        text = await output([*load, f"{url}{INFER}"])
        assert results(text) == all_succeeded(count)
        assert await trio.to_thread.run_sync(inferences, bound) == count


async def test_h2load_may_give_up_a_hundred_streams_on_every_connection(
    h2load: None, models: Path, tmp_path: Path
) -> None:
    """It ends in the midst of everything that it asked for; the server serves the next."""
    data = message().SerializeToString()
    body = tmp_path / "body"
    body.write_bytes(struct.pack(">BI", 0, len(data)) + data)
    fields = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    async with serving(models) as bound:
        assert bound.grpc is not None
        url = f"http://{HOST}:{bound.grpc[1]}/inference.GRPCInferenceService/ModelInfer"
        load = [*H2LOAD, "-D", "1", "-c", "4", "-m", "100", "-d", str(body), *fields, url]
        text = await output(load)
        counts = results(text)
        assert counts["failed"] == counts["errored"] == counts["timeout"] == 0
        assert counts["succeeded"] == counts["done"] > 100
        text = await output(
            [*H2LOAD, "-n", "100", "-c", "1", "-m", "10", "-d", str(body), *fields, url]
        )
        assert results(text) == all_succeeded(100)
