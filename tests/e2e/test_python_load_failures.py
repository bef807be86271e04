"""Python models that cannot be loaded, in both modes, on one server with models that can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.backends.processes import children_of
from tests.support.calling import reasons
from tests.support.server_process import ServerProcess, running_server, start_server
from tritrio.actors.core import CoreOptions, run_core
from tritrio.actors.repository import MODEL_LOADS_MAX
from tritrio.actors.routing_table import ModelState

from .faulty_models import (
    CASES,
    FINE,
    HANGS,
    MODES,
    TIMEOUT_S,
    Faulty,
    complete,
    initialize,
    name_of,
    write_faulty,
    write_model,
)
from .raw_http import ask, infer_body

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


READY_LIMIT_S = 150.0
"""Some loads hang until their timeout, and each in a process starts one or two."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("faulty")
    write_faulty(path / "models")
    flags = ["--exit-on-error=false", f"--model-load-timeout-secs={TIMEOUT_S}"]
    with running_server(
        path / "models", path / "log", *flags, ready_limit_s=READY_LIMIT_S
    ) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


@pytest.fixture(scope="module")
def index(server: ServerProcess) -> dict[str, dict[str, str]]:
    entries = ask(server.http_port, "POST", "/v2/repository/index").json()
    return {entry["name"]: entry for entry in entries}


@pytest.mark.parametrize(
    ("faulty", "mode"), CASES, ids=[name_of(faulty, mode) for faulty, mode in CASES]
)
def test_a_model_that_cannot_be_loaded_is_unavailable_and_the_index_says_why(
    index: dict[str, dict[str, str]], faulty: Faulty, mode: str
) -> None:
    name = name_of(faulty, mode)
    entry = index[name]
    assert entry["state"] == "UNAVAILABLE"
    assert entry["reason"] == faulty.reason.format(name=name)


@pytest.mark.parametrize("mode", MODES)
def test_other_models_answer_beside_them(server: ServerProcess, mode: str) -> None:
    path = f"/v2/models/fine_{mode}"
    assert ask(server.http_port, "GET", f"{path}/ready").status == 200
    answer = ask(server.http_port, "POST", f"{path}/infer", infer_body([7.0], [1, 1]))
    assert answer.json()["outputs"][0]["data"] == [7.0]
    assert ask(server.http_port, "GET", "/v2/health/live").status == 200


def test_no_process_of_a_model_that_could_not_be_loaded_is_left(server: ServerProcess) -> None:
    for _ in range(500):
        if len(children_of(server.process.pid)) == 1:  # of the model that is fine
            break
        assert not server.has_ended(0.02)
    else:
        pytest.fail(f"there are {len(children_of(server.process.pid))} processes")


async def test_models_whose_completion_hangs_do_not_keep_others_from_loading(
    tmp_path: Path,
) -> None:
    code = complete(
        f"import pathlib, time\nwhile not pathlib.Path({str(tmp_path / 'over')!r}).exists():\n"
        "    time.sleep(0.01)\nreturn config"
    )
    names = [f"hangs{number}" for number in range(MODEL_LOADS_MAX + 1)]
    repository = tmp_path / "models"
    for name in names:
        write_model(repository, name, code, "thread")
    write_model(repository, "fine", FINE, "thread")
    options = CoreOptions(repositories=(repository,), load_max_s=2.0)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            core = await nursery.start(run_core, options)
            assert core.router.find("fine", "").state is ModelState.READY
            assert reasons(core) == {
                name: f"Unavailable: model '{name}': its configuration was not completed within 2 s"
                for name in names
            }
            assert await core.stop()
    (tmp_path / "over").touch()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("code", [initialize(HANGS), complete(HANGS)], ids=["load", "complete"])
def test_a_server_can_be_stopped_while_a_load_hangs(tmp_path: Path, code: str, mode: str) -> None:
    write_model(tmp_path / "models", "hangs", code.replace(HANGS, f"print('HANGS'); {HANGS}"), mode)
    server = start_server(tmp_path / "models", tmp_path / "log")
    server.wait_for_log("HANGS", 60)
    server.stop()
    assert "Traceback" not in server.log()
