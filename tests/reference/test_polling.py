"""Both servers follow one repository: what they serve after each of a few changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .cases import Case
from .http_api_cases import get, post
from .http_exchange import exchange
from .http_requests import infer, tensor
from .repository import ECHO
from .servers import Server, Servers, both

FLAGS = ("--model-control-mode=poll", "--repository-poll-secs=1")
ATTEMPTS_MAX, ATTEMPT_INTERVAL_S = 200, 0.1
"""The reference looks every second, and starts a process for each version."""

TENSORS = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
ALL = "version_policy { all {} }" + TENSORS

Index = dict[str, str]


def put(repository: Path, name: str, files: dict[str, str]) -> None:
    """Write files aside and move what they make into place, since the reference looks any time."""
    stage = repository.parent / "stage"
    for path, text in files.items():
        (stage / path).parent.mkdir(parents=True, exist_ok=True)
        (stage / path).write_text(text)
    (stage / name).rename(repository / name)
    shutil.rmtree(stage)


def version(path: str) -> dict[str, str]:
    """The files of a version, one of them in the place where Python would cache bytecode.

    The reference takes that for a change, and loads the version again, whatever becomes of it.
    """
    return {f"{path}/model.py": ECHO, f"{path}/__pycache__": ""}


def model(name: str) -> dict[str, str]:
    return {f"{name}/config.pbtxt": TENSORS, **version(f"{name}/1")}


def add_model_and_version(repository: Path) -> None:
    put(repository, "a/2", version("a/2"))
    put(repository, "b", model("b"))


def remove_version(repository: Path) -> None:
    shutil.rmtree(repository / "a" / "2")


def break_configuration(repository: Path) -> None:
    put(repository, "b/config.pbtxt", {"b/config.pbtxt": "oops"})


def mend_configuration_and_add_version(repository: Path) -> None:
    put(repository, "b/2", version("b/2"))
    put(repository, "b/config.pbtxt", {"b/config.pbtxt": ALL})


def remove_model(repository: Path) -> None:
    shutil.rmtree(repository / "b")


ONE = {"a/1": "READY", "a/2": "UNAVAILABLE unloaded"}
STEPS: list[tuple[Callable[[Path], None], Index]] = [
    (add_model_and_version, {"a/1": "UNAVAILABLE unloaded", "a/2": "READY", "b/1": "READY"}),
    (remove_version, {**ONE, "b/1": "READY"}),
    (break_configuration, {**ONE, "b/1": "READY"}),
    (mend_configuration_and_add_version, {**ONE, "b/1": "READY", "b/2": "READY"}),
    (remove_model, ONE),
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both servers look; it holds the model `a`."""
    directory = tmp_path_factory.mktemp("polling") / "models"
    directory.mkdir()
    put(directory, "a", model("a"))
    return directory


@pytest.fixture(scope="module")
def polling(repository: Path) -> Iterator[Servers]:
    """Both servers, which look every second."""
    # While the reference follows a repository, it may not end by itself.
    with both(repository, *FLAGS, patience_s=0.5) as servers:
        yield servers


def index(server: Server) -> Index:
    """The state of each version, and why it is not READY; reasons of READY ones are our own."""
    entries = exchange(server, Case("index", post("/v2/repository/index"), 200)).json
    shown: Index = {}
    for entry in entries:
        state, reason = entry.get("state", "-"), entry.get("reason", "")
        text = state if state == "READY" else f"{state} {reason}".rstrip()
        shown[f"{entry['name']}/{entry.get('version', '-')}"] = text
    return shown


def wait_for(server: Server, wanted: Index) -> Index:
    for _ in range(ATTEMPTS_MAX):
        if index(server) == wanted or server.ended_within(ATTEMPT_INTERVAL_S):
            break
    return index(server)


def test_both_end_each_change_with_the_same_index(polling: Servers, repository: Path) -> None:
    for change, wanted in STEPS:
        change(repository)
        seen = {"reference": wait_for(polling.reference, wanted)}
        seen["ours"] = wait_for(polling.ours, wanted)
        assert (change, seen) == (change, dict.fromkeys(("reference", "ours"), wanted))


def test_neither_loads_or_unloads_on_request(polling: Servers) -> None:
    for path in ("load", "unload"):
        case = Case(path, post(f"/v2/repository/models/a/{path}"), 503)
        assert [exchange(server, case).status for server in polling] == [503, 503]


def test_instances_are_changed_in_the_model_that_runs(polling: Servers, repository: Path) -> None:
    case = Case("infer", infer({"inputs": [tensor("IN", "INT32", [1, 2, 3])]}, "a"), 200)
    assert [exchange(server, case).status for server in polling] == [200, 200]
    group = "instance_group [ { count: 2 kind: KIND_CPU } ]"
    put(repository, "a/config.pbtxt", {"a/config.pbtxt": TENSORS + group})
    for server in polling:
        config = Case("config", get("/v2/models/a/config"), 200)
        for _ in range(ATTEMPTS_MAX):
            if exchange(server, config).json["instance_group"][0]["count"] == 2:
                break
            assert not server.ended_within(ATTEMPT_INTERVAL_S), server.log_tail()
        else:
            pytest.fail(f"no second instance came:\n{server.log_tail()}")
        stats = exchange(server, Case("statistics", get("/v2/models/a/stats"), 200)).json
        shown = {each["version"]: each["inference_count"] for each in stats["model_stats"]}
        assert shown["1"] == 1, server.log_tail()
