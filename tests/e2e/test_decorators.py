"""Functions that are models, served by real processes to real clients."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.support.pages import write_files
from tests.support.server_process import (
    HOST,
    ROOT,
    STOP_LIMIT_S,
    ServerProcess,
    running_server,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ANYWHERE = (
    f'http_port=0, grpc_port=0, metrics_port=0, http_address="{HOST}", grpc_address="{HOST}", '
    f'metrics_address="{HOST}", model_repositories=MORE'
)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@contextmanager
def running_script(script: Path) -> Iterator[ServerProcess]:
    """A ready server that a script runs; no process is left in the end."""
    log_path = script.with_suffix(".log")
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, script.name],
            cwd=script.parent,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    server = ServerProcess(process, log_path)
    try:
        server.wait_until_ready()
        yield server
    finally:
        if not server.has_ended():
            server.send_signal(signal.SIGTERM)
            if not server.has_ended(STOP_LIMIT_S):
                process.kill()
                process.wait()


def written_app(directory: Path, serve: str, *, more: str = "()") -> Path:
    """The files of the page, with the server of app.py on free ports."""
    write_files("decorators.md", directory)
    script = directory / "app.py"
    code = script.read_text()
    shown = "tritrio.serve(double, http_port=8000, grpc_port=8001)"
    assert shown in code
    served = f"MORE = {more}\n    tritrio.serve({serve}, {ANYWHERE})"
    script.write_text(code.replace(shown, served))
    return script


def test_the_page_is_what_happens(tmp_path: Path) -> None:
    shown = write_files("decorators.md", tmp_path)
    with running_script(written_app(tmp_path, "double")) as server:
        client = tmp_path / "client.py"
        code = client.read_text().replace("localhost:8000", server.http_url)
        client.write_text(code.replace("localhost:8001", server.grpc_url))
        done = subprocess.run(
            [sys.executable, "client.py"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stdout == shown["client.py"] != "", done.stderr
        assert "model double version 1 is READY" in server.log()
        server.send_signal(signal.SIGINT)
        assert server.wait() == 0
        assert "Traceback" not in server.log()


def ask(client: Any, module: Any, model: str, **inputs: Any) -> Any:
    tensors = []
    for name, array in inputs.items():
        datatype = "INT32" if array.dtype == np.int32 else "FP32"
        tensor = module.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return client.infer(model, tensors)


def streamed(url: str, model: str, **inputs: Any) -> list[Any]:
    """Everything a decoupled model answers over one stream."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with triton_grpc.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        tensors = []
        for name, array in inputs.items():
            tensor = triton_grpc.InferInput(name, list(array.shape), "INT32")
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        client.async_stream_infer(model, tensors, enable_empty_final_response=True)
        found: list[Any] = []
        while True:
            answer = answers.get(timeout=30)
            assert not isinstance(answer, Exception), answer
            if answer.get_response().parameters["triton_final_response"].bool_param:
                return found
            found.append(answer)


def test_classes_generators_and_async_functions_are_served_beside_a_repository(
    tmp_path: Path,
) -> None:
    script = written_app(tmp_path, "double, count, slowly, Scale", more='["models"]')
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "identity").symlink_to(ROOT / "repo_examples" / "identity")
    script.write_text("from more import Scale, count, slowly\n" + script.read_text())
    x = np.array([5], np.float32)
    with running_script(script) as server:
        with triton_http.InferenceServerClient(server.http_url) as client:
            scaled = ask(client, triton_http, "scale", x=x)
            assert scaled.as_numpy("y").tolist() == [15]
            slow = ask(client, triton_http, "slowly", x=x.reshape(1, 1))
            assert slow.as_numpy("y").tolist() == [[5]]
            assert client.is_model_ready("identity")
            config = client.get_model_config("count")
            assert config["model_transaction_policy"] == {"decoupled": True}
            with pytest.raises(triton_http.InferenceServerException, match="expects shape"):
                ask(client, triton_http, "double", x=x)
        counted = streamed(server.grpc_url, "count", n=np.array([3], np.int32))
        assert [answer.as_numpy("i").tolist() for answer in counted] == [[0], [1], [2]]
        assert server.stop() == 0
        assert "Traceback" not in server.log()


def test_exported_functions_are_served_by_the_command_line(tmp_path: Path) -> None:
    write_files("decorators.md", tmp_path)
    program = (
        "import tritrio; from app import double; from more import Scale, count\n"
        "for model in (double, Scale, count): tritrio.export(model, 'models')"
    )
    subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), check=True, timeout=60
    )
    (tmp_path / "app.py").unlink()
    (tmp_path / "more.py").unlink()
    with running_server(tmp_path / "models", tmp_path / "log") as server:
        with triton_grpc.InferenceServerClient(server.grpc_url) as client:
            x = np.array([[1], [2]], np.float32)
            assert ask(client, triton_grpc, "double", x=x).as_numpy("y").tolist() == [[2], [4]]
            assert ask(client, triton_grpc, "scale", x=x[0]).as_numpy("y").tolist() == [3]
        counted = streamed(server.grpc_url, "count", n=np.array([2], np.int32))
        assert len(counted) == 2
        assert server.stop() == 0


def test_a_port_that_is_taken_ends_the_script_with_the_reason(tmp_path: Path) -> None:
    script = written_app(tmp_path, "double")
    with running_script(script) as server:
        code = script.read_text().replace("http_port=0", f"http_port={server.http_port}")
        (tmp_path / "second.py").write_text(code)
        done = subprocess.run(
            [sys.executable, "second.py"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert f"HTTP cannot be served on {HOST}:{server.http_port}" in done.stderr
        assert server.stop() == 0
