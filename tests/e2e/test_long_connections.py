"""One connection for very many calls, and one stream for very many messages: memory stays flat."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support.server_process import ROOT, ServerProcess, running_server

from .models import copy_example

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LIMIT_S = 60.0
GROWTH_BYTES_MAX = 4 * 1024**2
"""What the allocator may come to hold; a leak of 400 bytes a call is more."""
CALLS = 12_000
MESSAGES = 6_000
IN_FLIGHT_MAX = 32


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    copy_example(tmp_path / "models", "identity")
    with running_server(tmp_path / "models", tmp_path / "log") as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


def message() -> Any:
    values = np.arange(16, dtype=np.float32).reshape(1, 16)
    made = service_pb2.ModelInferRequest(model_name="identity")
    made.inputs.add(name="INPUT0", datatype="FP32", shape=values.shape)
    made.raw_input_contents.append(values.tobytes())
    return made


def test_very_many_calls_on_one_connection_leave_no_memory(
    server: ServerProcess, tmp_path: Path
) -> None:
    data = message().SerializeToString()
    body = tmp_path / "body"
    body.write_bytes(struct.pack(">BI", 0, len(data)) + data)
    path = "inference.GRPCInferenceService/ModelInfer"
    load = [sys.executable, str(ROOT / "scripts" / "h2load"), "-c", "1", "-m", str(IN_FLIGHT_MAX)]
    load += ["-d", str(body), "-H", "content-type: application/grpc", "-H", "te: trailers"]

    def call(count: int) -> None:
        command = [*load, "-n", str(count), f"http://{server.grpc_url}/{path}"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode != 0 and done.stderr.startswith("error: "):
            pytest.skip(f"no h2load: {done.stderr.strip()}")
        assert f"{count} succeeded, 0 failed" in done.stdout, done.stdout + done.stderr

    call(CALLS // 4)
    before = server.rss_bytes()
    call(CALLS)
    assert server.rss_bytes() - before < GROWTH_BYTES_MAX


def test_very_many_messages_on_one_stream_leave_no_memory(server: ServerProcess) -> None:
    room = threading.Semaphore(IN_FLIGHT_MAX)
    request = message()

    def requests() -> Iterator[Any]:
        for _ in range(MESSAGES + MESSAGES // 4):
            room.acquire()
            yield request

    before = 0
    with grpc.insecure_channel(server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for count, answer in enumerate(stub.ModelStreamInfer(requests(), timeout=LIMIT_S), 1):
            room.release()
            assert not answer.error_message
            if count == MESSAGES // 4:
                before = server.rss_bytes()
        assert count == MESSAGES + MESSAGES // 4
        assert server.rss_bytes() - before < GROWTH_BYTES_MAX
