"""The HTTP API on hypercorn's trio worker, alone and mounted below a prefix, for real."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypercorn.config import Config
from hypercorn.middleware.dispatcher import TrioDispatcherMiddleware
from hypercorn.trio import serve
from hypercorn.utils import LifespanFailureError

from tests.support.server_process import HOST, ROOT
from tritrio.asgi import application, serving
from tritrio.options import ServerOptions

from .models import BROKEN, copy_example, write_python_model
from .raw_http import Answer, ask, infer_body

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

INFER = "/v2/models/identity/infer"
BODY = infer_body([1, 2, 3], [1, 3])
ATTEMPTS = 400
"""Twenty seconds for a start that takes one."""


@pytest.fixture
def options(tmp_path: Path) -> ServerOptions:
    copy_example(tmp_path, "identity")
    return ServerOptions(model_repositories=(tmp_path,))


@asynccontextmanager
async def hypercorn(app: Any, **settings: Any) -> AsyncIterator[int]:
    """Serve an application; gives its port, and ends in order."""
    config = Config()
    config.bind = [f"{HOST}:0"]
    config.errorlog = None
    for name, value in settings.items():
        setattr(config, name, value)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: Any) -> None:
            await serve(app, config, shutdown_trigger=stop.wait, task_status=task_status)

        (url,) = await nursery.start(run)
        yield int(url.rpartition(":")[2])
        stop.set()


async def asked(port: int, method: str, path: str, body: bytes = b"") -> Answer:
    return await trio.to_thread.run_sync(ask, port, method, path, body)


async def assert_infers(port: int, prefix: str = "") -> None:
    answer = await asked(port, "POST", prefix + INFER, BODY)
    assert answer.status == 200
    assert answer.json()["outputs"][0]["data"] == [1.0, 2.0, 3.0]
    assert (await asked(port, "GET", prefix + "/v2/health/ready")).status == 200


async def test_application_is_served_on_the_trio_worker(options: ServerOptions) -> None:
    async with hypercorn(application(options)) as port:
        await assert_infers(port)
        assert (await asked(port, "GET", "/v3")).status == 404


async def test_application_works_below_the_servers_root_path(options: ServerOptions) -> None:
    async with hypercorn(application(options), root_path="/models") as port:
        await assert_infers(port, "/models")


async def other(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        for _ in range(2):
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
        return
    headers = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"other"})


async def test_application_is_mounted_beside_another(options: ServerOptions) -> None:
    mounts: dict[str, Any] = {"/ai": application(options), "/": other}
    both = TrioDispatcherMiddleware(mounts)
    async with hypercorn(both) as port:
        await assert_infers(port, "/ai")
        assert (await asked(port, "GET", "/page")).body == b"other"


async def test_host_may_keep_the_models_in_its_own_lifespan(options: ServerOptions) -> None:
    async with serving(options) as models:

        async def host(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["path"].startswith("/ai/"):
                await models({**scope, "root_path": "/ai"}, receive, send)
            else:
                await other(scope, receive, send)

        async with hypercorn(host) as port:
            await assert_infers(port, "/ai")
            assert (await asked(port, "GET", "/page")).body == b"other"


async def test_module_with_an_application_is_what_the_hypercorn_command_takes(
    options: ServerOptions, tmp_path: Path
) -> None:
    (tmp_path / "serve.py").write_text(
        "from pathlib import Path\n"
        "from tritrio.asgi import application\n"
        "from tritrio.options import ServerOptions\n"
        f"app = application(ServerOptions(model_repositories=(Path({str(tmp_path)!r}),)))\n"
    )
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "hypercorn", "--worker-class", "trio"]
    command += ["--bind", f"{HOST}:{port}", "--workers", "0", "serve:app"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    process = subprocess.Popen(  # noqa: ASYNC220 - it blocks nobody but this test
        command, cwd=tmp_path, env=environment
    )
    try:
        for _ in range(ATTEMPTS):
            try:
                answer = await asked(port, "POST", INFER, BODY)
                break
            except OSError:
                await trio.sleep(0.05)
        assert answer.json()["outputs"][0]["data"] == [1.0, 2.0, 3.0]
    finally:
        process.terminate()
        process.wait(20)
    assert process.returncode in {0, -signal.SIGTERM}


async def test_broken_model_fails_the_lifespan_with_its_reason(tmp_path: Path) -> None:
    write_python_model(tmp_path, "broken", BROKEN)
    app = application(ServerOptions(model_repositories=(tmp_path,)))
    with pytest.raises(ExceptionGroup) as caught:
        async with hypercorn(app):
            pass
    assert caught.group_contains(LifespanFailureError, match="broken")


async def test_request_without_a_lifespan_is_the_servers_fault(options: ServerOptions) -> None:
    async def send(message: Any) -> None:
        pytest.fail(f"sent {message}")

    with pytest.raises(RuntimeError, match="lifespan"):
        await application(options)({"type": "http"}, trio.sleep_forever, send)
