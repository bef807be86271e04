"""What a step in the life of models is, and how both servers take it."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tritonclient.grpc import service_pb2 as pb

from . import grpc_exchange, http_exchange
from .cases import Case, Differs, Seen
from .grpc_exchange import Call
from .http_exchange import Http, converse
from .servers import Server, Servers

LOAD_LIMIT_S = 60.0
"""How long a load may take: on a busy machine the reference needs many seconds for a process."""
LOOKS_MAX = 1000
"""How often models may be seen on their way: half a minute, since a busy machine has two servers
with a dozen processes on it."""
LOOK_INTERVAL_S = 0.03

Edit: TypeAlias = Callable[[Path], None]
"""Changes the repository that both servers have."""


@dataclass(frozen=True, slots=True)
class OnOneSide:
    """Lines of what is there after a step (see `look`) that one server has alone.

    Attributes:
      why: The row's name in docs/compatibility.md.
    """

    reference: tuple[str, ...]
    ours: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Step(Case[Any]):
    """One request (HTTP or gRPC) for both servers, and what is there afterwards.

    Attributes:
      edit: What is changed on the disk before.
      after: How what is there afterwards differs.
      models: The models that are looked at afterwards; those of the scenario if empty.
    """

    edit: Edit | None = None
    after: OnOneSide | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """Steps one after the other, with models that no other scenario has.

    Attributes:
      models: Those that are looked at after a step.
      write: Writes what lies in the repository at the start.
    """

    name: str
    models: tuple[str, ...]
    write: Edit
    steps: list[Step]


@dataclass(frozen=True, slots=True)
class Done:
    """What a step led to."""

    ours: Seen
    reference: Seen
    ours_after: tuple[str, ...]
    reference_after: tuple[str, ...]


def play(scenario: Scenario, servers: Servers, repository: Path) -> dict[str, Done]:
    """Take every step on both servers; returns what each led to."""
    done: dict[str, Done] = {}
    for step in scenario.steps:
        for server in servers:
            server.check_running()
        if step.edit is not None:
            step.edit(repository)
        ours, reference = ask(servers.ours, step), ask(servers.reference, step)
        models = step.models or scenario.models
        after = [look(server, models) for server in (servers.ours, servers.reference)]
        done[step.name] = Done(ours, reference, *after)
    return done


def ask(server: Server, case: Case[Any]) -> Seen:
    """Send a request over the protocol that it is for."""
    if isinstance(case.request, Http):
        return http_exchange.exchange(server, case, LOAD_LIMIT_S)
    return grpc_exchange.exchange(server, case, LOAD_LIMIT_S)


def look(server: Server, names: tuple[str, ...]) -> tuple[str, ...]:
    """What a server says about models, once none of them is on its way.

    Returns:
      A line for each entry of the index, such as "name/1 READY" or "name", and "name answers" for
      each model that is ready.
    """
    for _ in range(LOOKS_MAX):
        entries = [entry for entry in _index(server) if entry["name"] in names]
        if not any(entry.get("state") in {"LOADING", "UNLOADING"} for entry in entries):
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(LOOK_INTERVAL_S)
    else:
        raise AssertionError(f"still on their way: {entries}")
    requests = [Http("GET", f"/v2/models/{name}/ready") for name in names]
    answers = converse(server, requests, limit_s=LOAD_LIMIT_S)
    ready = [
        f"{name} answers" for name, seen in zip(names, answers, strict=True) if seen.status == 200
    ]
    return tuple(sorted([*map(_line, entries), *ready]))


def _index(server: Server) -> list[dict[str, str]]:
    (seen,) = converse(server, [Http("POST", "/v2/repository/index")], limit_s=LOAD_LIMIT_S)
    assert seen.status == 200, seen
    entries: list[dict[str, str]] = seen.json
    return entries


def _line(entry: dict[str, str]) -> str:
    place = f"{entry['name']}/{entry['version']}" if "version" in entry else entry["name"]
    words = [place, entry.get("state", ""), "with a reason" if entry.get("reason") else ""]
    return " ".join(filter(None, words))


def check_after(step: Step, done: Done) -> None:
    """Assert that what is there after a step differs as declared."""
    ours, reference = set(done.ours_after), set(done.reference_after)
    expected = step.after or OnOneSide((), (), "")
    alone = OnOneSide(
        tuple(sorted(reference - ours)), tuple(sorted(ours - reference)), expected.why
    )
    assert alone == expected, (done.reference_after, done.ours_after)


# Requests.


def load(name: str, parameters: Mapping[str, Any] | None = None) -> Http:
    """A load over HTTP; `name` as it stands in the path."""
    return _post(f"/v2/repository/models/{name}/load", parameters)


def unload(name: str, parameters: Mapping[str, Any] | None = None) -> Http:
    """An unload over HTTP."""
    return _post(f"/v2/repository/models/{name}/unload", parameters)


def _post(path: str, parameters: Mapping[str, Any] | None) -> Http:
    body = b"" if parameters is None else json.dumps({"parameters": parameters}).encode()
    return Http("POST", path, body)


def load_grpc(name: str, **parameters: Any) -> Call:
    """A load over gRPC; parameters as `pb.ModelRepositoryParameter`."""
    request = pb.RepositoryModelLoadRequest(model_name=name, **parameters)
    return Call("RepositoryModelLoad", (request,))


def unload_grpc(name: str, **parameters: Any) -> Call:
    """An unload over gRPC."""
    request = pb.RepositoryModelUnloadRequest(model_name=name, **parameters)
    return Call("RepositoryModelUnload", (request,))


def get(path: str) -> Http:
    """A GET of something below /v2/."""
    return Http("GET", f"/v2/{path}", framed=False)


def declared(step: Step) -> set[str]:
    """The rows that the differences of a step have in the document."""
    rows = {step.expected.why} if isinstance(step.expected, Differs) else set()
    return rows | ({step.after.why} if step.after is not None else set())
